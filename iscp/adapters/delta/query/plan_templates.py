"""Plans that were built once, and are given other rows where those of the tables stand.

To build the plan of a refresh takes a thousand calls to the JVM, which is a third of a small one. The next refresh has
the same plan over later versions of the tables and other changed rows: these come under the names and ids of those in
whose place they are, and what is above them stays as it was analyzed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from iscp.adapters.delta.query.catalyst import Catalyst, Plan
from iscp.adapters.delta.query.plan_tree import PlanNode
from iscp.adapters.delta.query.signed_rows import At, TableChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Rows = TypeVar("_Rows", "DataFrame", "DataFrame | None")

TEMPLATES_MAX = 4
"""Plans that are kept of one query, one for each set of tables that change together; of others they are built again."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows that stand in a plan: a table's, `at` one of two versions, or its changed ones (None)."""

    table: str
    at: At | None


class Leaves(Protocol):
    """Of one refresh. `opened`: those that were needed."""

    opened: dict[Leaf, Plan]

    def key(self) -> Hashable:
        """Of leaves with equal keys the same plan is made."""

    def of(self, leaf: Leaf) -> Plan: ...


class TableLeaves:
    """The rows of the query's tables, opened when they are needed."""

    def __init__(self, catalyst: Catalyst, tables: Mapping[str, TableChange]) -> None:
        self.opened: dict[Leaf, Plan] = {}
        self._catalyst = catalyst
        self._tables = tables

    def key(self) -> Hashable:
        """Which tables have changed, and how large they are: how a change is joined with one follows from that."""
        return tuple((name, each.changes() is None, each.bytes.bit_length()) for name, each in self._tables.items())

    def of(self, leaf: Leaf) -> Plan:
        if leaf not in self.opened:
            table = self._tables[leaf.table]
            frame = table.changes() if leaf.at is None else table.rows(leaf.at)
            assert frame is not None, "changes of a table that has none"
            self.opened[leaf] = self._catalyst.plan_of(frame)
        return self.opened[leaf]

    def changed(self, node: PlanNode) -> Plan:
        """The changed rows of the table that a node reads, with nulls where its columns are not needed."""
        return self._catalyst.widened(self.of(Leaf(node.operator.table, None)), self._catalyst.output(node.plan))


class KeptLeaf:
    """The rows that are kept of a query, of which its result is made."""

    def __init__(self, catalyst: Catalyst, rows: DataFrame) -> None:
        self.opened = {Leaf("", None): catalyst.plan_of(rows)}

    def key(self) -> Hashable:
        return "kept"

    def of(self, leaf: Leaf) -> Plan:
        return self.opened[leaf]


class _StrayError(Exception):
    """Rows stand in the plan that are of this refresh alone."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An operator. `below`: those of its inputs, by their numbers, that have leaves below them or are one."""

    plan: Plan
    inputs: tuple[Plan, ...] = ()
    below: Mapping[int, _Place] = field(default_factory=dict)
    leaf: Leaf | None = None

    def filled(self, catalyst: Catalyst, fresh: Mapping[Leaf, Plan]) -> Plan:
        if self.leaf is not None:
            return fresh.get(self.leaf, self.plan)
        if not self.below:
            return self.plan
        inputs = [*self.inputs]
        for number, each in self.below.items():
            inputs[number] = each.filled(catalyst, fresh)
        return self.plan.withNewChildren(catalyst.seq(inputs))


@dataclass(frozen=True, slots=True)
class _LeafPlan:
    """What stands for a leaf. `columns`: their names and ids; `schema`: as Spark has it, with what may be null: what is
    above was simplified by that."""

    plan: Plan
    columns: Sequence[tuple[str, Any]]
    schema: Any

    @classmethod
    def of(cls, catalyst: Catalyst, plan: Plan) -> _LeafPlan:
        return cls(plan, catalyst.names_and_ids(catalyst.output(plan)), plan.schema())


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    root: _Place
    leaves: Mapping[Leaf, _LeafPlan]

    def filled(self, catalyst: Catalyst, now: Callable[[Leaf], Plan]) -> Plan | None:
        """The plan over what each leaf is now; None: one has columns of other types, or other ones may be null."""
        fresh = {}
        for leaf, known in self.leaves.items():
            plan = now(leaf)
            if known.plan.fastEquals(plan):
                continue
            if not plan.schema().equals(known.schema):
                return None
            fresh[leaf] = catalyst.project(catalyst.under_names(catalyst.output(plan), known.columns), plan)
        return catalyst.taken_as_analyzed(self.root.filled(catalyst, fresh))


class PlanTemplates:
    """Of one query."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, PlanTemplate] = OrderedDict()

    def planned(self, catalyst: Catalyst, what: Hashable, leaves: Leaves, build: Callable[[], _Rows]) -> _Rows:
        """What `build` makes of `leaves`, or made of others with their key, over these. It may make nothing.

        `what`: distinguishes it from what else is made of the same leaves.
        """
        key = what, leaves.key()
        template = self._known.pop(key, None)
        if template is not None and (plan := template.filled(catalyst, leaves.of)) is not None:
            self._known[key] = template
            return catalyst.frame(plan)
        frame = build()
        if frame is not None and (made := _template(catalyst, catalyst.plan_of(frame), leaves.opened)) is not None:
            self._known[key] = made
            if len(self._known) > TEMPLATES_MAX:
                self._known.popitem(last=False)
        return frame


def _template(catalyst: Catalyst, plan: Plan, leaves: Mapping[Leaf, Plan]) -> PlanTemplate | None:
    """None: not all of its rows are of `leaves`."""
    if plan.subqueriesAll().size():
        return None
    known: dict[Leaf, _LeafPlan] = {}

    def leaf_place(leaf: Leaf) -> _Place:
        if leaf not in known:  # the changed rows themselves are not kept
            there = catalyst.no_rows(leaves[leaf]) if leaf.at is None else leaves[leaf]
            known[leaf] = _LeafPlan.of(catalyst, there)
        return _Place(known[leaf].plan, leaf=leaf)

    def place_of(plan: Plan) -> _Place:
        for leaf, there in leaves.items():
            if plan.fastEquals(there):
                return leaf_place(leaf)
        inputs = catalyst.children(plan)
        if not inputs and not catalyst.is_a(plan, "OneRowRelation"):
            raise _StrayError
        places = [place_of(each) for each in inputs]
        below = {number: each for number, each in enumerate(places) if each.leaf or each.below}
        if not below:
            return _Place(plan)
        standing = tuple(each.plan for each in places)
        return _Place(plan.withNewChildren(catalyst.seq(standing)), standing, below)

    try:
        return PlanTemplate(place_of(plan), known)
    except _StrayError:
        return None
