"""Find which rows of tables have a part in an operator's rows, where some of its columns only have known values.

What is known of a column goes down through what passes rows on under their ids, through groups and partitions that the
column is one of, and over the equality of a join to the other side; and from a table whose rows are known by then on to
those that it is joined with (reduction by semi-joins, after Bernstein and Chiu, 1981).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from iscp.core.query.query_plan import JoinSide, OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Columns, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.plan_leaf import Bound, Bounds


def renamed_bounds(catalyst: Catalyst, project: Plan, bounds: Bounds) -> Bounds:
    """Return the bounds of the columns of a projection, given those of its input."""
    passed = catalyst.passed(project.projectList()) if bounds else {}
    return {outer: bounds[inner] for outer, inner in passed.items() if inner in bounds}


@dataclass
class TableBounds:
    """Bounds of tables below operators of one query. `tables` are those whose rows are known, with the bounds of their
    columns.
    """

    catalyst: Catalyst
    tables: dict[PlanNode, Bounds] = field(default_factory=dict)
    _ids: dict[PlanNode, list[int]] = field(default_factory=dict)
    _keys: dict[PlanNode, list[list[int | None]]] = field(default_factory=dict)

    def below(self, node: PlanNode, bounds: Bounds) -> Iterator[tuple[PlanNode, Bounds]]:
        """Yield tables with bounds: only their rows within these have a part in the node's rows within `bounds`."""
        kind = node.operator.kind
        if kind is OperatorKind.TABLE:
            own = {each: bounds[each] for each in self._output(node) if each in bounds}
            if own:
                yield node, own
            return
        for each, within in zip(node.inputs, self._of_inputs(node, bounds), strict=True):
            yield from self.below(each, within)

    def within(self, node: PlanNode) -> Bounds:
        """Return the bounds of the columns of the node's rows that follow from tables whose rows are known."""
        found: dict[int, Bound] = {}
        for each in self._whole_inputs(node):
            found |= self.within(each)
        return self.tables.get(node, {}) if node.operator.kind is OperatorKind.TABLE else found

    def _of_inputs(self, node: PlanNode, bounds: Bounds) -> Sequence[Bounds]:
        match node.operator.kind:
            case OperatorKind.FILTER | OperatorKind.SORT | OperatorKind.GENERATE:
                return [bounds]
            case OperatorKind.PROJECT:
                return [self._before(node.plan.projectList(), bounds)]
            case OperatorKind.AGGREGATE:
                return [self._of_keys(node, self._before(node.plan.aggregateExpressions(), bounds))]
            case OperatorKind.WINDOW:
                return [self._of_keys(node, bounds)]
            case OperatorKind.UNION:
                by_place = [bounds.get(each) for each in self._output(node)]
                return [self._by_place(each, by_place) for each in node.inputs]
            case OperatorKind.JOIN:
                return self._of_sides(node, bounds)
            case _:  # which rows it gives depends on rows beyond the bounds, or its columns are others
                return [{} for _ in node.inputs]

    def _before(self, columns: Columns, bounds: Bounds) -> Bounds:
        passed = self.catalyst.passed(columns) if bounds else {}
        return {inner: bounds[outer] for outer, inner in passed.items() if outer in bounds}

    def _of_keys(self, node: PlanNode, bounds: Bounds) -> Bounds:
        own = {key for keys in self._key_ids(node) for key in keys}
        return {each: bound for each, bound in bounds.items() if each in own}

    def _by_place(self, node: PlanNode, bounds: Sequence[Bound | None]) -> Bounds:
        return {each: bound for each, bound in zip(self._output(node), bounds, strict=True) if bound is not None}

    def _of_sides(self, node: PlanNode, bounds: Bounds) -> Sequence[Bounds]:
        """Return the bounds of both sides of a join.

        The bounds of a side all of whose rows count are also bounds of the other one, whose rows do not count where
        they meet none.
        """
        whole = self._whole_inputs(node)
        found: list[dict[int, Bound]] = [{}, {}]
        for place, side in enumerate(node.inputs):
            if side in whole:
                own = {*self._output(side)}
                found[place] = {each: bound for each, bound in bounds.items() if each in own}
                found[place] |= {each: bound for each, bound in self.within(side).items() if each not in found[place]}
        for place, side in enumerate(node.inputs):
            if side in whole and node.keys:
                for ours, theirs in zip(*self._pairs(node, place), strict=True):
                    if ours is not None and theirs is not None and ours in found[place]:
                        found[1 - place].setdefault(theirs, found[place][ours])
        return found

    def _pairs(self, node: PlanNode, place: int) -> tuple[list[int | None], list[int | None]]:
        keys = self._key_ids(node)
        return keys[place], keys[1 - place]

    def _whole_inputs(self, node: PlanNode) -> Sequence[PlanNode]:
        """Return the inputs that restrict the node: without a row of them there is none of the node's, with the same
        values.
        """
        match node.operator.kind:
            case OperatorKind.FILTER | OperatorKind.SORT | OperatorKind.PROJECT | OperatorKind.GENERATE:
                return node.inputs
            case OperatorKind.JOIN:
                sides = {JoinSide.BOTH: node.inputs, JoinSide.LEFT: node.inputs[:1], JoinSide.RIGHT: node.inputs[1:]}
                return sides.get(node.operator.linear_in, ())
            case _:
                return ()

    def _output(self, node: PlanNode) -> list[int]:
        if node not in self._ids:
            self._ids[node] = self.catalyst.ids(node.plan)
        return self._ids[node]

    def _key_ids(self, node: PlanNode) -> list[list[int | None]]:
        """Return the ids of the key columns of each input; None stands for a key that is no column."""
        if node not in self._keys:
            self._keys[node] = [[self._id(each) for each in keys] for keys in node.keys]
        return self._keys[node]

    def _id(self, key: Expression) -> int | None:
        return self.catalyst.id_of(key) if self.catalyst.is_a(key, "AttributeReference") else None
