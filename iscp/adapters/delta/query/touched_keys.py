"""The keys of changed rows, and the rows that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iscp.adapters.delta.query.catalyst import Catalyst, Expression, Plan
from iscp.adapters.delta.query.plan_tree import PlanNode
from iscp.core.sql_names import WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def touched_keys(catalyst: Catalyst, node: PlanNode, changed: Mapping[int, DataFrame]) -> Plan:
    """Distinct, as `k0`, `k1`, … `changed`: rows of inputs of `node`."""
    found = []
    for place, frame in changed.items():
        plan = catalyst.renamed(catalyst.plan_of(frame.drop(WEIGHT)), catalyst.output(node.inputs[place].plan))
        keys = [catalyst.alias(each, f"k{number}") for number, each in enumerate(node.keys[place])]
        found.append(catalyst.frame(catalyst.project(keys, plan)))
    keys_of_all = found[0] if len(found) == 1 else found[0].unionAll(found[1])
    return catalyst.plan_of(keys_of_all.distinct())


def restricted(catalyst: Catalyst, rows: Plan, keys: Sequence[Expression], touched: Plan) -> Plan:
    """The rows that have one of these keys."""
    fresh = catalyst.afresh(touched, catalyst.output(touched))
    pairs = zip(keys, catalyst.output(fresh), strict=True)
    return catalyst.semi_join(rows, fresh, catalyst.both([catalyst.same(*pair) for pair in pairs]))
