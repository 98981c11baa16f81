"""Changes of groups by Spark: the totals of a query's aggregates without GROUP BY, the groups or partitions at the top
of a query that changed, and groups that are stored as counts and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from iscp.algebra.algebra import TableRows
from iscp.algebra.change_plan import GROUP_ROWS, key_columns, number_names
from iscp.delta.rows.net_changes import is_one_of, same_values, whole_types
from iscp.delta.rows.row_search import LACKING, row_codes
from iscp.model.query_plan import OperatorKind
from iscp.model.rows.key_ranges import Op
from iscp.model.sql.sql_names import OP
from iscp.model.values.watermark import AggregateKind, Total, TotalChange, Totals, changed_total, merged_total
from iscp.ports.source import ChangesUnavailableError
from iscp.spark.spark_frames import frame_of_arrow
from iscp.system.late_imports import F, T
from iscp.views.catalyst.aggregates import AggregateFunction, changing_functions, finished_rows, stored_groups
from iscp.views.catalyst.algebra_reader import ResultKeys
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, collected
from iscp.views.changes.spark_plans import SparkPlans, TouchedFrames, adding_up

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- totals of a query's aggregates -----------------------------------------------------------------------------------
# Totals are computed from the query's changed rows or from all rows. One job of Spark finds as many of them as one job
# can, as values of subqueries, of which Spark merges those that read the same rows.

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


# --- changed groups at the top of a query -----------------------------------------------------------------------------
# Groups or partitions that changed are found with their rows as they are now.


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Keys that changed rows have or had, by the names of the result's columns, and all of its rows that have them."""

    keys: pa.Table
    rows: pa.Table


def changed_groups(plans: SparkPlans, root: PlanNode, keys: ResultKeys) -> ChangedRows | None:
    """Return the rows of all groups that changed rows have or had, as `c0`, `c1`, … with OP, or None if no row has
    changed.

    OP is `u` for a group as it is now and `d` for one that is gone, of which only the columns of the keys count.
    """
    touched = plans.touched(root)
    if touched is None:
        return None
    if (found := _few(plans, touched)) is not None:
        arrow = with_op(found)
        return ChangedRows(touched.rows, len(arrow), arrow) if len(arrow) else None
    names = [f"c{place}" for place in keys.places]
    frame = _with_op(touched.keys, plans.cache(touched.rows), names)  # read twice, and of all rows of the tables
    rows = frame.count()
    return ChangedRows(frame, rows) if rows else None


def collected_keys(plans: SparkPlans, root: PlanNode) -> KeyRows | None:
    """Return the changed keys and their rows as tables in this process, with columns `c0`, `c1`, ….

    The result is None if there are too many, or some that Arrow cannot represent.
    """
    touched = plans.touched(root)
    return None if touched is None else _few(plans, touched)


def _few(plans: SparkPlans, touched: TouchedFrames) -> KeyRows | None:
    if touched.arrow is None:
        return None
    rows = collected(touched.rows, plans.collected_max)
    return None if rows is None else KeyRows(touched.arrow.rename_columns(touched.keys.columns), rows)


def with_op(touched: KeyRows) -> pa.Table:
    """Return the rows of keys of which each has one row at most, with OP: those that are, and keys that are gone."""
    schema = pa.schema(
        [each.with_nullable(True) for each in touched.rows.schema]
    )  # of what is gone there are keys alone
    rows = touched.rows.cast(schema)
    keys, there = row_codes(touched.keys, rows.select(touched.keys.schema.names))
    gone = touched.keys.filter(pa.array(~np.isin(keys, there)))
    parts = [(rows, Op.UPDATE), (gone, Op.DELETE)]
    return pa.concat_tables(
        [each.append_column(OP, pa.repeat(pa.scalar(op.value), len(each))) for each, op in parts],
        promote_options="default",
    )


def _with_op(keys: DataFrame, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the same of frames. `names` are those of the keys."""
    same = [F.col(f"n.{name}").eqNullSafe(F.col(f"t.{name}")) for name in names]
    gone = keys.alias("t").join(rows.alias("n"), same, "left_anti")
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    columns = [(F.col(name) if name in names else F.lit(None)).cast(kinds[name]).alias(name) for name in rows.columns]
    removed = gone.select(*columns, F.lit(Op.DELETE.value).alias(OP))
    return rows.withColumn(OP, F.lit(Op.UPDATE.value)).unionAll(removed)


# --- groups that are stored as counts and sums ------------------------------------------------------------------------
# Groups below a LIMIT may be stored so: changed rows alone say how these counts and sums change, without old rows. A
# row is stored for each group: its keys, how many rows it has, and for each function how many of them count and what
# they add up to. Sums are those of exact numbers, so that nothing drifts. What is above the groups, up to the result,
# is computed of them.

_ABOVE = (
    OperatorKind.LIMIT,
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.SORT,
    OperatorKind.WINDOW,
    OperatorKind.AGGREGATE,
)


@dataclass(frozen=True, slots=True, eq=False)
class GroupSums:
    """Groups (`node`) with their `functions`, in the order of its columns."""

    node: PlanNode
    functions: tuple[AggregateFunction, ...]

    @property
    def keys(self) -> list[str]:
        return key_columns(len(self.node.keys[0]))

    @property
    def columns(self) -> list[str]:
        return [*self.keys, *self.measures]

    @property
    def measures(self) -> list[str]:
        return number_names(len(self.functions))


def find_group_sums(catalyst: Catalyst, root: PlanNode, stored: PlanNode | None) -> GroupSums | None:
    """Return the lowest groups on the way down from the result that can be stored so, or None.

    `stored` is the input that would be stored else.
    """
    found, node = None, root
    while stored is not None and node.operator.kind in _ABOVE and not (node.clock or node.operator.adds_up):
        if node.keys and node.operator.kind is OperatorKind.AGGREGATE and not node.subqueries:
            found = _group_sums(catalyst, node) or found
        if node.subqueries and found is not None:
            break
        (node,) = node.inputs
    return found


def find_sums_at_top(catalyst: Catalyst, root: PlanNode) -> GroupSums | None:
    """Return the groups at the top of a query that can be stored so, or None."""
    node = root
    while node.operator.kind in (OperatorKind.PROJECT, OperatorKind.FILTER, OperatorKind.SORT):
        (node,) = node.inputs
    if node.operator.kind is not OperatorKind.AGGREGATE or not node.keys:
        return None
    return _group_sums(catalyst, node)


def _group_sums(catalyst: Catalyst, node: PlanNode) -> GroupSums | None:
    functions = changing_functions(catalyst, node.plan)
    if functions is None or any(each.distinct or each.kind.is_extreme for each in functions):
        return None
    kinds = (*whole_types(), T.StringType, T.DateType, T.BooleanType, T.DecimalType)
    keyed = all(
        catalyst.is_a(each, "AttributeReference") and is_one_of(catalyst.type_of(each), kinds) for each in node.keys[0]
    )
    return GroupSums(node, functions) if keyed else None


def all_sums(plans: SparkPlans, sums: GroupSums) -> DataFrame:
    """Return the sums of all rows."""
    return _summed(plans, sums, plans.rows(sums.node.inputs[0], TableRows.NEW), None)


def combined_sums(sums: GroupSums, parts: DataFrame) -> DataFrame:
    """Return the sums of all rows, made of those that `all_sums` gave for each part of them."""
    kinds = {each.name: each.dataType for each in parts.schema.fields}
    return parts.groupBy(sums.keys).agg(*[F.sum(each).cast(kinds[each]).alias(each) for each in sums.measures])


@dataclass(frozen=True, slots=True)
class StoredSums:
    """The stored sums: `frame` gives them all, `find` the rows with one of these keys, and perhaps others."""

    frame: Callable[[], DataFrame]
    find: Callable[[pa.Table], pa.Table]


def changed_sums(plans: SparkPlans, sums: GroupSums, stored: StoredSums) -> ChangedRows | None:
    """Return the groups that changed as they are now, with OP, or None if none has; `stored` are the former ones.

    Raises ChangesUnavailableError if fewer rows were stored than go.
    """
    moved = _changes_of_sums(plans, sums)
    if moved is None:
        return None
    few = collected(moved, plans.collected_max) if plans.collected_max else None
    if few is not None and not len(few):
        return None
    if few is None:
        changes, before = plans.cache(moved), stored.frame()
    else:
        tables = few, stored.find(few.select(sums.keys))
        changes, before = (frame_of_arrow(moved.sparkSession, each) for each in tables)
    now = plans.compute(_sums_now(sums, before, changes), plans.collected_max if few is not None else 0)
    if now is not None and not now.to_frame().where(F.col(GROUP_ROWS) < 0).isEmpty():
        raise ChangesUnavailableError(LACKING)
    return now


def _changes_of_sums(plans: SparkPlans, sums: GroupSums) -> DataFrame | None:
    signed = plans.signed(sums.node.inputs[0])
    if signed is None:
        return None
    moved = _summed(plans, sums, *signed)
    return moved.where(reduce(lambda one, other: one | other, [F.col(name) != 0 for name in sums.measures]))


def _sums_now(sums: GroupSums, stored: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the changed groups with their new sums.

    They are grouped rather than joined: grouping takes two nulls in keys for one, a join does not.
    """
    same = same_values("h", "m", sums.keys)
    touched = stored.alias("h").join(F.broadcast(changes.select(sums.keys).alias("m")), same, "left_semi")
    added = [F.sum(name).alias(name) for name in sums.measures]
    now = touched.select(sums.columns).unionAll(changes.select(sums.columns)).groupBy(sums.keys).agg(*added)
    op = F.when(F.col(GROUP_ROWS) == 0, Op.DELETE.value).otherwise(Op.UPDATE.value)
    return now.withColumn(OP, op)


def sums_finished(plans: SparkPlans, sums: GroupSums, root: PlanNode, stored: DataFrame) -> DataFrame:
    """Return all rows of the query."""
    catalyst, node = plans.catalyst, sums.node
    states = [each.whole_state(f"c{each.place}", f"s{each.place}") for each in sums.functions]
    rows = lambda columns: catalyst.plan_of(stored.selectExpr(*columns))  # noqa: E731
    keys = [*zip(sums.keys, node.keys[0], strict=True)]
    groups = catalyst.frame(finished_rows(catalyst, node.plan, sums.functions, states, rows, keys))
    return plans.result_over(root, node, groups)


def _summed(plans: SparkPlans, sums: GroupSums, rows: Plan, weight: Expression | None) -> DataFrame:
    frame = value_columns(plans, sums.functions, rows, weight, sums.node.keys[0])
    number = F.sum(F.lit(1).cast("long") if weight is None else F.col(WEIGHT))
    found = [(*each.count_and_sum(weighted=weight is not None), f"decimal(38,{each.scale})") for each in sums.functions]
    return stored_groups(frame, sums.keys, number, found)
