"""Groups of parts of a query's rows, and all groups made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.total_functions import aggregates_of, finished
from iscp.views.changes.signed_plans import SignedPlans
from iscp.views.changes.signed_rows import At
from iscp.views.ranges.partial_functions import (
    PartialFunction,
    is_plain,
    last_of_parts,
    partial_function,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True, eq=False)
class PartialGroups:
    """`node`: the groups, by its `keys` if it has any. `functions`: in the order in which they stand in its columns."""

    node: PlanNode
    functions: tuple[PartialFunction, ...]

    @property
    def keys(self) -> list[str]:
        return [f"k{number}" for number in range(len(_keys_of(self.node)))]


def find_partial_groups(catalyst: Catalyst, node: PlanNode) -> PartialGroups | None:
    """None where groups of parts do not say what all groups are."""
    columns = catalyst.items(node.plan.aggregateExpressions())
    aggregates = [each for column in columns for each in aggregates_of(catalyst, column)]
    found = [partial_function(catalyst, place, each) for place, each in enumerate(aggregates)]
    functions = tuple(each for each in found if each is not None)
    keyed = all(
        catalyst.is_a(each, "AttributeReference") and is_plain(catalyst.type_of(each)) for each in _keys_of(node)
    )
    counted = bool(found or _keys_of(node))  # one row without anything of the rows below is no group of any part
    return PartialGroups(node, functions) if keyed and counted and len(functions) == len(found) else None


def part_of_groups(plans: SignedPlans, groups: PartialGroups) -> DataFrame:
    """`k0`, … the keys, and what each function comes to for the rows that `plans` has."""
    catalyst = plans.catalyst
    columns = [catalyst.alias(each, name) for each, name in zip(_keys_of(groups.node), groups.keys, strict=True)]
    for each in groups.functions:
        columns += each.inputs(catalyst)
    rows = catalyst.frame(catalyst.project(columns, plans.rows(groups.node.inputs[0], At.NEW)))
    return _grouped(rows, groups.keys, [column for each in groups.functions for column in each.partials()])


def all_groups(plans: SignedPlans, groups: PartialGroups, parts: DataFrame) -> DataFrame:
    """The columns of the groups' node, of all `parts`."""
    catalyst, node = plans.catalyst, groups.node
    merged = _grouped(parts, groups.keys, [column for each in groups.functions for column in each.merged()])
    columns: list[Column] = [F.col(each) for each in groups.keys]
    wanted: list[Expression] = list(_keys_of(node))
    for each in groups.functions:
        attributes = each.held(catalyst)
        columns += each.buffers(attributes)
        wanted += attributes
    held = merged.select(*[column.alias(f"b{number}") for number, column in enumerate(columns)])
    rows = catalyst.renamed_as(catalyst.plan_of(held), wanted)
    expressions = catalyst.items(node.plan.aggregateExpressions())
    return catalyst.frame(catalyst.project([finished(catalyst, each, last_of_parts) for each in expressions], rows))


def _grouped(rows: DataFrame, keys: list[str], measures: list[Column]) -> DataFrame:
    if not measures:
        return rows.select(*keys).distinct()
    return rows.groupBy(*keys).agg(*measures)


def _keys_of(node: PlanNode) -> tuple[Expression, ...]:
    return node.keys[0] if node.keys else ()
