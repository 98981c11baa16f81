"""Groups of parts of a query's rows, and all groups made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.column_kinds import is_one_of
from iscp.core.algebra.algebra import TableRows
from iscp.views.catalyst.aggregates import AggregateFunction, finished_rows, plain_types, read_functions
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.spark_plans import SparkPlans
from iscp.views.changes.total_reading import value_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True, eq=False)
class PartialGroups:
    """Groups of parts: `node` has them, by its `keys` if it has any. `functions` are in the order of its columns."""

    node: PlanNode
    functions: tuple[AggregateFunction, ...]

    @property
    def keys(self) -> list[str]:
        return [f"k{number}" for number in range(len(_keys_of(self.node)))]


def find_partial_groups(catalyst: Catalyst, node: PlanNode) -> PartialGroups | None:
    """Return the groups, or None if groups of parts do not say what all groups are."""
    functions = read_functions(catalyst, node.plan, spark_own=False)
    if functions is None or not all(each.follows_parts for each in functions):
        return None
    keyed = all(
        catalyst.is_a(each, "AttributeReference") and is_one_of(catalyst.type_of(each), plain_types())
        for each in _keys_of(node)
    )
    counted = bool(functions or _keys_of(node))  # one row without anything of the rows below is no group of any part
    return PartialGroups(node, functions) if keyed and counted else None


def part_of_groups(plans: SparkPlans, groups: PartialGroups) -> DataFrame:
    """Return the keys as `k0`, …, and the state of each function for the rows that `plans` has."""
    below = plans.rows(groups.node.inputs[0], TableRows.NEW)
    rows = value_columns(plans, groups.functions, below, None, _keys_of(groups.node))
    return _grouped(rows, groups.keys, [column for each in groups.functions for column in each.part()])


def all_groups(plans: SparkPlans, groups: PartialGroups, parts: DataFrame) -> DataFrame:
    """Return the columns of the groups' node, made of all `parts`."""
    catalyst, node = plans.catalyst, groups.node
    merged = _grouped(parts, groups.keys, [column for each in groups.functions for column in each.merged()])
    rows = lambda columns: catalyst.plan_of(merged.selectExpr(*columns))  # noqa: E731
    states, keys = [each.merged_names() for each in groups.functions], zip(groups.keys, _keys_of(node), strict=True)
    return catalyst.frame(finished_rows(catalyst, node.plan, groups.functions, states, rows, [*keys]))


def _grouped(rows: DataFrame, keys: list[str], measures: list[Column]) -> DataFrame:
    if not measures:
        return rows.select(*keys).distinct()
    return rows.groupBy(*keys).agg(*measures)


def _keys_of(node: PlanNode) -> tuple[Expression, ...]:
    return node.keys[0] if node.keys else ()
