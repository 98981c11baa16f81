"""Find the keys of changed rows, and recompute the rows that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.plan_leaf import At, Bound
from iscp.views.changes.signed_rows import WEIGHT, netted, whole_number
from iscp.views.changes.table_lookups import by_columns, key_bounds, look_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from iscp.views.changes.signed_plans import SignedPlans


def keys_of(plans: SignedPlans, node: PlanNode) -> Sequence[Sequence[Expression]]:
    """Return the keys by which the operator works, for each input, with the values of its subqueries, which have not
    changed.
    """
    if not (node.subqueries or node.clock):
        return node.keys
    values = plans.values(node, At.NEW)
    return [[plans.catalyst.with_values_in(each, *values) for each in keys] for keys in node.keys]


def touched_keys(plans: SignedPlans, node: PlanNode, changed: Mapping[int, DataFrame]) -> Plan:
    """Return the distinct keys, as `k0`, `k1`, …, in the rows `changed` of inputs of `node`."""
    catalyst, by_input, found = plans.catalyst, keys_of(plans, node), []
    for place, frame in changed.items():
        plan = catalyst.renamed(catalyst.plan_of(frame.drop(WEIGHT)), node.inputs[place].plan)
        keys = [catalyst.alias(each, f"k{number}") for number, each in enumerate(by_input[place])]
        found.append(catalyst.frame(catalyst.project(keys, plan)))
    keys_of_all = found[0] if len(found) == 1 else found[0].unionAll(found[1])
    return catalyst.plan_of(keys_of_all.distinct())


def restricted(catalyst: Catalyst, rows: Plan, keys: Sequence[Expression], touched: Plan) -> Plan:
    """Return the rows that have one of these keys."""
    fresh = catalyst.afresh(touched, touched.output())
    pairs = zip(keys, catalyst.output(fresh), strict=True)
    return catalyst.semi_join(rows, fresh, catalyst.both([catalyst.same(*pair) for pair in pairs]))


def rows_with_keys(
    plans: SignedPlans,
    node: PlanNode,
    at: At,
    keys: Sequence[Expression],
    touched: Plan,
    bounds: Sequence[Bound | None] = (),
) -> Plan:
    """Return the rows of `node` with one of the `touched` keys. `keys` are those of its rows; `bounds` of each, where
    known.
    """
    known = look_up(plans, node, at, by_columns(plans.catalyst, keys, bounds)).leaves if bounds else {}
    return restricted(plans.catalyst, plans.rows(node, at, known), keys, touched)


def recomputed_rows(plans: SignedPlans, node: PlanNode, changed: Mapping[int, DataFrame]) -> DataFrame:
    """Return the operator's rows after the changes less those before, numbered, with WEIGHT.

    They are those for the keys that rows in `changed` have, by the places of its inputs; if it is empty, all rows.
    """
    touched, bounds = touched_keys(plans, node, changed) if changed else None, key_bounds(plans, node, changed)
    by_input, sides = keys_of(plans, node) if changed else (), []
    for at, weight in ((At.NEW, 1), (At.OLD, -1)):
        if touched is None:
            inputs = [plans.rows(each, at) for each in node.inputs]
        else:
            pairs = zip(node.inputs, by_input, strict=True)
            inputs = [rows_with_keys(plans, each, at, keys, touched, bounds) for each, keys in pairs]
        plan = plans.over(node, at, inputs)
        rows = plans.catalyst.frame(plans.catalyst.numbered(plan, plan))
        sides.append(rows.withColumn(WEIGHT, whole_number(weight)))
    return netted(sides[0].unionAll(sides[1]), by_sign=True)
