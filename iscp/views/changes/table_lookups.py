"""Find rows of tables by values that are known, where else a plan reads all of a table.

Spark reads the needed columns of all rows before it joins them with a few keys. Rows whose columns have one of these
values are found in the data files without Spark, and stand in the plan instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.column_kinds import is_one_of, searched_types
from iscp.core.query.query_plan import OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.column_bounds import TableBounds
from iscp.views.changes.plan_leaf import At, Bound, Bounds, CollectedColumn, Leaf, TableLookup
from iscp.views.changes.signed_rows import Signed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from iscp.views.changes.signed_plans import SignedPlans


def bounds_of(catalyst: Catalyst, node: PlanNode, leaf: Leaf) -> Bounds:
    """Return the bounds of the node's columns, where rows collected for the leaf have these, in their order."""
    return {each: (CollectedColumn(leaf, place, node),) for place, each in enumerate(catalyst.ids(node.plan))}


def bounds_of_table(plans: SignedPlans, node: PlanNode, leaf: Leaf) -> Bounds:
    """Return the bounds of a table's columns that rows collected for the leaf have, by their names; empty if there are
    none.
    """
    rows = plans.leaves.arrow(leaf)
    places = {} if rows is None else {name: place for place, name in enumerate(rows.schema.names)}
    named = zip(plans.catalyst.names(node.plan), plans.catalyst.ids(node.plan), strict=True)
    return {key: (CollectedColumn(leaf, places[name], node),) for name, key in named if name in places}


def bounds_across(catalyst: Catalyst, node: PlanNode, place: int, bounds: Bounds) -> Bounds:
    """Return the bounds of the other side of a join, where this side's columns are within the bounds."""
    known = [_bound(catalyst, each, bounds) for each in node.keys[place]] if node.keys and bounds else []
    return by_columns(catalyst, node.keys[1 - place], known) if known else {}


def united_bounds(catalyst: Catalyst, node: PlanNode, parts: Sequence[tuple[PlanNode, Signed]]) -> Bounds:
    """Return the bounds of the node's columns, where its rows are those of all parts: nodes with the same columns, in
    order.
    """
    if not parts or not all(signed.bounds for _, signed in parts):
        return {}
    by_part = [[signed.bounds.get(each) for each in catalyst.ids(part.plan)] for part, signed in parts]
    pairs = zip(catalyst.ids(node.plan), map(_either, zip(*by_part, strict=True)), strict=True)
    return {each: bound for each, bound in pairs if bound is not None}


def key_bounds(plans: SignedPlans, node: PlanNode, changed: Mapping[int, DataFrame]) -> list[Bound | None]:
    """Return the bounds of each key by which the node works, where only keys in changed rows of its inputs count."""
    found: list[list[Bound | None]] = []
    for place, frame in changed.items():
        leaf = plans.leaves.computed_as(frame)
        bounds = {} if leaf is None else bounds_of(plans.catalyst, node.inputs[place], leaf)
        found.append([_bound(plans.catalyst, each, bounds) for each in node.keys[place]])
    return [_either(each) for each in zip(*found, strict=True)]


def _bound(catalyst: Catalyst, key: Expression, bounds: Bounds) -> Bound | None:
    return bounds.get(catalyst.id_of(key)) if catalyst.is_a(key, "AttributeReference") else None


def _either(bounds: Sequence[Bound | None]) -> Bound | None:
    known = [each for each in bounds if each is not None]
    return sum(known, ()) if len(known) == len(bounds) else None


def by_columns(catalyst: Catalyst, keys: Sequence[Expression], bounds: Sequence[Bound | None]) -> Bounds:
    """Return the bounds of those keys that are columns."""
    pairs = ((each, bound) for each, bound in zip(keys, bounds, strict=True) if bound is not None)
    return {catalyst.id_of(each): bound for each, bound in pairs if catalyst.is_a(each, "AttributeReference")}


def look_up(plans: SignedPlans, node: PlanNode, at: At, bounds: Bounds) -> LookedUp:
    """Look up the rows of tables below `node` that may be part of one of its rows within the bounds.

    Tables for which that is not known, or that have too many such rows, are left out.
    """
    found, tried = LookedUp({}, TableBounds(plans.catalyst)), set[PlanNode]()
    waiting = bool(bounds)
    while waiting:
        waiting = False
        for table, own in [*found.bounds.below(node, bounds)]:
            if table not in tried:
                tried.add(table)
                waiting |= found.look_up_table(plans, table, at, own)
    return found


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The leaves that stand for tables, and bounds of columns of these."""

    leaves: dict[PlanNode, Leaf]
    bounds: TableBounds

    def cover(self, node: PlanNode) -> bool:
        """Return whether all tables below the node are among them."""
        return all(each in self.leaves for each in node.walk() if each.operator.kind is OperatorKind.TABLE)

    def look_up_table(self, plans: SignedPlans, node: PlanNode, at: At, own: Bounds) -> bool:
        """Look up rows of a table, and return whether that was possible."""
        leaf = _leaf(plans, node, at, own)
        if leaf is None or plans.leaves.of(leaf) is None:
            return False
        self.bounds.tables[node] = bounds_of_table(plans, node, leaf)
        self.leaves[node] = leaf
        return True


def _leaf(plans: SignedPlans, node: PlanNode, at: At, own: Bounds) -> Leaf | None:
    """Return the leaf for the rows of a table within the bounds, or None if no column can be searched for."""
    table = plans.tables[node.operator.table]
    if table.find is None:
        return None
    by_rows: dict[tuple[tuple[Leaf, PlanNode], ...], dict[str, tuple[int, ...]]] = {}
    output = node.plan.output()
    for place, each in enumerate(plans.catalyst.ids(node.plan)):
        if each in own and is_one_of(plans.catalyst.type_of(output.apply(place)), searched_types()):
            rows = tuple((column.leaf, column.row_of) for column in own[each])
            by_rows.setdefault(rows, {})[str(output.apply(place).name())] = tuple(column.place for column in own[each])
    if not by_rows:
        return None
    rows, columns = max(by_rows.items(), key=lambda each: len(each[1]))  # one row has values of all of them
    collected_rows = zip(rows, zip(*columns.values(), strict=True), strict=True)
    sought = tuple((leaf, places) for (leaf, _), places in collected_rows)
    has_changed = table.changes() is not None
    return Leaf(node.operator.table, at if has_changed else At.NEW, TableLookup((*columns,), sought))
