"""The totals of a query's aggregates without GROUP BY, before its tables' changes and after them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.core.algebra.algebra import TableRows
from iscp.core.values.totals import NO_TOTALS, QueryTotals, Totals
from iscp.views.catalyst.aggregates import finished_rows
from iscp.views.catalyst.catalyst import Catalyst, Plan
from iscp.views.catalyst.plan_tree import PlanNode


@dataclass
class KnownTotals:
    """Totals before and after; `before` is empty where all rows are computed. `learn_totals` fills `after`."""

    before: Mapping[PlanNode, Totals] = field(default_factory=dict)
    after: dict[PlanNode, Totals] = field(default_factory=dict)

    def __contains__(self, node: PlanNode) -> bool:
        return node in self.after

    def changed(self, node: PlanNode) -> bool:
        return self.before.get(node) != self.after[node]

    def row(self, catalyst: Catalyst, node: PlanNode, at: TableRows) -> Plan:
        """Return the aggregate's one row, under its ids."""
        totals = self.after[node] if at is TableRows.NEW else self.before[node]
        states = [each.total_state(total) for each, total in zip(node.functions, totals, strict=True)]
        return finished_rows(catalyst, node.plan, node.functions, states, catalyst.one_row)

    def of(self, root: PlanNode) -> QueryTotals:
        """Return the totals of a query, or no totals if one is not known."""
        nodes = adding_up(root)
        if not nodes or not all(each in self.after for each in nodes):
            return NO_TOTALS
        return QueryTotals(_shape(nodes), tuple(self.after[each] for each in nodes))


def adding_up(root: PlanNode) -> list[PlanNode]:
    """Return the aggregates whose totals are stored; those that one is made of come before it."""
    return [each for each in root.walk() if each.functions]


def totals_before(root: PlanNode, stored: QueryTotals) -> dict[PlanNode, Totals] | None:
    """Return the stored totals by operator, or None if they are of another query, or of columns of other types."""
    nodes = adding_up(root)
    fits = not nodes or (stored.shape == _shape(nodes) and len(stored.totals) == len(nodes))
    return dict(zip(nodes, stored.totals, strict=True)) if nodes and fits else {} if fits else None


def _shape(nodes: list[PlanNode]) -> str:
    described = [[each.operator.title, *[one.described for one in each.functions]] for each in nodes]
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]
