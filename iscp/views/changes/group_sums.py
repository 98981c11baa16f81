"""Groups below a LIMIT that are stored as counts and sums: changed rows alone say how these change, without old rows.

A row is stored for each group: its keys, how many rows it has, and for each function how many of them count and what
they add up to. Sums are those of exact numbers, so that nothing drifts. What is above the groups, up to the result, is
computed of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.column_kinds import is_one_of, same_values, whole_types
from iscp.adapters.delta.rows.row_search import LACKING
from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.system.late_imports import F, T
from iscp.core.algebra.algebra import TableRows
from iscp.core.algebra.stored_sums import GROUP_ROWS, key_columns, number_names
from iscp.core.query.query_plan import OperatorKind
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP
from iscp.ports.source import ChangesUnavailableError
from iscp.views.catalyst.aggregates import AggregateFunction, changing_functions, finished_rows, stored_groups
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, collected
from iscp.views.changes.spark_plans import SparkPlans
from iscp.views.changes.total_reading import value_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
