"""Finds out what the totals of a query's aggregates have come to: by its changed rows, or of all rows.

What one job of Spark can find out is found out by one, as values of subqueries, of which Spark merges those that read
the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from iscp.core.query.query_plan import Operator, OperatorKind
from iscp.core.values.totals import Total, TotalChange, TotalKind, Totals, moved
from iscp.views.catalyst.catalyst import Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.total_functions import TotalFunction
from iscp.views.changes.known_totals import adding_up
from iscp.views.changes.signed_plans import SignedPlans
from iscp.views.changes.signed_rows import WEIGHT, At, Signed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DIGITS = Context(prec=100)
_FIELDS = 4


def learn_totals(plans: SignedPlans, root: PlanNode) -> None:
    """Fills `plans.totals.after`, but for what is known there."""
    for level in _by_depth(root):
        lost = nodes = [each for each in level if each not in plans.totals]
        if plans.totals.before:
            changes = _read(plans, nodes, _changed_parts)
            lost = [node for node in nodes if not _follow(plans, node, changes[node])]
        if lost:
            for node, found in _read(plans, lost, _all_parts).items():
                plans.totals.after[node] = tuple(Total(each.count, each.sum, each.came) for each in found)


def _by_depth(root: PlanNode) -> list[list[PlanNode]]:
    """Those first that are made of no others."""
    depths: dict[PlanNode, int] = {}
    for node in adding_up(root):
        within = [depths[each] for each in node.walk() if each in depths]
        depths[node] = max(within, default=-1) + 1
    return [[node for node, depth in depths.items() if depth == each] for each in sorted({*depths.values()})]


def _follow(plans: SignedPlans, node: PlanNode, changes: Sequence[TotalChange]) -> bool:
    before = plans.totals.before[node]
    triples = zip(node.functions, before, changes, strict=True)
    found = [moved(function.kind, total, change) for function, total, change in triples]
    known = tuple(each for each in found if each is not None)
    if len(known) < len(found):
        return False
    plans.totals.after[node] = known
    return True


@dataclass(frozen=True, slots=True)
class _Part:
    """What the functions at `places` of an aggregate have of some rows: one row, FIELDS columns each."""

    places: Sequence[int]
    row: DataFrame


@dataclass(frozen=True, slots=True)
class TotalValue:
    """What one function takes of rows."""

    place: int
    function: TotalFunction
    arguments: Sequence[Expression]


def part_of_totals(plans: SignedPlans, node: PlanNode) -> DataFrame:
    """One row: what an aggregate without distinct values comes to for the rows that `plans` has, as texts."""
    values = [TotalValue(place, each, each.arguments) for place, each in enumerate(node.functions)]
    row = _part(plans, values, plans.rows(node.inputs[0], At.NEW), None).row
    return row.toDF(*[f"t{place}" for place in range(len(row.columns))])


def all_totals(node: PlanNode, parts: Sequence[Sequence[str | None]]) -> Totals:
    """Made of the rows that `part_of_totals` gave of each part."""
    found = []
    for place, function in enumerate(node.functions):
        fields = [row[_FIELDS * place : _FIELDS * (place + 1)] for row in parts]
        counts, sums, extremes, _ = zip(*fields, strict=True) if fields else ((),) * _FIELDS
        known = [_unscaled(each, function.scale) for each in extremes if each is not None]
        beyond = max if function.kind is TotalKind.MOST else min
        total = sum(_unscaled(each, function.scale) for each in sums if each is not None)
        found.append(Total(sum(int(each or 0) for each in counts), total, beyond(known, default=None)))
    return tuple(found)


def _all_parts(plans: SignedPlans, node: PlanNode) -> Iterator[_Part]:
    rows = plans.rows(node.inputs[0], At.NEW)
    values = [TotalValue(place, each, each.arguments) for place, each in enumerate(node.functions)]
    if plain := [each for each in values if not each.function.distinct]:
        yield _part(plans, plain, rows, None)
    for each in values:
        if each.function.distinct:
            apart = plans.catalyst.distinct(each.arguments[0], rows)
            yield _part(plans, [TotalValue(each.place, each.function, plans.catalyst.output(apart))], apart, None)


def _changed_parts(plans: SignedPlans, node: PlanNode) -> Iterator[_Part]:
    (below,) = node.inputs
    signed = plans.delta(below)
    if signed is None:
        return
    values = [TotalValue(place, each, each.arguments) for place, each in enumerate(node.functions)]
    plain = [each for each in values if not (each.function.distinct or each.function.kind.is_extreme)]
    if plain:
        yield _part(plans, plain, signed.plan, signed.weight)
    for each in values:
        if each.function.distinct:
            yield from _changed_distinct(plans, below, each)
        elif each.function.kind.is_extreme:
            yield _changed_extreme(plans, each, signed)


def _changed_distinct(plans: SignedPlans, below: PlanNode, value: TotalValue) -> Iterator[_Part]:
    """By the values that are there since, or are no more."""
    argument = value.arguments[0]
    operator = Operator(OperatorKind.AGGREGATE, "Distinct", (below.operator,), keyed=True)
    apart = PlanNode(operator, plans.catalyst.distinct(argument, below.plan), (below,), ((argument,),))
    if (signed := plans.delta(apart)) is not None:
        found = TotalValue(value.place, value.function, plans.catalyst.output(apart.plan))
        yield _part(plans, [found], signed.plan, signed.weight)


def _part(plans: SignedPlans, values: Sequence[TotalValue], rows: Plan, weight: Expression | None) -> _Part:
    frame = value_columns(plans, values, rows, weight)
    row = [column for each in values for column in _measures(each, weighted=weight is not None)]
    return _Part([each.place for each in values], frame.agg(*row))


def _changed_extreme(plans: SignedPlans, value: TotalValue, signed: Signed) -> _Part:
    """By how often each value is there now: one row may have come and gone in the same changes."""
    frame = value_columns(plans, [value], signed.plan, signed.weight).where(counting(value))
    by_value = frame.groupBy(_argument(value).alias("value")).agg(F.sum(WEIGHT).alias(WEIGHT))
    beyond = F.max if value.function.kind is TotalKind.MOST else F.min
    whole = _as_whole(F.col("value"), value.function.type)
    came, went = (beyond(F.when(held, whole)) for held in (F.col(WEIGHT) > 0, F.col(WEIGHT) < 0))
    return _Part([value.place], by_value.agg(*_texts(F.sum(WEIGHT), F.lit(0), came, went)))


def value_columns(
    plans: SignedPlans,
    values: Sequence[TotalValue],
    rows: Plan,
    weight: Expression | None,
    keys: Sequence[Expression] = (),
) -> DataFrame:
    """What the functions take of these rows, with their `keys` as `k0`, `k1`, …"""
    catalyst = plans.catalyst
    columns = [catalyst.alias(each, f"k{number}") for number, each in enumerate(keys)]
    columns += [
        catalyst.alias(each, f"a{value.place}_{number}")
        for value in values
        for number, each in enumerate(value.arguments)
    ]
    columns += [
        catalyst.alias(value.function.condition, f"f{value.place}")
        for value in values
        if value.function.condition is not None
    ]
    if weight is not None:
        columns.append(catalyst.alias(weight, WEIGHT))
    return catalyst.frame(catalyst.project(columns, rows))


def _argument(value: TotalValue) -> Column:
    return F.col(f"a{value.place}_0")


def counting(value: TotalValue) -> Column:
    """Whether a row does."""
    there = [F.col(f"a{value.place}_{number}").isNotNull() for number in range(len(value.arguments))]
    if value.function.condition is not None:
        there.append(F.coalesce(F.col(f"f{value.place}"), F.lit(False)))
    return reduce(lambda one, other: one & other, there)


def _measures(value: TotalValue, *, weighted: bool) -> list[Column]:
    kind, extreme = value.function.kind, F.lit(None)
    count, total = count_and_sum(value, weighted=weighted)
    if kind.is_extreme:
        beyond = F.max if kind is TotalKind.MOST else F.min
        extreme = _as_whole(beyond(F.when(counting(value), _argument(value))), value.function.type)
    return _texts(count, total, extreme, F.lit(None))


def count_and_sum(value: TotalValue, *, weighted: bool) -> tuple[Column, Column]:
    """Of the rows that count: how many, and what their arguments add up to (0, where the function needs no sum)."""
    counts = counting(value)
    count = F.sum(F.when(counts, F.col(WEIGHT) if weighted else F.lit(1).cast("long")))
    if value.function.kind not in (TotalKind.SUM, TotalKind.AVERAGE):
        return count, F.lit(0)
    argument = _argument(value)
    exact = argument if isinstance(value.function.type, T.DecimalType) else argument.cast("decimal(19,0)")
    return count, F.sum(F.when(counts, exact * F.col(WEIGHT).cast("decimal(10,0)") if weighted else exact))


def _texts(*columns: Column) -> list[Column]:
    return [each.cast("string") for each in columns]


def _as_whole(value: Column, kind: T.DataType) -> Column:
    match kind:
        case T.DateType():
            return F.unix_date(value)
        case T.BooleanType():
            return value.cast("int")
        case _:
            return value


def _read(
    plans: SignedPlans, nodes: Sequence[PlanNode], parts: Callable[[SignedPlans, PlanNode], Iterable[_Part]]
) -> dict[PlanNode, list[TotalChange]]:
    """Of each of `nodes` what its functions have of the rows that `parts` gives."""
    found = {node: [TotalChange() for _ in node.functions] for node in nodes}
    frame = plans.planned((parts, *nodes), lambda: _listed(plans, [(node, [*parts(plans, node)]) for node in nodes]))
    for row in [] if frame is None else frame.collect():
        for name, texts in row.asDict().items():
            node, places = _named(name, nodes)
            for number, place in enumerate(places):
                found[node][place] = _change(node.functions[place], texts[_FIELDS * number : _FIELDS * (number + 1)])
    return found


def _change(function: TotalFunction, texts: Sequence[str | None]) -> TotalChange:
    count, *rest = texts
    total, came, went = (None if each is None else _unscaled(each, function.scale) for each in rest)
    return TotalChange(int(count or 0), total or 0, came, went)


def _listed(plans: SignedPlans, parts: Sequence[tuple[PlanNode, Sequence[_Part]]]) -> DataFrame | None:
    """One row, in which each part is an array of texts; its name says of which functions. None: there is no part."""
    catalyst = plans.catalyst
    named = [
        catalyst.alias(catalyst.scalar_subquery(catalyst.plan_of(_as_array(part.row))), _name(number, part.places))
        for number, (_, each) in enumerate(parts)
        for part in each
    ]
    return catalyst.frame(catalyst.project(named, catalyst.one_row(["1"]))) if named else None


def _name(node: int, places: Sequence[int]) -> str:
    return "_".join(map(str, [node, *places]))


def _named(name: str, nodes: Sequence[PlanNode]) -> tuple[PlanNode, Sequence[int]]:
    node, *places = map(int, name.split("_"))
    return nodes[node], places


def _as_array(row: DataFrame) -> DataFrame:
    numbered = row.toDF(*[f"t{number}" for number in range(len(row.columns))])
    return numbered.select(F.array(*numbered.columns))


def _unscaled(text: str, scale: int) -> int:
    return int(Decimal(text).scaleb(scale, _DIGITS))
