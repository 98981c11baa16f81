"""Find out whether a plan joins tables by equal columns, and shows columns of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from iscp.adapters.delta.rows.column_kinds import is_one_of, whole_types
from iscp.adapters.system.late_imports import T
from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, RowCondition
from iscp.core.query.query_plan import JoinSide, OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.plan_tree import PlanNode

_OPERATORS = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@cache
def equal_types() -> tuple[type[T.DataType], ...]:
    """Return the types of columns by which rows are joined and grouped."""
    return (*whole_types(), T.StringType, T.DateType, T.BooleanType)


@cache
def _shown_types() -> tuple[type[T.DataType], ...]:
    """Return the types of which two values are equal only if nothing distinguishes them."""
    return (*equal_types(), T.DecimalType, T.TimestampType, T.TimestampNTZType)


def find_join_query(catalyst: Catalyst, root: PlanNode) -> JoinQuery | None:
    """Return the join, or None if the plan is none, or one whose rows may come out otherwise elsewhere."""
    if not all(is_one_of(catalyst.type_of(each), _shown_types()) for each in catalyst.output(root.plan)):
        return None
    return find_joined_columns(catalyst, root)


def find_joined_columns(catalyst: Catalyst, root: PlanNode) -> JoinQuery | None:
    """Return the join as `find_join_query` does, but with values of any type in the result."""
    reader = _JoinReader(catalyst)
    try:
        known = reader.read_columns(root)
    except _OtherPlan:
        return None
    outputs = [known[catalyst.id_of(each)] for each in catalyst.output(root.plan)]
    query = JoinQuery(reader.joined(outputs), tuple(reader.equalities), tuple(outputs))
    return query if query.connected and all(each.columns for each in query.tables) else None


class _OtherPlan(Exception):  # noqa: N818  (not a fault: it is for others to carry out)
    pass


@dataclass
class _JoinReader:
    catalyst: Catalyst
    names: list[str] = field(default_factory=list)
    equalities: list[Equality] = field(default_factory=list)
    _conditions: dict[int, list[RowCondition]] = field(default_factory=dict)
    _types: dict[Column, T.DataType] = field(default_factory=dict)

    def joined(self, outputs: Sequence[Column]) -> tuple[JoinedTable, ...]:
        """Return the tables, each with the columns that something needs."""
        needed = {*outputs, *(end for each in self.equalities for end in each)}
        needed |= {Column(place, each.column) for place, all_of in self._conditions.items() for each in all_of}
        return tuple(
            JoinedTable(
                name,
                tuple(sorted(each.name for each in needed if each.place == place)),
                tuple(self._conditions.get(place, ())),
            )
            for place, name in enumerate(self.names)
        )

    def read_columns(self, node: PlanNode) -> Mapping[int, Column]:
        """Return the columns that the plan gives, by their ids. Raises _OtherPlan."""
        if node.subqueries or node.clock:
            raise _OtherPlan
        match node.operator.kind:
            case OperatorKind.TABLE:
                return self._table(node)
            case OperatorKind.PROJECT:
                return self._project(node, self.read_columns(node.inputs[0]))
            case OperatorKind.FILTER:
                known = self.read_columns(node.inputs[0])
                self._filter(node.plan.condition(), known)
                return known
            case OperatorKind.JOIN if node.operator.linear_in is JoinSide.BOTH and node.operator.conditional:
                known = {**self.read_columns(node.inputs[0]), **self.read_columns(node.inputs[1])}
                self._join(node.plan.condition().get(), known)
                return known
            case _:
                raise _OtherPlan

    def _table(self, node: PlanNode) -> Mapping[int, Column]:
        place = len(self.names)
        self.names.append(node.operator.table)
        found = {}
        for each in self.catalyst.output(node.plan):
            found[self.catalyst.id_of(each)] = column = Column(place, str(each.name()))
            self._types[column] = self.catalyst.type_of(each)
        return found

    def _project(self, node: PlanNode, known: Mapping[int, Column]) -> Mapping[int, Column]:
        found = {}
        for each in self.catalyst.items(node.plan.projectList()):
            inner = self.catalyst.column(each)
            if inner is None:
                raise _OtherPlan
            found[self.catalyst.id_of(each)] = known[self.catalyst.id_of(inner)]
        return found

    def _join(self, condition: Expression, known: Mapping[int, Column]) -> None:
        for part in self.catalyst.split(condition):
            if not self.catalyst.is_a(part, "EqualTo"):
                raise _OtherPlan
            left, right = (self._column(each, known) for each in (part.left(), part.right()))
            kind = self._types[left]
            if kind != self._types[right] or not is_one_of(kind, equal_types()) or left.place == right.place:
                raise _OtherPlan
            self.equalities.append(Equality(left, right))

    def _filter(self, condition: Expression, known: Mapping[int, Column]) -> None:
        for part in self.catalyst.split(condition):
            if self.catalyst.is_a(part, "IsNotNull"):
                column, comparison = self._column(part.child(), known), ("", None)
            else:
                column, comparison = self._comparison(part, known)
            self._conditions.setdefault(column.place, []).append(RowCondition(column.name, *comparison))

    def _comparison(self, part: Expression, known: Mapping[int, Column]) -> tuple[Column, tuple[str, Any]]:
        """Return a comparison with a constant: the column, the operator and the constant. Raises _OtherPlan."""
        inner, unequal = (part.child(), True) if self.catalyst.is_a(part, "Not") else (part, False)
        operator = next((sign for name, sign in _OPERATORS.items() if self.catalyst.is_a(inner, name)), "")
        if not operator or (unequal and operator != "="):
            raise _OtherPlan
        left, right = inner.left(), inner.right()
        if self.catalyst.is_a(left, "Literal"):
            left, right, operator = right, left, _MIRRORED[operator]
        column = self._column(left, known)
        kind = self._types[column]
        if not (
            is_one_of(kind, (*whole_types(), T.StringType))
            and self.catalyst.is_a(right, "Literal")
            and right.value() is not None
        ):
            raise _OtherPlan
        value = str(right.value()) if isinstance(kind, T.StringType) else int(right.value())
        return column, ("!=" if unequal else operator, value)

    def _column(self, expression: Expression, known: Mapping[int, Column]) -> Column:
        if not self.catalyst.is_a(expression, "AttributeReference"):
            raise _OtherPlan
        return known[self.catalyst.id_of(expression)]
