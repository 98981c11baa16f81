"""How a join follows changes of its sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp.adapters.delta.query.plan_tree import PlanNode
from iscp.adapters.delta.query.signed_rows import WEIGHT, At, Signed
from iscp.core.query_plan import JoinSide

if TYPE_CHECKING:
    from iscp.adapters.delta.query.signed_plans import SignedPlans

_PLACES = {JoinSide.LEFT: 0, JoinSide.RIGHT: 1}


def changed_join(plans: SignedPlans, node: PlanNode, deltas: Mapping[int, Signed]) -> Signed | None:
    """`deltas`: of its sides, by their places; a side that has none did not change."""
    if not deltas:
        return None
    if node.operator.linear_in is JoinSide.BOTH:
        return _linear_in_both(plans, node, deltas)
    linear = _PLACES.get(node.operator.linear_in)
    if linear is not None and {*deltas} == {linear}:
        return _join_with(plans, node, linear, deltas[linear], At.NEW)
    if linear is None or node.keys or not node.operator.conditional:
        return plans.recomputed(node, plans.evaluated(node, deltas))
    return _by_condition(plans, node, linear, deltas)


def _linear_in_both(plans: SignedPlans, node: PlanNode, deltas: Mapping[int, Signed]) -> Signed | None:
    """new(left) ⋈ delta(right) + delta(left) ⋈ old(right)."""
    parts = []
    for place, signed in deltas.items():
        part = _join_with(plans, node, place, signed, At.OLD if place == 0 else At.NEW)
        parts.append((part.plan, [*plans.catalyst.output(node.plan), part.weight]))
    return plans.sum(node, parts)


def _join_with(plans: SignedPlans, node: PlanNode, place: int, signed: Signed, at: At) -> Signed:
    """The changes of one side, joined with the rows of the other."""
    other = plans.rows(node.inputs[1 - place], at)
    inputs = [signed.plan, other] if place == 0 else [other, signed.plan]
    joined = plans.catalyst.with_inputs(plans.values_now(node), inputs)
    columns = [*plans.catalyst.output(node.plan), signed.weight]
    return Signed(plans.catalyst.project(columns, joined), signed.weight)


def _by_condition(plans: SignedPlans, node: PlanNode, linear: int, deltas: Mapping[int, Signed]) -> Signed | None:
    """Of a join without an equality, as NOT IN: delta(linear) with new(other); and of the old rows of the linear side
    those that meet a changed row of the other, with new(other) less old(other). What meets none stays as it is.
    """
    catalyst, other, parts = plans.catalyst, 1 - linear, []
    if linear in deltas:
        part = _join_with(plans, node, linear, deltas[linear], At.NEW)
        parts.append((part.plan, [*catalyst.output(node.plan), part.weight]))
    changed = plans.evaluated(node, {other: deltas[other]}).get(other)
    if changed is not None:
        met = catalyst.renamed(catalyst.plan_of(changed.drop(WEIGHT)), catalyst.output(node.inputs[other].plan))
        condition = plans.values_now(node).condition().get()
        for at, weight in ((At.NEW, 1), (At.OLD, -1)):
            rows = catalyst.semi_join(plans.rows(node.inputs[linear], At.OLD), met, condition)
            sides = {linear: rows, other: plans.rows(node.inputs[other], at)}
            parts.append(plans.weighted(plans.over(node, at, [sides[0], sides[1]]), weight))
    return plans.sum(node, parts)
