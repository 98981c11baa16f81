"""Compute the totals of a query's aggregates, from its changed rows or from all rows.

One job of Spark finds all that one can find, as values of subqueries, of which Spark merges those that read the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import TYPE_CHECKING

from iscp.adapters.system.late_imports import F, T
from iscp.core.algebra.algebra import TableRows
from iscp.core.values.totals import AggregateKind, Total, TotalChange, Totals, changed_total, merged_total
from iscp.views.catalyst.aggregates import AggregateFunction
from iscp.views.catalyst.catalyst import Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.known_totals import adding_up
from iscp.views.changes.signed_rows import WEIGHT
from iscp.views.changes.spark_plans import SparkPlans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DIGITS = Context(prec=100)
_FIELDS = 4


def learn_totals(plans: SparkPlans, root: PlanNode) -> None:
    """Fill `plans.totals.after` with the totals that are not there yet."""
    for level in _by_depth(root):
        lost = nodes = [each for each in level if each not in plans.totals]
        if plans.totals.before:
            changes = _read(plans, nodes, _changed_parts)
            lost = [node for node in nodes if not _follow(plans, node, changes[node])]
        if lost:
            for node, found in _read(plans, lost, _all_parts).items():
                plans.totals.after[node] = tuple(map(_total, found))


def _by_depth(root: PlanNode) -> list[list[PlanNode]]:
    """Return the aggregates by levels, those first that are made of no others."""
    depths: dict[PlanNode, int] = {}
    for node in adding_up(root):
        within = [depths[each] for each in node.walk() if each in depths]
        depths[node] = max(within, default=-1) + 1
    return [[node for node, depth in depths.items() if depth == each] for each in sorted({*depths.values()})]


def _follow(plans: SparkPlans, node: PlanNode, changes: Sequence[TotalChange]) -> bool:
    before = plans.totals.before[node]
    triples = zip(node.functions, before, changes, strict=True)
    found = [changed_total(function.kind, total, change) for function, total, change in triples]
    known = tuple(each for each in found if each is not None)
    if len(known) < len(found):
        return False
    plans.totals.after[node] = known
    return True


@dataclass(frozen=True, slots=True)
class _Part:
    """The values of the functions at `places` of an aggregate for some rows: one row, FIELDS columns each."""

    places: Sequence[int]
    row: DataFrame


def part_of_totals(plans: SparkPlans, node: PlanNode) -> DataFrame:
    """Return one row of texts: the values of an aggregate without distinct values for the rows that `plans` has."""
    row = _part(plans, node.functions, plans.rows(node.inputs[0], TableRows.NEW), None).row
    return row.toDF(*[f"t{place}" for place in range(len(row.columns))])


def all_totals(node: PlanNode, parts: Sequence[Sequence[str | None]]) -> Totals:
    """Return the totals, made of the rows that `part_of_totals` gave for each part."""
    return tuple(
        merged_total(function.kind, [_total(_change(function, row[_FIELDS * place :][:_FIELDS])) for row in parts])
        for place, function in enumerate(node.functions)
    )


def _total(found: TotalChange) -> Total:
    """Return the total of rows that all came."""
    return Total(found.count, found.sum, found.came)


def _all_parts(plans: SparkPlans, node: PlanNode) -> Iterator[_Part]:
    rows = plans.rows(node.inputs[0], TableRows.NEW)
    if plain := [each for each in node.functions if not each.distinct]:
        yield _part(plans, plain, rows, None)
    for each in node.functions:
        if each.distinct:
            apart = plans.catalyst.distinct(each.arguments[0], rows)
            yield _part(plans, [_of(each, plans.catalyst.output(apart))], apart, None)


def _of(function: AggregateFunction, arguments: Sequence[Expression]) -> AggregateFunction:
    return replace(function, arguments=tuple(arguments))


def _changed_parts(plans: SparkPlans, node: PlanNode) -> Iterator[_Part]:
    (below,) = node.inputs
    signed = plans.signed(below)
    if signed is None:
        return
    plain = [each for each in node.functions if not (each.distinct or each.kind.is_extreme)]
    if plain:
        yield _part(plans, plain, *signed)
    for each in node.functions:
        if each.distinct:
            yield from _changed_distinct(plans, below, each)
        elif each.kind.is_extreme:
            yield _changed_extreme(plans, each, *signed)


def _changed_distinct(plans: SparkPlans, below: PlanNode, function: AggregateFunction) -> Iterator[_Part]:
    """Yield what distinct values that are there since, or are no more, change."""
    if (signed := plans.signed_values(below, function.arguments[0])) is not None:
        rows, value, weight = signed
        yield _part(plans, [_of(function, [value])], rows, weight)


def _part(plans: SparkPlans, functions: Sequence[AggregateFunction], rows: Plan, weight: Expression | None) -> _Part:
    frame = value_columns(plans, functions, rows, weight)
    row = [column for each in functions for column in _measures(each, weighted=weight is not None)]
    return _Part([each.place for each in functions], frame.agg(*row))


def _changed_extreme(plans: SparkPlans, function: AggregateFunction, rows: Plan, weight: Expression) -> _Part:
    """Return how an extreme changes, by the number of times that each value is there now.

    One row may have come and gone in the same changes.
    """
    frame = value_columns(plans, [function], rows, weight).where(function.counting)
    by_value = frame.groupBy(F.col(f"a{function.place}_0").alias("value")).agg(F.sum(WEIGHT).alias(WEIGHT))
    beyond = F.max if function.kind is AggregateKind.MOST else F.min
    whole = _as_whole(F.col("value"), function.type)
    came, went = (beyond(F.when(condition, whole)) for condition in (F.col(WEIGHT) > 0, F.col(WEIGHT) < 0))
    return _Part([function.place], by_value.agg(*_texts(F.sum(WEIGHT), F.lit(0), came, went)))


def value_columns(
    plans: SparkPlans,
    functions: Sequence[AggregateFunction],
    rows: Plan,
    weight: Expression | None,
    keys: Sequence[Expression] = (),
) -> DataFrame:
    """Return the columns that the functions take of these rows, with their `keys` as `k0`, `k1`, …"""
    catalyst = plans.catalyst
    columns = [catalyst.alias(each, f"k{number}") for number, each in enumerate(keys)]
    columns += [column for each in functions for column in each.inputs(catalyst)]
    if weight is not None:
        columns.append(catalyst.alias(weight, WEIGHT))
    return catalyst.frame(catalyst.project(columns, rows))


def _measures(function: AggregateFunction, *, weighted: bool) -> list[Column]:
    count, total = function.count_and_sum(weighted=weighted)
    extreme = _as_whole(function.state()[0], function.type) if function.kind.is_extreme else F.lit(None)
    return _texts(count, total, extreme, F.lit(None))


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
    plans: SparkPlans, nodes: Sequence[PlanNode], parts: Callable[[SparkPlans, PlanNode], Iterable[_Part]]
) -> dict[PlanNode, list[TotalChange]]:
    """Return for each of `nodes` what its functions have of the rows that `parts` gives."""
    found = {node: [TotalChange() for _ in node.functions] for node in nodes}
    frame = _listed(plans, [(node, [*parts(plans, node)]) for node in nodes])
    for row in [] if frame is None else frame.collect():
        for name, texts in row.asDict().items():
            node, places = _named(name, nodes)
            for number, place in enumerate(places):
                found[node][place] = _change(node.functions[place], texts[_FIELDS * number : _FIELDS * (number + 1)])
    return found


def _change(function: AggregateFunction, texts: Sequence[str | None]) -> TotalChange:
    count, *rest = texts
    total, came, went = (None if each is None else _unscaled(each, function.scale) for each in rest)
    return TotalChange(int(count or 0), total or 0, came, went)


def _listed(plans: SparkPlans, parts: Sequence[tuple[PlanNode, Sequence[_Part]]]) -> DataFrame | None:
    """Return one row, in which each part is an array of texts whose name says its functions, or None if there is no
    part.
    """
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
