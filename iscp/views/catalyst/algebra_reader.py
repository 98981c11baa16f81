"""Read Catalyst's optimized plan into the algebra; what the algebra lacks becomes opaque, with the reason.

Each node takes a few calls to the JVM, so a plan is read once, when a query is analyzed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import count
from typing import Any

from py4j.protocol import Py4JError

from iscp.core.algebra.algebra import (
    Expand,
    Expr,
    Filter,
    Group,
    Info,
    Join,
    JoinKind,
    Limit,
    Opaque,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Values,
    Windowed,
)
from iscp.core.algebra.result_types import DIGITS, FLOATS, OPERATIONS, OTHER, UntypedError, is_type, result_type
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

NESTING_MAX = 60
"""Expressions within each other that are read; what is nested deeper is opaque."""

OPERATORS_NESTED_MAX = 100
"""Operators above each other that are read; what lies deeper is opaque."""

CONSTANT_ROWS_MAX = 200
"""Rows of constants within a query that are read; more are opaque."""

_JOINS = {str(kind): kind for kind in JoinKind}
_CHAR_MARK = "CHAR_VARCHAR"
_EXACT = {
    "Sum": "ExactSum",
    "Average": "ExactAverage",
    "StddevSamp": "ExactStddevSamp",
    "StddevPop": "ExactStddevPop",
    "VarianceSamp": "ExactVarianceSamp",
    "VariancePop": "ExactVariancePop",
}
_EVALUATED = frozenset(
    {
        *("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod", "UnaryMinus", "Abs"),
        *("Cast", "Sum", "Average"),
    }
)
_CONDITIONS = frozenset(
    {
        *(
            "EqualTo",
            "EqualNullSafe",
            "LessThan",
            "LessThanOrEqual",
            "GreaterThan",
            "GreaterThanOrEqual",
            "In",
            "InSet",
        ),
        *("And", "Or", "Not", "IsNull", "IsNotNull", "IsNaN", "StartsWith", "EndsWith", "Contains", "Like"),
    }
)
_RANKED = frozenset({"RowNumber", "Rank", "DenseRank", "PercentRank", "CumeDist"})
_GROUP_NUMBER = "gid"
"""The name that Spark gives the number of a copy of rows, where it counts several columns' different values."""


def read_algebra(catalyst: Catalyst, plan: Plan, tables: Mapping[int, str]) -> Rel:
    """Return the plan of an analyzed query. `tables` has the names of tables by the ids of the empty RDDs for them."""
    return _AlgebraReader(catalyst, tables).relation(plan)


class _OpaqueError(Exception):
    """A reason why an expression is left to Spark."""


class _AlgebraReader:
    """Columns are numbered as they are met, and operators from the top down, inputs from left to right."""

    def __init__(self, catalyst: Catalyst, tables: Mapping[int, str]) -> None:
        self._catalyst, self._tables = catalyst, tables
        self._numbers: dict[int, int] = {}
        self._fields_read: dict[int, TypedColumn] = {}
        self._padded: dict[int, bool] = {}
        self._operators = count()
        self._copies: set[int] = set()
        self._depth = self._height = 0
        self._readers: dict[str, Callable[[Expression, str], Expr]] = {
            "Alias": self._alias,
            "Literal": self._literal,
            "ScalarSubquery": self._subquery,
            "SortOrder": self._order,
            "AggregateExpression": self._aggregate,
            "WindowExpression": self._window_value,
            "InSet": self._in_set,
            "EqualTo": self._equality,
            "And": self._chain,
            "Or": self._chain,
            "Like": lambda each, kind: self._of(each, kind, (_text(each.escapeChar()),)),
            "Round": self._rounded,
            "ExactAggregate": self._exact,
            "First": self._picked,
            "Last": self._picked,
            "NthValue": self._nth,
            "Lag": self._offset,
            "Lead": self._offset,
            "TimestampAddInterval": lambda each, kind: self._later(each, kind, "AddMicroseconds"),
            "TimestampAddYMInterval": lambda each, kind: self._later(each, kind, "AddCalendarMonths"),
            "DateAddYMInterval": self._months_later,
            "StringLocate": self._located,
            "NTile": lambda each, kind: Expr("NTile", (), kind, (self._whole(each.buckets()),)),
        }

        self._operator_readers: dict[str, Callable[[Plan, int], Rel]] = {
            "LogicalRDD": self._read_table,
            "Project": self._read_project,
            "Filter": self._read_filter,
            "Union": self._read_union,
            "Expand": self._read_expand,
            "Sort": self._read_sort,
            "GlobalLimit": self._read_limit,
            "LocalLimit": self._read_limit,
            "Offset": self._read_offset,
            "Join": self._read_join,
            "Aggregate": self._read_group,
            "Window": self._read_window,
            "LocalRelation": self._read_constants,
            "OneRowRelation": lambda _, number: Values((), (), ((),), number=number),
        }

    # --- operators ----------------------------------------------------------------------------------------------------

    def relation(self, plan: Plan) -> Rel:
        number = next(self._operators)
        name = str(plan.nodeName()).split()[0]
        reader = self._operator_readers.get(name)
        if reader is None:
            return self._unread(plan, number, name, "an operator that the algebra lacks")
        if self._height >= OPERATORS_NESTED_MAX:
            return Opaque((), self._fields(plan), name, f"more than {OPERATORS_NESTED_MAX} operators", number=number)
        self._height += 1
        try:
            return reader(plan, number)
        except _OpaqueError as error:
            return self._unread(plan, number, name, str(error))
        except Py4JError:
            return self._unread(plan, number, name, "other properties than are known")
        finally:
            self._height -= 1

    def _unread(self, plan: Plan, number: int, name: str, reason: str) -> Opaque:
        inputs = tuple(map(self.relation, self._catalyst.children(plan)))
        return Opaque(inputs, self._fields(plan), name, reason, number=number)

    def _inputs(self, plan: Plan) -> tuple[Rel, ...]:
        return tuple(map(self.relation, self._catalyst.children(plan)))

    def _fields(self, plan: Plan) -> tuple[TypedColumn, ...]:
        return tuple(map(self._field, self._catalyst.output(plan)))

    def _field(self, attribute: Expression) -> TypedColumn:
        """Return a column; it is read once, as each property of it is a call."""
        number = self._id(attribute)
        if number not in self._fields_read:
            self._fields_read[number] = TypedColumn(number, str(attribute.name()), _type(attribute))
        return self._fields_read[number]

    def _id(self, attribute: Expression) -> int:
        return self._numbers.setdefault(int(attribute.exprId().id()), len(self._numbers))

    def _expressions(self, seq: Any) -> tuple[Expr, ...]:
        return tuple(map(self.expression, self._catalyst.items(seq)))

    def _read_table(self, plan: Plan, number: int) -> Rel:
        name = self._tables.get(int(plan.rdd().id()))
        if name is None:
            raise _OpaqueError("the time")
        return Table((), self._fields(plan), name, number=number)

    def _read_project(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        return Project(inputs, self._expressions(plan.projectList()), number=number)

    def _read_filter(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        return Filter(inputs, self.expression(plan.condition()), number=number)

    def _read_union(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        return Union(inputs, self._fields(plan), number=number)

    def _read_expand(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        below = {each.id for each in inputs[0].columns}
        fields = self._fields(plan)
        self._copies |= {each.id for each in fields if each.name == _GROUP_NUMBER and each.id not in below}
        rows = tuple(self._expressions(row) for row in self._catalyst.items(plan.projections()))
        return Expand(inputs, fields, rows, number=number)

    def _read_sort(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        return Sort(inputs, self._expressions(plan.order()), number=number)

    def _read_limit(self, plan: Plan, number: int) -> Rel:
        return Limit(self._inputs(plan), self._whole(plan.limitExpr()), number=number)

    def _read_offset(self, plan: Plan, number: int) -> Rel:
        return Limit(self._inputs(plan), None, self._whole(plan.offsetExpr()), number=number)

    def _read_join(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        name = str(plan.joinType().toString()).split("(")[0]
        kind = _JOINS.get(name)
        if kind is None:
            return Opaque(inputs, self._fields(plan), "Join", f"the kind {name}", number=number)
        exists = self._field(plan.joinType().exists()) if kind is JoinKind.EXISTENCE else None
        condition = plan.condition()
        found = self.expression(condition.get()) if condition.isDefined() else None
        return Join(inputs, kind, found, exists, number=number)

    def _read_group(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        keys = self._expressions(plan.groupingExpressions())
        return Group(inputs, keys, self._expressions(plan.aggregateExpressions()), number=number)

    def _read_window(self, plan: Plan, number: int) -> Rel:
        inputs = self._inputs(plan)
        partition, order = (self._expressions(each) for each in (plan.partitionSpec(), plan.orderSpec()))
        return Windowed(inputs, self._expressions(plan.windowExpressions()), partition, order, number=number)

    def _read_constants(self, plan: Plan, number: int) -> Rel:
        fields, rows = self._fields(plan), plan.data()
        if int(rows.size()) > CONSTANT_ROWS_MAX:
            raise _OpaqueError(f"more than {CONSTANT_ROWS_MAX} rows of constants")
        kinds = [each.dataType() for each in self._catalyst.output(plan)]
        constants = (
            tuple(_constant(row.get(place, kinds[place]), each.type) for place, each in enumerate(fields))
            for row in self._catalyst.items(rows)
        )
        return Values((), fields, tuple(constants), number=number)

    # --- expressions --------------------------------------------------------------------------------------------------

    def expression(self, expression: Expression) -> Expr:
        """Return an expression; one that has another type than the rules give it is opaque."""
        name = _class_of(expression)
        if name == "AttributeReference":
            return self._column(expression)
        kind = "boolean" if name in _CONDITIONS else _type(expression)
        self._depth += 1
        try:
            if self._depth > NESTING_MAX:
                raise _OpaqueError(f"nested deeper than {NESTING_MAX}")
            found = self._readers.get(name, self._plain)(expression, kind)
            if (ruled := result_type(found)) != kind and found.op != "Opaque":
                raise _OpaqueError(f"of type {kind}, and not {ruled}")
        except (_OpaqueError, UntypedError, Py4JError) as error:
            deeper = self._depth <= NESTING_MAX
            parts = map(self.expression, self._catalyst.children(expression)) if deeper else ()
            reason = "other properties than are known" if isinstance(error, Py4JError) else str(error)
            return Expr("Opaque", tuple(parts), kind, (name, reason))
        finally:
            self._depth -= 1
        return found

    def _of(self, expression: Expression, kind: str, info: tuple[Info, ...] = (), op: str = "") -> Expr:
        args = self._expressions(expression.children())
        return Expr(op or _class_of(expression), args, kind, info)

    def _plain(self, expression: Expression, kind: str) -> Expr:
        name = _class_of(expression)
        if name not in OPERATIONS:
            raise _OpaqueError("an expression that the algebra lacks")
        if name in _RANKED:
            return Expr(name, (), kind)
        if name in _EVALUATED:
            return self._of(expression, kind, (_mode(expression),))
        if name.startswith(("Stddev", "Variance")):
            return self._of(expression, kind, (bool(expression.nullOnDivideByZero()),))
        return self._of(expression, kind)

    def _column(self, expression: Expression) -> Expr:
        field = self._field(expression)
        if field.id not in self._padded:
            self._padded[field.id] = _CHAR_MARK in str(expression.metadata().json())
        if self._padded[field.id]:
            return Expr("Opaque", (), field.type, ("AttributeReference", "a text of CHAR(n) or VARCHAR(n)"))
        return field.value

    def _alias(self, expression: Expression, kind: str) -> Expr:
        return Expr(
            "Alias", (self.expression(expression.child()),), kind, (self._id(expression), str(expression.name()))
        )

    def _literal(self, expression: Expression, kind: str) -> Expr:
        return _constant(expression.value(), kind)

    def _in_set(self, expression: Expression, kind: str) -> Expr:
        value = self.expression(expression.child())
        members, found = expression.hset().iterator(), []
        while members.hasNext():
            found.append(_constant(members.next(), value.type))
        return Expr("In", (value, *sorted(found, key=lambda each: str(each.info))), kind)

    def _subquery(self, expression: Expression, kind: str) -> Expr:
        return Expr("ScalarSubquery", (), kind, (), self.relation(expression.plan()))

    def _order(self, expression: Expression, kind: str) -> Expr:
        ascending = str(expression.direction().sql()) == "ASC"
        first = str(expression.nullOrdering().sql()) == "NULLS FIRST"
        return Expr("SortOrder", (self.expression(expression.child()),), kind, (ascending, first))

    def _chain(self, expression: Expression, kind: str) -> Expr:
        """Return conditions that are chained, which Catalyst has in pairs within each other, as one."""
        name = _class_of(expression)
        parts: list[Expr] = []
        waiting = [expression]
        while waiting:
            each = waiting.pop()
            if _class_of(each) == name:
                waiting += [each.right(), each.left()]
            else:
                parts.append(self.expression(each))
        return Expr(name, tuple(parts), kind)

    def _equality(self, expression: Expression, kind: str) -> Expr:
        """Return an equality; of the text of a double with that of the zero below zero, which ties are broken by."""
        found = self._of(expression, kind)
        if found.args[1] == Expr("Literal", (), "string", ("-0.0",)) and found.args[0].op == "Cast":
            (inner,) = found.args[0].args
            if inner.type in FLOATS:
                return Expr("IsNegativeZero", (inner,), kind)
        return found

    def _rounded(self, expression: Expression, kind: str) -> Expr:
        return self._of(expression, kind)

    def _later(self, expression: Expression, kind: str, op: str) -> Expr:
        start, interval = self._catalyst.children(expression)
        return Expr(op, (self.expression(start),), kind, (_interval(interval),))

    def _months_later(self, expression: Expression, kind: str) -> Expr:
        start, interval = self._catalyst.children(expression)
        months = Expr("Literal", (), "integer", (str(_interval(interval)),))
        return Expr("AddMonths", (self.expression(start), months), kind)

    def _located(self, expression: Expression, kind: str) -> Expr:
        """Return the place of one text in another, from its beginning."""
        part, text, begin = self._expressions(expression.children())
        if begin.op != "Literal" or begin.info != ("1",):
            raise _OpaqueError("another place to begin at")
        return Expr("StringInstr", (text, part), kind)

    # --- aggregates and windows ---------------------------------------------------------------------------------------

    def _aggregate(self, expression: Expression, kind: str) -> Expr:
        condition = expression.filter()
        function = self.expression(expression.aggregateFunction())
        if not condition.isDefined():
            return Expr("AggregateExpression", (function,), kind, (bool(expression.isDistinct()),))
        found = self.expression(condition.get())
        if function.op == "First" and self._is_copy(found):
            function = Expr("SingleValue", function.args, function.type)
        return Expr("AggregateExpression", (function, found), kind, (bool(expression.isDistinct()),))

    def _is_copy(self, condition: Expr) -> bool:
        """Return whether one row of each group is left: that of a copy of rows which Spark has numbered."""
        return condition.op == "EqualTo" and any(
            each.op == "Column" and each.column.id in self._copies for each in condition.args
        )

    def _exact(self, expression: Expression, kind: str) -> Expr:
        """Return an aggregate of iscp's own, whose sums are exact and rounded once."""
        function = expression.function()
        name = _EXACT.get(_class_of(function))
        if name is None:
            raise _OpaqueError(f"the exact {_class_of(function)}")
        return Expr(name, self._expressions(function.children()), kind)

    def _picked(self, expression: Expression, kind: str) -> Expr:
        return Expr(
            _class_of(expression), (self.expression(expression.child()),), kind, (bool(expression.ignoreNulls()),)
        )

    def _nth(self, expression: Expression, kind: str) -> Expr:
        info = self._whole(expression.offset()), bool(expression.ignoreNulls())
        return Expr("NthValue", (self.expression(expression.input()),), kind, info)

    def _offset(self, expression: Expression, kind: str) -> Expr:
        name = _class_of(expression)
        offset = self._whole(expression.inputOffset() if name == "Lag" else expression.offset())
        args = self.expression(expression.input()), self.expression(expression.default())
        return Expr(name, args, kind, (offset, bool(expression.ignoreNulls())))

    def _window_value(self, expression: Expression, kind: str) -> Expr:
        frame = expression.windowSpec().frameSpecification()
        function = self.expression(expression.windowFunction())
        rows = str(frame.frameType().sql())
        bounds = tuple(self._bound(each) for each in (frame.lower(), frame.upper()))
        return Expr("WindowExpression", (function,), kind, (rows, *bounds))

    def _bound(self, bound: Expression) -> int | None:
        name = _class_of(bound)
        if name == "CurrentRow":
            return 0
        return None if name.startswith("Unbounded") else self._whole(bound)

    def _whole(self, expression: Expression) -> int:
        """Return the value of a whole number that is constant."""
        found = self.expression(expression)
        sign = 1
        if found.op == "UnaryMinus":
            sign, found = -1, found.args[0]
        if found.op != "Literal" or found.type not in DIGITS or not isinstance(found.info[0], str):
            raise _OpaqueError("a number that is no constant")
        return sign * int(found.info[0])


def _interval(expression: Expression) -> int:
    """Return a constant interval: microseconds, or months of one of years and months."""
    value = expression.value() if _class_of(expression) == "Literal" else None
    if not isinstance(value, int):
        raise _OpaqueError("an interval that is no constant")
    return value


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _type(expression: Expression) -> str:
    """Return the type by Delta's name; texts under a collation, and nested types, are `OTHER`."""
    try:
        name = str(expression.dataType().typeName())
    except Py4JError:  # of what has none, such as a window's frame
        return OTHER
    return name if is_type(name) else OTHER


def _mode(expression: Expression) -> str:
    """Return the meaning of an overflow, which Catalyst has under several names."""
    for name in ("evalMode", "evalContext"):
        try:
            found = getattr(expression, name)()
            return str((found if name == "evalMode" else found.evalMode()).toString())
        except Py4JError:
            continue
    return "ANSI" if expression.failOnError() else "LEGACY"


def _text(value: Any) -> str:
    return str(value if isinstance(value, str | int) else value.toString())


def _constant(value: Any, kind: str) -> Expr:
    """Return a literal, as the algebra writes values of its type."""
    if value is None:
        return Expr("Literal", (), kind, (None,))
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float):
        text = repr(value)
    elif kind.startswith("decimal("):
        text = f"{Decimal(_text(value)):f}"
    elif isinstance(value, bytes | bytearray):
        raise _OpaqueError("a constant of bytes")
    else:
        text = _text(value)
    return Expr("Literal", (), kind, (text,))
