"""Find out whether a plan groups rows of a table, or of joined ones, and counts and adds up columns."""

from __future__ import annotations

from collections.abc import Sequence

from iscp.adapters.delta.rows.column_kinds import whole_types
from iscp.adapters.system.late_imports import T
from iscp.core.query.direct_ways import SUMMED_DIGITS_MAX, GroupedRows
from iscp.core.query.group_query import GroupQuery, Output
from iscp.core.query.query_plan import OperatorKind
from iscp.core.values.totals import AggregateKind
from iscp.views.catalyst.aggregates import fails_beyond_type, kind_of
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.direct.join_plan import equal_types, find_joined_columns


def find_group_query(catalyst: Catalyst, root: PlanNode, columns: T.StructType) -> GroupedRows | None:
    """Return the grouping, or None if it is none, or one whose values do not add up exactly; `columns` are the
    result's.
    """
    if root.operator.kind is not OperatorKind.AGGREGATE or not root.keys:
        return None
    (node,) = root.inputs
    rows = find_joined_columns(catalyst, node)
    if rows is None:
        return None
    finder = _Finder(catalyst, catalyst.output(node.plan))
    keys = [finder.column(each) for each in root.keys[0]]
    found = [
        finder.output(each, field)
        for each, field in zip(catalyst.items(root.plan.aggregateExpressions()), columns, strict=True)
    ]
    outputs = [each for each in found if each is not None]
    if None in keys or len(outputs) < len(found):
        return None
    if {each.column for each in outputs if each.kind is None} != {*keys}:
        return None
    scales = {each.column: finder.scale(each.column) for each in outputs if each.kind and each.kind.has_sum}
    return GroupedRows(GroupQuery(tuple(key for key in keys if key), tuple(outputs), scales), rows)


class _Finder:
    """Finds columns and functions over rows with these columns."""

    def __init__(self, catalyst: Catalyst, columns: Sequence[Expression]) -> None:
        self._catalyst = catalyst
        self._names = {catalyst.id_of(each): f"c{place}" for place, each in enumerate(columns)}
        self._types = {f"c{place}": catalyst.type_of(each) for place, each in enumerate(columns)}

    def column(self, expression: Expression) -> str | None:
        """Return the column that the expression is, if rows can be grouped by it here."""
        name = self._named(expression)
        return name if name is not None and isinstance(self._types[name], equal_types()) else None

    def scale(self, column: str) -> int:
        kind = self._types[column]
        return kind.scale if isinstance(kind, T.DecimalType) else 0

    def output(self, expression: Expression, field: T.StructField) -> Output | None:
        inner = expression.child() if self._catalyst.is_a(expression, "Alias") else expression
        if (name := self._named(inner)) is not None:
            return Output(field.name, None, name)
        if not self._catalyst.is_a(inner, "AggregateExpression") or inner.isDistinct() or inner.filter().isDefined():
            return None
        kind, values = kind_of(inner.aggregateFunction()), self._catalyst.children(inner.aggregateFunction())
        if kind is None or not (kind.has_sum or kind is AggregateKind.COUNT) or len(values) != 1:
            return None
        name = self._named(values[0])
        if name is None:
            constant = self._catalyst.is_a(values[0], "Literal") and values[0].value() is not None
            return Output(field.name, kind) if kind is AggregateKind.COUNT and constant else None
        if kind.has_sum and not (self._adds_up(name) and fails_beyond_type(inner.aggregateFunction())):
            return None
        scale = field.dataType.scale if isinstance(field.dataType, T.DecimalType) else None
        return Output(field.name, kind, name, scale)

    def _named(self, expression: Expression) -> str | None:
        if not self._catalyst.is_a(expression, "AttributeReference"):
            return None
        return self._names.get(self._catalyst.id_of(expression))

    def _adds_up(self, name: str) -> bool:
        kind = self._types[name]
        return isinstance(kind, whole_types()) or (
            isinstance(kind, T.DecimalType) and kind.precision <= SUMMED_DIGITS_MAX
        )
