"""Finds out whether a plan is one that groups rows of a table, or of joined ones, and counts and adds up columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from iscp.core.query.group_query import GroupQuery, Measure, Output
from iscp.core.query.join_query import JoinQuery
from iscp.core.query.query_plan import OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.total_functions import WHOLE, fails_beyond_type
from iscp.views.direct.join_plan import EQUAL_TYPES, find_joined_columns

_FUNCTIONS = {"Sum": Measure.SUM, "Average": Measure.AVERAGE, "Count": Measure.COUNT}
_DIGITS_MAX = 18
"""Of a decimal whose values and their sums fit in a whole number of 64 bits."""


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """`query` names the columns of `rows` by their places: `c0`, `c1`, …"""

    query: GroupQuery
    rows: JoinQuery


def find_group_query(catalyst: Catalyst, root: PlanNode, columns: T.StructType) -> GroupedRows | None:
    """`columns`: of the result. None where it is none, or one whose values do not add up exactly."""
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
    if {each.column for each in outputs if each.measure is Measure.KEY} != {*keys}:
        return None
    scales = {
        each.column: finder.scale(each.column) for each in outputs if each.measure in (Measure.SUM, Measure.AVERAGE)
    }
    return GroupedRows(GroupQuery(tuple(key for key in keys if key), tuple(outputs), scales), rows)


class _Finder:
    """`columns`: of the rows."""

    def __init__(self, catalyst: Catalyst, columns: Sequence[Expression]) -> None:
        self._catalyst = catalyst
        self._names = {catalyst.id_of(each): f"c{place}" for place, each in enumerate(columns)}
        self._types = {f"c{place}": catalyst.type_of(each) for place, each in enumerate(columns)}

    def column(self, expression: Expression) -> str | None:
        """The column that it is, if rows can be grouped by it here."""
        name = self._named(expression)
        return name if name is not None and isinstance(self._types[name], EQUAL_TYPES) else None

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
        if measure is not Measure.COUNT and not (self._adds_up(name) and fails_beyond_type(inner.aggregateFunction())):
            return None
        scale = field.dataType.scale if isinstance(field.dataType, T.DecimalType) else None
        return Output(field.name, measure, name, scale)

    def _named(self, expression: Expression) -> str | None:
        if not self._catalyst.is_a(expression, "AttributeReference"):
            return None
        return self._names.get(self._catalyst.id_of(expression))

    def _adds_up(self, name: str) -> bool:
        kind = self._types[name]
        return isinstance(kind, WHOLE) or (isinstance(kind, T.DecimalType) and kind.precision <= _DIGITS_MAX)
