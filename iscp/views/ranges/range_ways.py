"""Compute a query's rows of ranges of one of its tables: what is staged of each, and what is made of that.

Groups of parts of a query's rows, and all groups made of these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from iscp.algebra.algebra import TableRows
from iscp.delta.rows.net_changes import is_one_of
from iscp.model.query_plan import NotRanged, find_ranged
from iscp.model.values.watermark import Totals
from iscp.views.catalyst.aggregates import AggregateFunction, finished_rows, plain_types, read_functions
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.group_changes import (
    GroupSums,
    all_sums,
    all_totals,
    combined_sums,
    part_of_totals,
    value_columns,
)
from iscp.views.changes.spark_plans import SparkPlans

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


class RangeWay(StrEnum):
    """The kind of rows that are staged of a range: ROWS of the result; the states of its rows in GROUPS; SUMS of the
    groups that are stored beside the target; TOTALS that are stored in its commits.
    """

    ROWS = "rows"
    GROUPS = "groups"
    SUMS = "sums"
    TOTALS = "totals"


@dataclass
class GivenRows:
    """The known parts of a query before any of it is computed: rows of nodes, totals, and stored groups."""

    rows: dict[PlanNode, DataFrame] = field(default_factory=dict)
    totals: dict[PlanNode, Totals] = field(default_factory=dict)
    sums: DataFrame | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RangedRows:
    """A way to stage a range: the rows of `node`, or what they come to. `own` are the nodes that are the table read by
    ranges.
    """

    way: RangeWay
    node: PlanNode
    own: tuple[PlanNode, ...]
    groups: PartialGroups | None = None
    sums: GroupSums | None = None

    def part(self, plans: SparkPlans) -> DataFrame:
        """Return what is staged for the rows that `plans` has of the table."""
        match self.way:
            case RangeWay.ROWS:
                return plans.result(self.node, TableRows.NEW)
            case RangeWay.GROUPS:
                assert self.groups is not None
                return part_of_groups(plans, self.groups)
            case RangeWay.SUMS:
                assert self.sums is not None
                return all_sums(plans, self.sums)
            case RangeWay.TOTALS:
                return part_of_totals(plans, self.node)
            case _:
                assert_never(self.way)

    def give(self, plans: SparkPlans, parts: DataFrame, given: GivenRows) -> None:
        """Make the parts of all ranges known, so that nothing is read of the table; not for ROWS, which are all."""
        match self.way:
            case RangeWay.ROWS:
                given.rows[self.node] = parts
            case RangeWay.GROUPS:
                assert self.groups is not None
                given.rows[self.node] = all_groups(plans, self.groups, parts)
            case RangeWay.SUMS:
                assert self.sums is not None
                given.sums = combined_sums(self.sums, parts)
            case RangeWay.TOTALS:
                given.totals[self.node] = all_totals(self.node, _texts(parts))
            case _:
                assert_never(self.way)


def find_ranged_rows(
    catalyst: Catalyst, root: PlanNode, stored: PlanNode | None, sums: GroupSums | None, own: Collection[str]
) -> RangedRows | NotRanged:
    """Return how the query is computed by ranges, or why not. `stored` and `sums` are those of AnalyzedQuery, `own` are
    the names of the table in the query.
    """
    found = find_ranged(root.operator, own)
    if isinstance(found, NotRanged):
        return found
    node = root if found.groups is None else next(each for each in root.walk() if each.operator is found.groups)
    tables = tuple(each for each in node.walk() if each.operator.table in own)
    if stored is not None and not any(each is node for each in stored.walk()):
        return NotRanged(f"all rows of {stored.operator.title} are kept")
    if found.groups is None:
        return RangedRows(RangeWay.ROWS, node, tables)
    if sums is not None and sums.node is node:
        return RangedRows(RangeWay.SUMS, node, tables, sums=sums)
    if node.operator.adds_up:
        if any(each.distinct for each in node.functions):
            return NotRanged(f"{node.operator.title} counts distinct values")
        return RangedRows(RangeWay.TOTALS, node, tables)
    groups = find_partial_groups(catalyst, node)
    if groups is None:
        return NotRanged(f"{node.operator.title} does not follow from what its functions come to for parts of the rows")
    return RangedRows(RangeWay.GROUPS, node, tables, groups=groups)


def _texts(parts: DataFrame) -> Sequence[Sequence[str | None]]:
    return [tuple(row) for row in parts.collect()]
