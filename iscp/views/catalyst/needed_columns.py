"""Find the columns of its tables that a query's result follows from: no others are read of changed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from iscp.core.query.query_plan import OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode

_BY_NAME = (
    OperatorKind.TABLE,
    OperatorKind.ROWS,
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.SORT,
    OperatorKind.JOIN,
    OperatorKind.AGGREGATE,
    OperatorKind.WINDOW,
    OperatorKind.LIMIT,
)
"""Operators that name what they need of their inputs, or pass it on under the same ids. Others take it by its place."""


def needed_columns(catalyst: Catalyst, root: PlanNode) -> Mapping[str, frozenset[str]]:
    """Return the columns by the tables' names in the query; a table of which only rows count has none."""
    needed = {catalyst.id_of(each) for each in _needed(catalyst, root)}
    found: dict[str, set[str]] = {}
    for node in root.walk():
        if node.operator.kind is OperatorKind.TABLE:
            names = (str(each.name()) for each in catalyst.output(node.plan) if catalyst.id_of(each) in needed)
            found.setdefault(node.operator.table, set()).update(names)
    return {table: frozenset(names) for table, names in found.items()}


def _needed(catalyst: Catalyst, root: PlanNode) -> Iterator[Expression]:
    yield from catalyst.output(root.plan)
    for node in root.walk():
        yield from _references(catalyst, [node.plan, *(key for keys in node.keys for key in keys)])
        whole = [*node.subqueries, *(() if node.operator.kind in _BY_NAME else node.inputs)]
        for each in whole:
            yield from catalyst.output(each.plan)


def _references(catalyst: Catalyst, parts: Iterable[Expression]) -> Iterator[Expression]:
    for each in parts:
        yield from catalyst.items(each.references().toSeq())
