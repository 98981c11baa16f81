"""Follow the changes of a join's sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp.core.query.query_plan import JoinSide, is_of_one_table
from iscp.views.catalyst.catalyst import Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.plan_leaf import At
from iscp.views.changes.signed_rows import WEIGHT, Signed
from iscp.views.changes.table_lookups import bounds_across, look_up
from iscp.views.changes.touched_keys import keys_of, restricted

if TYPE_CHECKING:
    from iscp.views.changes.signed_plans import SignedPlans

_PLACES = {JoinSide.LEFT: 0, JoinSide.RIGHT: 1}


def changed_join(plans: SignedPlans, node: PlanNode, deltas: Mapping[int, Signed]) -> Signed | None:
    """Return the changes of a join, or None. `deltas` are those of its sides by their places; the others did not
    change.
    """
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
    """Return new(left) ⋈ delta(right) + delta(left) ⋈ old(right)."""
    parts = []
    for place, signed in deltas.items():
        if (part := _join_with(plans, node, place, signed, At.OLD if place == 0 else At.NEW)) is not None:
            parts.append(part)
    return parts[0] if len(parts) == 1 else plans.united(node, [(node, part) for part in parts])


def _join_with(plans: SignedPlans, node: PlanNode, place: int, signed: Signed, at: At) -> Signed | None:
    """Return the changes of one side, joined with the rows of the other, or None if there are no changes."""
    across = node.inputs[1 - place]
    large = bool(node.keys) and plans.bytes_of(across) > plans.joined_max
    if large:
        # Spark takes rows that are joined already for very many, and would have both sides exchanged for them.
        if (settled := plans.settled(node.inputs[place], signed)) is None:
            return None
        signed = settled
    known = look_up(plans, across, at, bounds_across(plans.catalyst, node, place, signed.bounds))
    other = plans.rows(across, at, known.leaves)
    few_of_one = node.operator.linear_in is JoinSide.BOTH and is_of_one_table(across.operator)
    if large and not (few_of_one or known.cover(across)):
        other = _with_keys_of(plans, node, place, signed, other)
    inputs = [signed.plan, other] if place == 0 else [other, signed.plan]
    joined = plans.catalyst.with_inputs(plans.values_now(node), inputs)
    columns = node.plan.output().appended(signed.weight)
    bounds = signed.bounds
    if node.operator.linear_in is JoinSide.BOTH:
        bounds = {**known.bounds.within(across), **bounds}
    return Signed(plans.catalyst.project(columns, joined), signed.weight, bounds=bounds)


def _with_keys_of(plans: SignedPlans, node: PlanNode, place: int, signed: Signed, other: Plan) -> Plan:
    """Return the rows of the other side that meet a changed one."""
    catalyst, by_input = plans.catalyst, keys_of(plans, node)
    keys = [catalyst.alias(each, f"k{number}") for number, each in enumerate(by_input[place])]
    touched = catalyst.frame(catalyst.project(keys, signed.plan)).distinct()
    return restricted(catalyst, other, by_input[1 - place], catalyst.plan_of(touched))


def _by_condition(plans: SignedPlans, node: PlanNode, linear: int, deltas: Mapping[int, Signed]) -> Signed | None:
    """Return the changes of a join without an equality, as NOT IN.

    They are delta(linear) with new(other), and those old rows of the linear side that meet a changed row of the other,
    with new(other) less old(other). Rows that meet none stay as they are.
    """
    catalyst, other, parts = plans.catalyst, 1 - linear, []
    if linear in deltas:
        part = _join_with(plans, node, linear, deltas[linear], At.NEW)
        if part is not None:
            parts.append((part.plan, node.plan.output().appended(part.weight)))
    changed = plans.evaluated(node, {other: deltas[other]}).get(other)
    if changed is not None:
        met = catalyst.renamed(catalyst.plan_of(changed.drop(WEIGHT)), node.inputs[other].plan)
        condition = plans.values_now(node).condition().get()
        for at, weight in ((At.NEW, 1), (At.OLD, -1)):
            rows = catalyst.semi_join(plans.rows(node.inputs[linear], At.OLD), met, condition)
            sides = {linear: rows, other: plans.rows(node.inputs[other], at)}
            parts.append(plans.weighted(plans.over(node, at, [sides[0], sides[1]]), weight))
    return plans.sum(node, parts)
