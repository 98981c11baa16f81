"""Finds out whether a plan is one that groups the rows of one table by its columns, and counts and adds up others."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T

from iscp.adapters.delta.query.catalyst import Catalyst, Expression
from iscp.adapters.delta.query.plan_tree import PlanNode
from iscp.adapters.delta.query.total_functions import WHOLE
from iscp.core.group_query import GroupQuery, Measure, Output
from iscp.core.query_plan import OperatorKind

_KEYS = (*WHOLE, T.StringType, T.DateType, T.BooleanType)
_FUNCTIONS = {"Sum": Measure.SUM, "Average": Measure.AVERAGE, "Count": Measure.COUNT}
_DIGITS_MAX = 18
"""Of a decimal whose values and their sums fit in a whole number of 64 bits."""


def find_group_query(catalyst: Catalyst, root: PlanNode, columns: T.StructType) -> GroupQuery | None:
    """`columns`: of the result. None where it is none, or one whose values do not add up exactly."""
    if root.operator.kind is not OperatorKind.AGGREGATE or not root.keys:
        return None
    (node,) = root.inputs
    while node.operator.kind is OperatorKind.PROJECT and _only_passes(catalyst, node):
        (node,) = node.inputs
    if node.operator.kind is not OperatorKind.TABLE:
        return None
    named = {catalyst.id_of(each): each for each in catalyst.output(node.plan)}
    finder = _Finder(catalyst, named)
    keys = [finder.column(each) for each in root.keys[0]]
    found = [
        finder.output(each, field)
        for each, field in zip(catalyst.items(root.plan.aggregateExpressions()), columns, strict=True)
    ]
    outputs = [each for each in found if each is not None]
    if None in keys or len(outputs) < len(found):
        return None
    if {each.column for each in outputs if each.measure is Measure.KEY} != {*keys}:
        return None
    scales = {
        each.column: finder.scale(each.column) for each in outputs if each.measure in (Measure.SUM, Measure.AVERAGE)
    }
    return GroupQuery(node.operator.table, tuple(key for key in keys if key), tuple(outputs), scales)


def _only_passes(catalyst: Catalyst, node: PlanNode) -> bool:
    return all(catalyst.is_a(each, "AttributeReference") for each in catalyst.items(node.plan.projectList()))


class _Finder:
    """`columns`: of the table, by the ids that expressions know them by."""

    def __init__(self, catalyst: Catalyst, columns: Mapping[int, Expression]) -> None:
        self._catalyst = catalyst
        self._columns = columns
        self._types = {each.name(): catalyst.type_of(each) for each in columns.values()}

    def column(self, expression: Expression) -> str | None:
        """The table's column that it is, if rows can be grouped by it here."""
        name = self._named(expression)
        return name if name is not None and isinstance(self._types[name], _KEYS) else None

    def scale(self, column: str) -> int:
        kind = self._types[column]
        return kind.scale if isinstance(kind, T.DecimalType) else 0

    def output(self, expression: Expression, field: T.StructField) -> Output | None:
        inner = expression.child() if self._catalyst.is_a(expression, "Alias") else expression
        if (name := self._named(inner)) is not None:
            return Output(field.name, Measure.KEY, name)
        if not self._catalyst.is_a(inner, "AggregateExpression") or inner.isDistinct() or inner.filter().isDefined():
            return None
        measure = _FUNCTIONS.get(str(inner.aggregateFunction().getClass().getSimpleName()))
        values = self._catalyst.children(inner.aggregateFunction())
        if measure is None or len(values) != 1:
            return None
        name = self._named(values[0])
        if name is None:
            constant = self._catalyst.is_a(values[0], "Literal") and values[0].value() is not None
            return Output(field.name, Measure.ROWS) if measure is Measure.COUNT and constant else None
        if measure is not Measure.COUNT and not self._adds_up(name):
            return None
        scale = field.dataType.scale if isinstance(field.dataType, T.DecimalType) else None
        return Output(field.name, measure, name, scale)

    def _named(self, expression: Expression) -> str | None:
        if not self._catalyst.is_a(expression, "AttributeReference"):
            return None
        found = self._columns.get(self._catalyst.id_of(expression))
        return None if found is None else str(found.name())

    def _adds_up(self, name: str) -> bool:
        kind = self._types[name]
        return isinstance(kind, WHOLE) or (isinstance(kind, T.DecimalType) and kind.precision <= _DIGITS_MAX)
