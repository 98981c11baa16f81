"""Decide whether a query's first rows can be computed of ranges of one of its tables, each by itself.

The shape of the tree alone decides, by the same rules as in `query_plan`: an operator is linear in a table if what it
gives of all of the table's rows is what it gives of each part of them, put together. Above groups of what is linear
anything may be: the groups of the parts are put together first, and are few.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from iscp.core.query.query_plan import JoinSide, Operator, OperatorKind

_PASSING = (
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.GENERATE,
    OperatorKind.EXPAND,
    OperatorKind.SORT,  # a table's rows have no order
)


@dataclass(frozen=True, slots=True)
class RangedQuery:
    """A query whose parts are put together from ranges: the groups of its operator `groups`, or its rows if that is
    None.
    """

    groups: Operator | None = None


@dataclass(frozen=True, slots=True)
class NotRanged:
    reason: str


def find_ranged(root: Operator, own: Collection[str]) -> RangedQuery | NotRanged:
    """Return how the query can be made of ranges of a table, or why not; `own` are the table's names in the query."""
    if _is_linear(root, own):
        return RangedQuery()
    node = root
    while not _is_grouping(node, own):
        reading = [each for each in node.inputs if _reads(each, own)]
        if len(reading) > 1 or _reads_in_values(node, own) or not reading or _is_linear(reading[0], own):
            return NotRanged(f"{node.title} needs all rows of {' and '.join(sorted(own))} at once")
        (node,) = reading
    return RangedQuery(node)


def _is_grouping(node: Operator, own: Collection[str]) -> bool:
    aggregates = node.kind is OperatorKind.AGGREGATE and not (node.subqueries or node.by_time)
    return aggregates and _is_linear(node.inputs[0], own)


def _is_linear(node: Operator, own: Collection[str]) -> bool:
    if _reads_in_values(node, own):
        return False
    match node.kind:
        case OperatorKind.TABLE:
            return node.table in own
        case OperatorKind.UNION:  # of what is of no range there would be a copy in each
            return all(_is_linear(each, own) for each in node.inputs)
        case OperatorKind.JOIN:
            left, right = node.inputs
            by_left = node.linear_in in (JoinSide.BOTH, JoinSide.LEFT) and not _reads(right, own)
            by_right = node.linear_in in (JoinSide.BOTH, JoinSide.RIGHT) and not _reads(left, own)
            return (by_left and _is_linear(left, own)) or (by_right and _is_linear(right, own))
        case kind if kind in _PASSING:
            return _is_linear(node.inputs[0], own)
        case _:
            return False


def _reads(node: Operator, own: Collection[str]) -> bool:
    return not node.tables().isdisjoint(own)


def _reads_in_values(node: Operator, own: Collection[str]) -> bool:
    """Return whether a value in its expressions is one of all rows."""
    return any(_reads(each, own) for each in node.subqueries)
