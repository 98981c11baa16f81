"""Plan the changes of a query's result, from the changes of its tables: as signed bags, operator by operator.

Each operator's changes are its rows with a weight, +1 for each that came and -1 for each that went; `query_plan` says
how they follow. What an operator needs besides, its inputs' rows before or after, is planned and left to Spark to read,
so that nothing is read that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iscp.core.query.query_explanation import OperatorUpkeep
from iscp.core.query.query_plan import OperatorKind, is_of_one_table, upkeep_of
from iscp.views.catalyst.catalyst import Catalyst, Columns, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.time_marks import clock_literal
from iscp.views.changes.column_bounds import renamed_bounds
from iscp.views.changes.join_changes import changed_join
from iscp.views.changes.known_totals import KnownTotals
from iscp.views.changes.plan_leaf import OF_QUERY, At, Leaf
from iscp.views.changes.plan_leaves import PlanLeaves
from iscp.views.changes.plan_templates import PlanTemplates
from iscp.views.changes.signed_rows import (
    WEIGHT,
    ChangedRows,
    Instants,
    Signed,
    TableChange,
    collected,
    has_signs,
    netted,
    whole_number,
)
from iscp.views.changes.table_lookups import bounds_of, bounds_of_table, united_bounds
from iscp.views.changes.touched_keys import recomputed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOINED_BYTES_MAX = 16 * 1024**2
"""Bytes of tables with all of whose rows changed ones are joined as they come, about what Spark has in memory of one
side; before they are joined with more, changed rows are computed, and counted by that.
"""


@dataclass
class SignedPlans:
    """Plans of one query's changes for one refresh. `close` frees what was cached for them.

    Up to `collected_max` changed rows of the result, or of its groups, are collected from Spark in one step; if there
    are more it computes them twice. 0 is for refreshes in which many are expected. Totals that are not among `totals`
    are computed of all rows. `given` has the rows of nodes that are known, after the changes. `templates` are plans of
    earlier refreshes; None: there are none, or not all of a plan follows from the tables.
    """

    catalyst: Catalyst
    tables: Mapping[str, TableChange]
    instants: Instants
    collected_max: int = 0
    totals: KnownTotals = field(default_factory=KnownTotals)
    joined_max: int = JOINED_BYTES_MAX
    given: Mapping[PlanNode, DataFrame] = field(default_factory=dict)
    templates: PlanTemplates | None = None
    leaves: PlanLeaves = field(init=False)
    _known: dict[PlanNode, Signed | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        timer = self.templates.timer if self.templates else None
        self.leaves = PlanLeaves(self.catalyst, self.tables, self.totals, timer)

    def close(self) -> None:
        self.leaves.close()

    def result(self, root: PlanNode, at: At) -> DataFrame:
        """Return all rows of the query."""
        return self._shown(self.rows(root, at))

    def result_over(self, root: PlanNode, stored: PlanNode, rows: DataFrame) -> DataFrame:
        """Return all rows of the query, where `rows` are those of its node `stored`."""
        plan = self.catalyst.renamed(self.catalyst.plan_of(rows), stored.plan)
        return self._shown(self.above(root, stored, plan))

    def _shown(self, plan: Plan) -> DataFrame:
        """Return the plan's rows, in columns without the marks that they had below."""
        return self.catalyst.frame(self.catalyst.afresh(plan, plan.output()))

    def above(self, node: PlanNode, stored: PlanNode, plan: Plan) -> Plan:
        if node is stored:
            return plan
        return self.over(node, At.NEW, [self.above(each, stored, plan) for each in node.inputs])

    def changes(self, root: PlanNode) -> ChangedRows | None:
        """Return how the result changes, or None if it stays as it is.

        Each distinct row comes once, under the names `c0`, `c1`, …, with WEIGHT. The rows stay cached until `close`.
        """
        frame = self.planned(root, lambda: self._changed(root))
        if frame is None:
            return None
        if (known := self.leaves.computed_as(frame)) is not None:
            return self.leaves.computed[known].rows
        arrow = collected(frame, self.collected_max) if self.collected_max else None
        if arrow is None:
            return self.leaves.count(frame)
        return ChangedRows(frame, len(arrow), arrow) if len(arrow) else None

    def _changed(self, root: PlanNode) -> DataFrame | None:
        signed = self.delta(root)
        if signed is None:
            return None
        if signed.rows is not None and not has_signs(signed.rows.frame):
            return signed.rows.frame
        return self.netted(root, signed, by_sign=False)

    def planned(self, what: Hashable, build: Callable[[], DataFrame | None]) -> DataFrame | None:
        """Return the rows that `build` makes, or made in an earlier refresh.

        `what` distinguishes them from what else is planned.
        """
        return build() if self.templates is None else self.templates.planned(self.catalyst, what, self.leaves, build)

    # --- all rows -------------------------------------------------------------------------------------------------

    def rows(self, node: PlanNode, at: At, looked_up: Mapping[PlanNode, Leaf] | None = None) -> Plan:
        """Return the operator's rows, under its ids; `looked_up` has rows that stand for all of some tables."""
        if at is At.NEW and (given := self.given.get(node)) is not None:
            return self.catalyst.renamed(self.catalyst.plan_of(given), node.plan)
        if node.operator.kind is OperatorKind.TABLE:
            leaf = looked_up.get(node) if looked_up else None
            plan = self.leaves.looked_up(node, leaf) if leaf else self.leaves.rows(Leaf(node.operator.table, at))
            return self.catalyst.renamed(plan, node.plan)
        if node in self.totals:
            return self.leaves.rows(Leaf(node, at))
        if not (node.operator.tables() or node.operator.time_dependence()):
            return self.leaves.rows(Leaf(node, None, OF_QUERY))
        return self.over(node, at, [self.rows(each, at, looked_up) for each in node.inputs])

    def over(self, node: PlanNode, at: At, inputs: Sequence[Plan]) -> Plan:
        """Return the operator over these inputs, with the values that its subqueries and the clock have."""
        plan = node.plan
        if node.subqueries or node.clock:
            plan = self.catalyst.with_values(plan, *self.values(node, at))
        return self.catalyst.with_inputs(plan, inputs)

    def values(self, node: PlanNode, at: At) -> tuple[list[Plan], list[Plan | Expression]]:
        """Return the plans that stand for values in the operator, and the values."""
        before = [*(each.plan for each in node.subqueries), *(each for each, _ in node.clock)]
        times = [clock_literal(self.catalyst, value, self.instants.at(at)) for _, value in node.clock]
        return before, [*(self.rows(each, at) for each in node.subqueries), *times]

    # --- changes --------------------------------------------------------------------------------------------------

    def delta(self, node: PlanNode) -> Signed | None:
        if node not in self._known:
            self._known[node] = self._delta(node)
        return self._known[node]

    def _delta(self, node: PlanNode) -> Signed | None:
        by_time = self.instants.apart and node.operator.time_dependence() is not None
        if not by_time and not any(self.tables[name].changes() is not None for name in node.operator.tables()):
            return None
        if node in self.totals:
            return self._totaled(node)
        if node.operator.kind is OperatorKind.SORT:
            return self.delta(node.inputs[0])
        filtered = node.operator.kind is OperatorKind.FILTER and bool(node.clock or node.subqueries)
        if self._values_changed(node) and not filtered:
            return self.recomputed(node, {})
        deltas = {place: found for place, each in enumerate(node.inputs) if (found := self.delta(each)) is not None}
        match upkeep_of(node.operator):
            case _ if node.operator.kind is OperatorKind.TABLE:
                return self._of_table(node)
            case _ if filtered:
                return self._filtered_by_values(node, deltas)
            case OperatorUpkeep.LINEAR:
                return self._linear(node, deltas)
            case _ if node.operator.kind is OperatorKind.JOIN:
                return changed_join(self, node, deltas)
            case _:
                return self.recomputed(node, self.evaluated(node, deltas))

    def _of_table(self, node: PlanNode) -> Signed | None:
        has_changed = self.tables[node.operator.table].changes() is not None
        if not has_changed:
            return None
        bounds = bounds_of_table(self, node, Leaf(node.operator.table, None))
        return replace(self._signed(node, self.leaves.changed(node)), bounds=bounds)

    def _linear(self, node: PlanNode, deltas: Mapping[int, Signed]) -> Signed | None:
        if node.operator.kind is OperatorKind.UNION:
            return self.united(node, [(node.inputs[place], signed) for place, signed in deltas.items()])
        if not deltas:
            return None
        signed, plan = deltas[0], self.values_now(node)
        match node.operator.kind:
            case OperatorKind.PROJECT:
                bounds = renamed_bounds(self.catalyst, plan, signed.bounds)
                listed = plan.projectList().appended(signed.weight)
                return Signed(self.catalyst.project(listed, signed.plan), signed.weight, bounds=bounds)
            case OperatorKind.EXPAND:
                return Signed(self.catalyst.expand(plan, signed.weight, signed.plan), signed.weight)
            case _:
                return Signed(self.catalyst.with_inputs(plan, [signed.plan]), signed.weight, bounds=signed.bounds)

    def _filtered_by_values(self, node: PlanNode, deltas: Mapping[int, Signed]) -> Signed | None:
        """Return the changed rows that meet the condition now, and the old ones that came or went by its values
        alone.
        """
        linear = self._linear(node, deltas)
        if not self._values_changed(node):
            return linear
        parts = [] if linear is None else [(linear.plan, node.plan.output().appended(linear.weight))]
        inputs = [each.plan for each in node.inputs]
        now, before = (self.over(node, at, inputs).condition() for at in (At.NEW, At.OLD))
        for met, unmet, weight in ((now, before, 1), (before, now, -1)):
            condition = self.catalyst.both([met, self.catalyst.untrue(unmet)])
            parts.append(self.weighted(self.catalyst.filter(condition, self.rows(node.inputs[0], At.OLD)), weight))
        return self.sum(node, parts)

    def _totaled(self, node: PlanNode) -> Signed | None:
        if not self.totals.changed(node):
            return None
        rows = ((At.NEW, 1), (At.OLD, -1))
        return self.sum(node, [self.weighted(self.rows(node, at), weight) for at, weight in rows])

    def weighted(self, rows: Plan, weight: int) -> tuple[Plan, Columns]:
        plan = self.catalyst.plan_of(self.catalyst.frame(rows).withColumn(WEIGHT, whole_number(weight)))
        return plan, plan.output()

    def values_now(self, node: PlanNode) -> Plan:
        """Return the operator with the values of the clock, and of its subqueries, which have not changed."""
        if not (node.subqueries or node.clock):
            return node.plan
        return self.over(node, At.NEW, [each.plan for each in node.inputs])

    def united(self, node: PlanNode, parts: Sequence[tuple[PlanNode, Signed]]) -> Signed | None:
        """Return the changed rows of all `parts`; each is of a node whose columns are those of `node`, in order."""
        rows = [(signed.plan, each.plan.output().appended(signed.weight)) for each, signed in parts]
        bounds = united_bounds(self.catalyst, node, parts)
        return None if (found := self.sum(node, rows)) is None else replace(found, bounds=bounds)

    def sum(self, node: PlanNode, parts: Sequence[tuple[Plan, Columns]]) -> Signed | None:
        """Return the rows of all `parts`, each with its columns in the operator's order and the weight."""
        if not parts:
            return None
        return self._signed(node, self.catalyst.union([self.catalyst.afresh(*part) for part in parts]))

    def evaluated(self, node: PlanNode, deltas: Mapping[int, Signed]) -> dict[int, DataFrame]:
        """Return the changed rows of each input that has any, by the names `c0`, `c1`, … of its columns."""
        found = {}
        for place, signed in deltas.items():
            if (rows := self._evaluate(node.inputs[place], signed)) is not None:
                found[place] = rows.frame
        return found

    def _evaluate(self, node: PlanNode, signed: Signed) -> ChangedRows | None:
        """Return the operator's distinct changed rows, as `changes` has them, or None."""
        return signed.rows or self._computed(node, "changes", lambda: self.netted(node, signed))

    def _computed(self, node: PlanNode, what: str, build: Callable[[], DataFrame]) -> ChangedRows | None:
        return self.leaves.compute_once(Leaf(node, None, what), build, self.collected_max)

    def netted(self, node: PlanNode, signed: Signed, *, by_sign: bool = True) -> DataFrame:
        weight = self.catalyst.alias(signed.weight, WEIGHT)
        frame = self.catalyst.frame(self.catalyst.numbered(signed.plan, node.plan, [weight]))
        return netted(frame, by_sign=by_sign)

    def recomputed(self, node: PlanNode, changed: Mapping[int, DataFrame]) -> Signed | None:
        """Return the operator's rows after the changes less those before, for the keys that changed rows have.

        Without keys, or where `changed` is empty because a value in it has changed, all rows are computed.
        """
        has_changed = self._values_changed(node)
        if not changed and not has_changed:
            return None
        by_key = {} if has_changed or not node.keys else changed
        return self._of_rows(node, self._computed(node, "recomputed", lambda: recomputed_rows(self, node, by_key)))

    def settled(self, node: PlanNode, signed: Signed) -> Signed | None:
        """Return the operator's changes, computed now, so that they are known, or None if there are none."""
        if signed.rows is not None or is_of_one_table(node.operator):
            return signed
        self._known[node] = self._of_rows(node, self._evaluate(node, signed))
        return self._known[node]

    def _of_rows(self, node: PlanNode, found: ChangedRows | None) -> Signed | None:
        if found is None:
            return None
        leaf = self.leaves.computed_as(found.frame)
        bounds = {} if leaf is None else bounds_of(self.catalyst, node, leaf)
        return replace(self._signed(node, self.catalyst.plan_of(found.frame)), rows=found, bounds=bounds)

    def bytes_of(self, node: PlanNode) -> int:
        """Return the bytes of the tables that its rows are made of."""
        return sum(self.tables[each.table].bytes for _, each in node.operator.walk() if each.table)

    def _values_changed(self, node: PlanNode) -> bool:
        """Return whether a value in it has changed that is not of a row."""
        return bool(node.clock and self.instants.apart) or any(self.delta(each) is not None for each in node.subqueries)

    def _signed(self, node: PlanNode, plan: Plan) -> Signed:
        """Return the plan's rows, under the operator's ids; its last column is their weight."""
        signed = self.catalyst.signed(plan, node.plan, WEIGHT)
        return Signed(signed, signed.output().last())
