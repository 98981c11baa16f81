"""Read Catalyst's optimized plan into the algebra; what the algebra lacks becomes opaque, with the reason.

Each node takes a few calls to the JVM, so a plan is read once, when a query is analyzed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import count
from typing import Any

from py4j.protocol import Py4JError

from iscp.algebra.algebra import (
    CLOCK,
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
from iscp.algebra.change_plan import shown_keys
from iscp.algebra.result_types import (
    DIGITS,
    FLOATS,
    OPERATIONS,
    OTHER,
    UntypedError,
    element_of,
    is_type,
    result_type,
)
from iscp.model.query_plan import OperatorKind
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.time_marks import ClockValue

NESTING_MAX = 60
"""Expressions within each other that are read; what is nested deeper is opaque."""

CONSTANT_ROWS_MAX = 200
"""Rows of constants within a query, and elements of a constant array, that are read; more are opaque."""

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
        *("Cast", "Sum", "Average", "GetArrayItem", "ElementAt"),
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
        "ArrayContains",
    }
)
_RANKED = frozenset({"RowNumber", "Rank", "DenseRank", "PercentRank", "CumeDist"})
_IN_ORDER = {"MaxBy": "LastInOrder", "MinBy": "FirstInOrder"}
_GROUP_NUMBER = "gid"
"""The name that Spark gives the number of a copy of rows, where it counts several columns' different values."""


@dataclass(frozen=True, slots=True)
class ResultKeys:
    """The groups, or partitions of windows, at the top of a query: `node` has them.

    The result's columns at `places` say to which one a row belongs. With `unique` none has more than one row.
    """

    node: PlanNode
    places: tuple[int, ...]
    unique: bool


@dataclass(frozen=True, eq=False)
class QueryAlgebra:
    """An analyzed query in the algebra, and what Catalyst has for its parts.

    `nodes` has its operators by their numbers, `clock` those that are the time; `columns` are Catalyst's ids of columns
    by the algebra's. `keys` has expressions by which operators work key by key, by their numbers.
    """

    root: Rel
    nodes: Mapping[int, PlanNode]
    clock: Mapping[int, tuple[Plan, ClockValue]]
    columns: Mapping[int, int]
    keys: Mapping[int, Expression]

    def result_keys(self, node: PlanNode) -> ResultKeys | None:
        """Return the keys by which an operator's rows are found, or None if no columns of it say what a row belongs
        to.
        """
        root = self.relations[node]
        shown = shown_keys(root)
        if shown is None:
            return None
        places = {each.id: place for place, each in enumerate(root.columns)}
        shown_at = tuple(places[each] for each in shown.ids)
        return ResultKeys(self.nodes[shown.top.number], shown_at, isinstance(shown.top, Group))

    @cached_property
    def relations(self) -> Mapping[PlanNode, Rel]:
        """Return the relation of each operator."""
        return {self.nodes[each.number]: each for each in self.root.walk() if each.number in self.nodes}


def read_algebra(catalyst: Catalyst, root: PlanNode) -> QueryAlgebra:
    """Return the query of an analyzed tree."""
    reader = _AlgebraReader(catalyst)
    found = reader.relation(root)
    return QueryAlgebra(
        found, reader.nodes, reader.clock, {number: each for each, number in reader.numbers.items()}, reader.keys
    )


class _OpaqueError(Exception):
    """A reason why an expression is left to Spark."""


class _AlgebraReader:
    """Columns are numbered as they are met, and operators from the top down, inputs from left to right."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self.numbers: dict[int, int] = {}
        self.nodes: dict[int, PlanNode] = {}
        self.clock: dict[int, tuple[Plan, ClockValue]] = {}
        self.keys: dict[int, Expression] = {}
        self._within: PlanNode | None = None
        self._fields_read: dict[int, TypedColumn] = {}
        self._padded: dict[int, bool] = {}
        self._operators = count()
        self._copies: set[int] = set()
        self._row_numbers: frozenset[int] = frozenset()
        self._depth = 0
        self._readers: dict[str, Callable[[Expression, str], Expr]] = {
            "Literal": self._literal,
            "ScalarSubquery": self._subquery,
            "SortOrder": self._order,
            "AggregateExpression": self._aggregate,
            "WindowExpression": self._window_value,
            "InSet": self._in_set,
            "EqualTo": self._equality,
            "EqualNullSafe": self._compared,
            **dict.fromkeys(("And", "Or"), self._chain),
            "Like": lambda each, kind: self._of(each, kind, (_text(each.escapeChar()),)),
            "ExactAggregate": self._exact,
            **dict.fromkeys(("MaxBy", "MinBy"), self._picked_row),
            **dict.fromkeys(("First", "Last"), self._picked),
            "ListAgg": self._text_in_order,
            "NthValue": self._nth,
            **dict.fromkeys(("Lag", "Lead"), self._offset),
            "TimestampAddInterval": lambda each, kind: self._later(each, kind, "AddMicroseconds"),
            "TimestampAddYMInterval": lambda each, kind: self._later(each, kind, "AddCalendarMonths"),
            "DateAddYMInterval": self._months_later,
            "StringLocate": self._located,
            "Md5": lambda each, kind: self._digest(each.child(), kind, "Md5"),
            "Sha2": self._sha2,
            "GetStructField": self._struct_field,
            "Size": self._size,
            "ElementAt": self._element_at,
            "SortArray": self._sorted_array,
            "GetArrayStructFields": self._list_in_order,
            **dict.fromkeys(("ArrayContains", "ArrayMax", "ArrayMin"), self._unordered),
            "NTile": lambda each, kind: Expr("NTile", (), kind, (self._whole(each.buckets()),)),
        }

        self._operator_readers: dict[str, Callable[[PlanNode, int], Rel]] = {
            "LogicalRDD": self._read_table,
            "Project": self._read_project,
            "Filter": self._read_filter,
            "Union": self._read_union,
            "Expand": self._read_expand,
            "Sort": self._read_sort,
            "GlobalLimit": self._read_limit,
            "Offset": self._read_limit,
            "Join": self._read_join,
            "Aggregate": self._read_group,
            "Window": self._read_window,
            "LocalRelation": self._read_constants,
            "OneRowRelation": lambda _, number: Values((), (), ((),), number=number),
        }

    # --- operators ----------------------------------------------------------------------------------------------------

    def relation(self, node: PlanNode) -> Rel:
        number = next(self._operators)
        self.nodes[number] = node
        name = str(node.plan.nodeName()).split()[0]
        reader = self._operator_readers.get(name)
        outer, self._within = self._within, node
        try:
            if reader is None:
                return self._unread(node, number, name, "an operator that the algebra lacks")
            return reader(node, number)
        except _OpaqueError as error:
            return self._unread(node, number, name, str(error))
        except Py4JError:
            return self._unread(node, number, name, "other properties than are known")
        finally:
            self._within = outer

    def _unread(self, node: PlanNode, number: int, name: str, reason: str) -> Opaque:
        kind, inputs = node.operator.kind, self._inputs(node)
        keys = tuple(map(self._key, node.keys[0])) if node.keys and len(inputs) == 1 else ()
        linear = kind is OperatorKind.GENERATE
        return Opaque(inputs, self._fields(node.plan), name, reason, keys, linear, number=number)

    def _inputs(self, node: PlanNode) -> tuple[Rel, ...]:
        return tuple(map(self.relation, node.inputs))

    def _key(self, expression: Expression) -> Expr:
        """Return an expression by which an operator works key by key."""
        number = len(self.keys)
        self.keys[number] = expression
        return replace(self.expression(expression), number=number)

    def _keys(self, seq: Any) -> tuple[Expr, ...]:
        return tuple(map(self._key, self._catalyst.items(seq)))

    def _fields(self, plan: Plan) -> tuple[TypedColumn, ...]:
        return tuple(map(self._field, self._catalyst.output(plan)))

    def _field(self, attribute: Expression) -> TypedColumn:
        """Return a column; it is read once, as each property of it is a call."""
        number = self._id(attribute)
        if number not in self._fields_read:
            self._fields_read[number] = TypedColumn(number, str(attribute.name()), _type(attribute))
        return self._fields_read[number]

    def _stored_field(self, attribute: Expression) -> TypedColumn:
        """Return a column of a table, where arrays that cannot have nulls are another type: Spark reads them."""
        field = self._field(attribute)
        if element_of(field.type) is not None and not attribute.dataType().containsNull():
            field = self._fields_read[field.id] = replace(field, type=OTHER)
        return field

    def _id(self, attribute: Expression) -> int:
        return self.numbers.setdefault(int(attribute.exprId().id()), len(self.numbers))

    def _expressions(self, seq: Any) -> tuple[Expr, ...]:
        return tuple(map(self.expression, self._catalyst.items(seq)))

    def _read_table(self, node: PlanNode, number: int) -> Rel:
        fields = tuple(map(self._stored_field, self._catalyst.output(node.plan)))
        return Table((), fields, node.operator.table, number=number)

    def _read_project(self, node: PlanNode, number: int) -> Rel:
        inputs = self._inputs(node)
        return Project(inputs, self._expressions(node.plan.projectList()), number=number)

    def _read_filter(self, node: PlanNode, number: int) -> Rel:
        inputs = self._inputs(node)
        return Filter(inputs, self.expression(node.plan.condition()), number=number)

    def _read_union(self, node: PlanNode, number: int) -> Rel:
        inputs = self._inputs(node)
        return Union(inputs, self._fields(node.plan), number=number)

    def _read_expand(self, node: PlanNode, number: int) -> Rel:
        inputs = self._inputs(node)
        below = {each.id for each in inputs[0].columns}
        fields = self._fields(node.plan)
        self._copies |= {each.id for each in fields if each.name == _GROUP_NUMBER and each.id not in below}
        rows = tuple(self._expressions(row) for row in self._catalyst.items(node.plan.projections()))
        return Expand(inputs, fields, rows, number=number)

    def _read_sort(self, node: PlanNode, number: int) -> Rel:
        inputs = self._inputs(node)
        return Sort(inputs, self._expressions(node.plan.order()), number=number)

    def _read_limit(self, node: PlanNode, number: int) -> Rel:
        """Return a limit, which Catalyst has as several operators above each other, each of the rows that the lower
        one leaves.
        """
        rows, offset = None, 0
        for plan in reversed(self._catalyst.limit_parts(node.plan)):
            if str(plan.nodeName()) == "Offset":
                skipped = self._whole(plan.offsetExpr())
                rows, offset = None if rows is None else max(rows - skipped, 0), offset + skipped
            else:
                most = self._whole(plan.limitExpr())
                rows = most if rows is None else min(rows, most)
        return Limit(self._inputs(node), rows, offset, number=number)

    def _read_join(self, node: PlanNode, number: int) -> Rel:
        inputs, plan = self._inputs(node), node.plan
        name = str(plan.joinType().toString()).split("(")[0]
        kind = _JOINS.get(name)
        if kind is None:
            return Opaque(inputs, self._fields(plan), "Join", f"the kind {name}", number=number)
        exists = self._field(plan.joinType().exists()) if kind is JoinKind.EXISTENCE else None
        condition = plan.condition()
        found = self._key(condition.get()) if condition.isDefined() else None
        return Join(inputs, kind, found, exists, number=number)

    def _read_group(self, node: PlanNode, number: int) -> Rel:
        if node.operator.kind is not OperatorKind.AGGREGATE:
            raise _OpaqueError("session windows, which a row may join or part")
        inputs, plan = self._inputs(node), node.plan
        keys = self._keys(plan.groupingExpressions())
        return Group(inputs, keys, self._expressions(plan.aggregateExpressions()), number=number)

    def _read_window(self, node: PlanNode, number: int) -> Rel:
        inputs, plan = self._inputs(node), node.plan
        partition, order = self._keys(plan.partitionSpec()), self._expressions(plan.orderSpec())
        self._row_numbers = _row_numbers(inputs[0], partition)
        items = self._expressions(plan.windowExpressions())
        self._row_numbers = frozenset()
        return Windowed(inputs, items, partition, order, number=number)

    def _read_constants(self, node: PlanNode, number: int) -> Rel:
        plan = node.plan
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
        if name == "Alias":
            return self._alias(expression)
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
            of_parts = expression.children() if deeper else expression.references().toSeq()
            parts = map(self.expression if deeper else self._column, self._catalyst.items(of_parts))
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

    def _struct_field(self, expression: Expression, kind: str) -> Expr:
        """Return a field of a struct; the type of a text of CHAR(n) stands in the field's own description."""
        field = expression.childSchema().fields()[int(expression.ordinal())]
        if _CHAR_MARK in str(field.metadata().json()):
            raise _OpaqueError("a text of CHAR(n) or VARCHAR(n)")
        if element_of(kind) is not None and not field.dataType().containsNull():
            raise _OpaqueError("an array that cannot have nulls")
        return Expr("StructField", (self.expression(expression.child()),), kind, (str(field.name()),))

    def _alias(self, expression: Expression) -> Expr:
        value = self.expression(expression.child())
        return Expr("Alias", (value,), value.type, (self._id(expression), str(expression.name())))

    def _literal(self, expression: Expression, kind: str) -> Expr:
        value, element = expression.value(), element_of(kind)
        if element is None or value is None:
            return _constant(value, kind)
        if int(value.numElements()) > CONSTANT_ROWS_MAX:
            raise _OpaqueError(f"more than {CONSTANT_ROWS_MAX} constant elements")
        elements = value.toObjectArray(expression.dataType().elementType())
        return Expr("CreateArray", tuple(_constant(each, element) for each in elements), kind)

    def _in_set(self, expression: Expression, kind: str) -> Expr:
        value = self.expression(expression.child())
        members, found = expression.hset().iterator(), []
        while members.hasNext():
            found.append(_constant(members.next(), value.type))
        return Expr("In", (value, *sorted(found, key=lambda each: str(each.info))), kind)

    def _subquery(self, expression: Expression, kind: str) -> Expr:
        plan, within = expression.plan(), self._within
        assert within is not None
        for stands, value in within.clock:
            if plan.fastEquals(stands):
                number = next(self._operators)
                self.clock[number] = stands, value
                return Expr("ScalarSubquery", (), kind, (), Table((), self._fields(plan), CLOCK, number=number))
        below = next(each for each in within.subqueries if plan.fastEquals(each.plan))
        return Expr("ScalarSubquery", (), kind, (), self.relation(below))

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
        found = self._compared(expression, kind)
        if found.args[1] == Expr("Literal", (), "string", ("-0.0",)) and found.args[0].op == "Cast":
            (inner,) = found.args[0].args
            if inner.type in FLOATS:
                return Expr("IsNegativeZero", (inner,), kind)
        return found

    def _compared(self, expression: Expression, kind: str) -> Expr:
        """Return an equality, whose sides may be keys."""
        return Expr(_class_of(expression), (self._key(expression.left()), self._key(expression.right())), kind)

    def _later(self, expression: Expression, kind: str, op: str) -> Expr:
        start, interval = self._catalyst.children(expression)
        return Expr(op, (self.expression(start),), kind, (_interval(interval),))

    def _months_later(self, expression: Expression, kind: str) -> Expr:
        start, interval = self._catalyst.children(expression)
        months = Expr("Literal", (), "integer", (str(_interval(interval)),))
        return Expr("AddMonths", (self.expression(start), months), kind)

    def _digest(self, value: Expression, kind: str, op: str) -> Expr:
        """Return a digest of a text, which Catalyst has as one of the text's bytes."""
        if _class_of(value) != "Cast":
            raise _OpaqueError("a digest of bytes")
        return Expr(op, (self.expression(value.child()),), kind)

    def _sha2(self, expression: Expression, kind: str) -> Expr:
        value, bits = self._catalyst.children(expression)
        if self._whole(bits) not in (0, 256):
            raise _OpaqueError("another number of bits")
        return self._digest(value, kind, "Sha256")

    def _located(self, expression: Expression, kind: str) -> Expr:
        """Return the place of one text in another, from its beginning."""
        part, text, begin = self._expressions(expression.children())
        if begin.op != "Literal" or begin.info != ("1",):
            raise _OpaqueError("another place to begin at")
        return Expr("StringInstr", (text, part), kind)

    def _size(self, expression: Expression, kind: str) -> Expr:
        if expression.legacySizeOfNull():
            raise _OpaqueError("a size of -1 for null")
        return self._unordered(expression, kind)

    def _unordered(self, expression: Expression, kind: str) -> Expr:
        """Return an operation to which the order of an array makes no difference."""
        array, *others = self._catalyst.children(expression)
        return Expr(_class_of(expression), (self._of_any_order(array), *map(self.expression, others)), kind)

    def _element_at(self, expression: Expression, kind: str) -> Expr:
        if expression.defaultValueOutOfBound().isDefined():
            raise _OpaqueError("a value in place of missing elements")
        return self._plain(expression, kind)

    def _sorted_array(self, expression: Expression, kind: str) -> Expr:
        collected, direction = self._catalyst.children(expression)
        array, ascending = self._of_any_order(collected), self.expression(direction)
        if ascending.info not in (("true",), ("false",)):
            raise _OpaqueError("an order that is no constant")
        return Expr("SortArray", (array,), kind, (ascending.info == ("true",),))

    # --- aggregates and windows ---------------------------------------------------------------------------------------

    def _aggregate(self, expression: Expression, kind: str) -> Expr:
        return self._aggregated(expression, self.expression(expression.aggregateFunction()))

    def _aggregated(self, expression: Expression, function: Expr, distinct: bool = False) -> Expr:
        condition, info = expression.filter(), (distinct or bool(expression.isDistinct()),)
        if not condition.isDefined():
            return Expr("AggregateExpression", (function,), function.type, info)
        found = self.expression(condition.get())
        if function.op == "First" and self._is_copy(found):
            function = Expr("SingleValue", function.args, function.type)
        return Expr("AggregateExpression", (function, found), function.type, info)

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

    def _picked_row(self, expression: Expression, kind: str) -> Expr:
        """Return a value in the first or last row, by a number that no two rows of a partition share, or by columns in
        which no two differ unseen: so ties are broken.
        """
        name = _class_of(expression)
        value, by = self._catalyst.children(expression)
        found, (counted, keys) = self.expression(value), self._row(by)
        number = keys[0]
        if len(keys) == 1 and number.op == "Column" and number.column.id in self._row_numbers:
            if counted:
                number = Expr("If", (counted, number, _constant(None, number.type)), number.type)
            return Expr(name, (found, number), kind)
        if counted:  # a row that does not count is chosen only where none counts, and has no value
            found = Expr("If", (counted, found, _constant(None, kind)), kind)
            places = (_constant(each, "boolean") for each in (name == "MaxBy", name == "MinBy"))
            keys = (Expr("If", (counted, *places), "boolean"), *keys)
        return Expr(_IN_ORDER[name], (found, *keys), kind)

    def _row(self, row: Expression) -> tuple[Expr | None, tuple[Expr, ...]]:
        """Return what is true of rows that count, None if all do, and the keys by which these are sorted."""
        counted = None
        if _class_of(row) == "If":
            condition, row, other = self._catalyst.children(row)
            if _class_of(other) != "Literal" or other.value() is not None:
                raise _OpaqueError("another order than by a row's columns")
            counted = self.expression(condition)
        if _class_of(row) == "CreateNamedStruct":  # of names and values by turns; it is not null itself
            values = self._catalyst.children(row)[1::2]
            return counted, tuple(_sort_key(self.expression(each)) for each in values)
        key = self.expression(row)
        if key.op == "Column" and key.column.id in self._row_numbers:
            return counted, (key,)
        exists = Expr("IsNotNull", (key,), "boolean")
        return Expr("And", (counted, exists), "boolean") if counted else exists, (_sort_key(key),)

    def _list_in_order(self, expression: Expression, kind: str) -> Expr:
        """Return the values of a group in the order of its rows: what views make of `collect_list`."""
        listed = expression.child()
        if _class_of(listed) != "SortArray" or _class_of(listed.base()) != "AggregateExpression":
            raise _OpaqueError("a field of an array's structs")
        ascending = self.expression(listed.ascendingOrder())
        collected = listed.base().aggregateFunction()
        if _class_of(collected) != "CollectList" or listed.base().isDistinct():
            raise _OpaqueError("a field of an array's structs")
        counted, keys = self._row(collected.child())
        value = keys[-1]
        is_last = int(expression.ordinal()) == len(keys) - 1 and counted == Expr("IsNotNull", (value,), "boolean")
        if not is_last or ascending.info not in (("true",), ("false",)):
            raise _OpaqueError("a field of an array's structs")
        function = Expr("ListInOrder", (value, *keys), kind, (ascending.info == ("true",),))
        return self._aggregated(listed.base(), function)

    def _text_in_order(self, expression: Expression, kind: str) -> Expr:
        """Return the texts of a group as one, in the order of its rows."""
        order: dict[Expr, tuple[str, str]] = {}
        for each in self._catalyst.items(expression.orderExpressions()):
            way = str(each.direction().sql()), str(each.nullOrdering().sql())
            order.setdefault(_sort_key(self.expression(each.child())), way)  # rows that are equal by a key stay so
        ways = {*order.values()}
        if ways not in ({("ASC", "NULLS FIRST")}, {("DESC", "NULLS LAST")}):
            raise _OpaqueError("an order both ways")
        delimiter = self.expression(expression.delimiter())
        if delimiter == _constant(None, delimiter.type):
            delimiter = _constant("", "string")
        args = self.expression(expression.child()), delimiter, *order
        return Expr("TextInOrder", args, kind, (("ASC", "NULLS FIRST") in ways,))

    def _of_any_order(self, expression: Expression) -> Expr:
        """Return an array whose order makes no difference to what is made of it."""
        if _class_of(expression) != "AggregateExpression":
            return self.expression(expression)
        function = expression.aggregateFunction()
        if _class_of(function) not in ("CollectList", "CollectSet"):
            return self.expression(expression)
        value, is_set = self.expression(function.child()), _class_of(function) == "CollectSet"
        kind = _type(function)
        found = self._aggregated(expression, Expr("ListInOrder", (value, _sort_key(value)), kind, (True,)), is_set)
        if result_type(found) != kind:
            raise _OpaqueError(f"of type {kind}")
        return found

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


def _sort_key(value: Expr) -> Expr:
    return Expr("NormalizeNaNAndZero", (value,), value.type) if value.type in FLOATS else value


def _row_numbers(rows: Rel, partition: tuple[Expr, ...]) -> frozenset[int]:
    """Return the columns that number the rows of each of these partitions."""
    if not isinstance(rows, Windowed) or rows.partition != partition:
        return frozenset()
    numbered = (each for each in rows.items if each.args[0].op == "WindowExpression")
    return frozenset(each.column.id for each in numbered if each.args[0].args[0].op == "RowNumber")


def _interval(expression: Expression) -> int:
    """Return a constant interval: microseconds, or months of one of years and months."""
    value = expression.value() if _class_of(expression) == "Literal" else None
    if not isinstance(value, int):
        raise _OpaqueError("an interval that is no constant")
    return value


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _type(expression: Expression) -> str:
    """Return the type by its name; texts under a collation, and nested types but for some arrays, are `OTHER`."""
    try:
        name = str(expression.dataType().typeName())
        if name == "array":
            name = f"array<{expression.dataType().elementType().typeName()}>"
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
    elif element_of(kind) is not None:
        raise _OpaqueError("a constant array in a row of constants")
    else:
        text = _text(value)
    return Expr("Literal", (), kind, (text,))
