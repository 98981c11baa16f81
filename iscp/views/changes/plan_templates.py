"""Plans that were built once, and are given other rows where those of the tables stand.

To build the plans of a refresh takes hundreds of calls to the JVM, and 20 to 50 ms (ADR 44). The next refresh has
the same plans over later versions of the tables and other changed rows: these come under the names and ids of those in
whose place they are, and what is above them stays as it was analyzed. So it is with what is computed on the way, as
long as there are rows where there were some, and none where there were none: what is built after it follows from that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.changes.plan_leaf import Leaf
from iscp.views.changes.plan_leaves import LEAF_PREFIX, BuildTimer, PlanLeaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TEMPLATES_MAX = 12
"""Plans that are cached of one query: up to three for each set of tables that change together; others are built
again.
"""


class _StrayError(Exception):
    """The plan has rows that are of this refresh alone."""


class _OtherPlanError(Exception):
    """Another plan would be made of these leaves."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An operator. `leaves` are those in it, `below` its inputs that have some, by their numbers, `values` its
    subqueries. `leaf` is the one that it is itself.
    """

    plan: Plan
    leaves: frozenset[Leaf] = frozenset()
    inputs: tuple[Plan, ...] = ()
    below: Mapping[int, _Place] = field(default_factory=dict)
    values: tuple[_Place, ...] = ()
    leaf: Leaf | None = None

    def filled(self, catalyst: Catalyst, fresh: Mapping[Leaf, Plan]) -> Plan:
        if self.leaves.isdisjoint(fresh):
            return self.plan
        if self.leaf is not None:
            return catalyst.renamed(fresh[self.leaf], self.plan)
        inputs = [*self.inputs]
        for number, each in self.below.items():
            inputs[number] = each.filled(catalyst, fresh)
        plan = self.plan.withNewChildren(catalyst.seq(inputs)) if self.below else self.plan
        if not any(each.leaves for each in self.values):
            return plan
        values = [each.filled(catalyst, fresh) for each in self.values]
        return catalyst.with_values(plan, [each.plan for each in self.values], values)


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """A plan whose leaves can be replaced. `known` has for each leaf its plan then (None: its rows are others each
    time).

    It also has the leaf's schema as Spark has it, with what may be null: the plan above was simplified by that.
    """

    root: _Place
    known: Mapping[Leaf, tuple[Plan | None, Any]]

    def filled(self, catalyst: Catalyst, leaves: PlanLeaves) -> DataFrame:
        """Return the plan over these leaves.

        Raises _OtherPlanError if one is not there, has columns of other types, or others that may be null.
        """
        fresh = {}
        for leaf, (stood, schema) in self.known.items():
            plan = leaves.of(leaf)
            if plan is None or not plan.schema().equals(schema):
                raise _OtherPlanError
            if stood is None or not stood.fastEquals(plan.child()):
                fresh[leaf] = plan
        return catalyst.frame(catalyst.taken_as_analyzed(self.root.filled(catalyst, fresh)))


@dataclass(frozen=True, slots=True)
class _RepeatedStep:
    """A computation before the rest was built. `template` is None where it is not made of leaves alone.

    `collected_max` is 0 where there were more rows than are collected.
    """

    leaf: Leaf
    template: PlanTemplate | None
    empty: bool
    collected_max: int

    def repeat(self, catalyst: Catalyst, leaves: PlanLeaves) -> None:
        """Compute the step over these leaves, unless it is computed; raise _OtherPlanError where its plan would be
        another.
        """
        if self.leaf not in leaves.computed:
            if self.template is None:
                raise _OtherPlanError
            leaves.compute(self.leaf, self.template.filled(catalyst, leaves), self.collected_max)
        if (leaves.computed[self.leaf].rows is None) != self.empty:
            raise _OtherPlanError


@dataclass(frozen=True, slots=True)
class _Planned:
    """Rows that were planned. `result` is their plan, or the leaf that was computed as them; None: there are none."""

    steps: Sequence[_RepeatedStep]
    result: PlanTemplate | Leaf | None

    def repeat(self, catalyst: Catalyst, leaves: PlanLeaves) -> DataFrame | None:
        """Return the rows over these leaves, or None. Raises _OtherPlanError."""
        for each in self.steps:
            each.repeat(catalyst, leaves)
        if self.result is None:
            return None
        if isinstance(self.result, PlanTemplate):
            return self.result.filled(catalyst, leaves)
        found = leaves.computed[self.result].rows
        assert found is not None, "no other has the result's rows"
        return found.frame


class PlanTemplates:
    """The templates of one query. `timer` runs while plans are built that were not known before, and will be."""

    def __init__(self) -> None:
        self.timer = BuildTimer()
        self._known: OrderedDict[Hashable, _Planned] = OrderedDict()

    def planned(
        self, catalyst: Catalyst, what: Hashable, leaves: PlanLeaves, build: Callable[[], DataFrame | None]
    ) -> DataFrame | None:
        """Return the rows that `build` makes of `leaves`, or made of others with their key, over these; it may make
        none.

        `what` distinguishes it from what else is made of the same leaves.
        """
        key = what, leaves.key()
        if (known := self._known.pop(key, None)) is not None:
            with suppress(_OtherPlanError):
                frame = known.repeat(catalyst, leaves)
                self._known[key] = known
                return frame
            return self._built(key, catalyst, leaves, build)
        since_s = self.timer.spent_s
        with self.timer.run():
            made = self._built(key, catalyst, leaves, build)
        if key not in self._known:
            self.timer.forget(since_s)
        return made

    def _built(
        self, key: Hashable, catalyst: Catalyst, leaves: PlanLeaves, build: Callable[[], DataFrame | None]
    ) -> DataFrame | None:
        made = build()
        if (planned := _planned(catalyst, made, leaves)) is not None:
            self._known[key] = planned
            if len(self._known) > TEMPLATES_MAX:
                self._known.popitem(last=False)
        return made


def _planned(catalyst: Catalyst, frame: DataFrame | None, leaves: PlanLeaves) -> _Planned | None:
    """Return the template of a frame and of the steps before it, or None if not all of its rows are of `leaves`."""
    reader = _TemplateReader(catalyst, leaves)
    result: PlanTemplate | Leaf | None = None
    if frame is not None:
        result = leaves.computed_as(frame) or reader.template(catalyst.plan_of(frame))
        if result is None:
            return None
    steps = [
        _RepeatedStep(leaf, reader.template(each.plan), each.rows is None, each.collected_max)
        for leaf, each in leaves.computed.items()
    ]
    return _Planned(steps, result)


@dataclass(frozen=True, slots=True)
class _TemplateReader:
    catalyst: Catalyst
    leaves: PlanLeaves

    def template(self, plan: Plan) -> PlanTemplate | None:
        known: dict[Leaf, tuple[Plan | None, Any]] = {}
        try:
            return PlanTemplate(self._place(plan, known), known)
        except _StrayError:
            return None

    def _place(self, plan: Plan, known: dict[Leaf, tuple[Plan | None, Any]]) -> _Place:
        alias = self.catalyst.name_of(plan)
        if alias.startswith(LEAF_PREFIX):
            return self._leaf(plan, alias, known)
        inputs = self.catalyst.children(plan)
        if not inputs and not self.catalyst.is_a(plan, "OneRowRelation"):
            raise _StrayError
        places = [self._place(each, known) for each in inputs]
        values = self._values(plan, known)
        below = {number: each for number, each in enumerate(places) if each.leaves}
        within = frozenset().union(*[each.leaves for each in (*places, *values)])
        standing = tuple(each.plan for each in places)
        whole = plan.withNewChildren(self.catalyst.seq(standing)) if below else plan
        if any(each.leaves for each in values):
            whole = self.catalyst.with_values(
                whole, self.catalyst.items(plan.subqueries()), [each.plan for each in values]
            )
        return _Place(whole, within, standing, below, values)

    def _leaf(self, plan: Plan, alias: str, known: dict[Leaf, tuple[Plan | None, Any]]) -> _Place:
        leaf = self.leaves.named.get(alias)
        if leaf is None:
            raise _StrayError
        of_table = isinstance(leaf.of, str) and leaf.at is not None and not leaf.what
        now = self.leaves.rows(leaf)
        known[leaf] = now.child() if of_table else None, now.schema()
        there = plan if of_table else self.catalyst.no_rows(plan)  # rows of one refresh are not cached
        return _Place(there, frozenset({leaf}), leaf=leaf)

    def _values(self, plan: Plan, known: dict[Leaf, tuple[Plan | None, Any]]) -> tuple[_Place, ...]:
        """Return its subqueries."""
        plans = self.catalyst.items(plan.subqueries())
        if not plans:
            return ()
        values = [each for each in self.catalyst.items(plan.expressions()) for each in self._scalar(each)]
        if len(values) != len(plans):  # others are not replaced
            raise _StrayError
        return tuple(self._place(each, known) for each in plans)

    def _scalar(self, expression: Expression) -> Sequence[Expression]:
        if self.catalyst.is_a(expression, "ScalarSubquery"):
            return [expression]
        return [found for each in self.catalyst.children(expression) for found in self._scalar(each)]
