"""Write the algebra of a query as JSON for the file beside a view's rows, and read it without trusting it.

The file lies in a tenant's directory. Fields, operators, operations and types that are not written here are refused by
name; sizes and depth are bounded; types of expressions are those that the rules give, and columns are those of inputs.
So whatever is read is a query over the tables of the job's spec, of operations that the algebra has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from iscp.algebra.algebra import (
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
    TableRows,
    TypedColumn,
    Union,
    Values,
    Windowed,
)
from iscp.algebra.duck_text import literal
from iscp.algebra.result_types import AGGREGATES, OTHER, RANKINGS, UntypedError, is_type, result_type
from iscp.model.values.untrusted_values import exact_int, exact_name, shown

ALGEBRA_NODES_MAX = 50_000
"""Operators and expressions of a stored query; one of more is not read."""

ALGEBRA_DEPTH_MAX = 160
"""Operators and expressions within each other in a stored query; one that is deeper is not read."""

_COLUMNS_MAX = 10_000
_TEXT_CHARS_MAX = 100_000
_ID_MAX = 2**31
_LIMIT_MAX = 2**62

_WITHIN = frozenset({*AGGREGATES, *RANKINGS, "AggregateExpression", "WindowExpression", "Alias", "SortOrder"})
"""Operations that stand only where an operator has them, and not within other expressions."""


class ForgedAlgebraError(ValueError):
    """A stored query that is not one that was written here: the message says what is wrong with it."""


def read_algebra_document(document: object) -> Rel:
    """Return the query that a document of `algebra_document` has. Raises ForgedAlgebraError."""
    try:
        return _AlgebraParser().relation(document)
    except ForgedAlgebraError:
        raise
    except UntypedError as error:
        raise ForgedAlgebraError(str(error)) from error
    except RecursionError as error:
        raise ForgedAlgebraError("is nested too deep") from error
    except ValueError as error:
        raise ForgedAlgebraError(str(error)) from error


_UNWRITTEN = frozenset({(Filter, "untrue"), (Opaque, "keys"), (Opaque, "linear")})
"""What plans of changes have, and stored queries have not: the first is a planner's, the others are Spark's."""

# --- writing ----------------------------------------------------------------------------------------------------------


def algebra_document(relation: Rel) -> dict[str, Any]:
    """Return a query as JSON has it."""
    found: dict[str, Any] = {"operator": type(relation).__name__, "number": relation.number}
    if relation.inputs:
        found["inputs"] = [algebra_document(each) for each in relation.inputs]
    for each in fields(relation):
        if each.name not in ("inputs", "number") and (type(relation), each.name) not in _UNWRITTEN:
            found[each.name] = _written(getattr(relation, each.name))
    return found


def _written(value: object) -> object:
    """Return a part of an operator: columns are lists of three, names and kinds are texts."""
    match value:
        case Expr():
            return _expression(value)
        case TypedColumn():
            return [value.id, value.name, value.type]
        case tuple():
            return [_written(each) for each in value]
        case _:
            return value


def _expression(expression: Expr) -> dict[str, Any]:
    found: dict[str, Any] = {"op": expression.op, "type": expression.type}
    if expression.args:
        found["args"] = [_expression(each) for each in expression.args]
    if expression.info:
        found["info"] = [*expression.info]
    if expression.plan is not None:
        found["plan"] = algebra_document(expression.plan)
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


class _AlgebraParser:
    """A reader of one document; it raises ValueError, of which ForgedAlgebraError and UntypedError are kinds."""

    def __init__(self) -> None:
        self._nodes = self._depth = 0
        self._operators: dict[str, tuple[frozenset[str], Callable[[Mapping[str, Any], tuple[Rel, ...], int], Rel]]] = {
            "Table": (frozenset({"fields", "name", "at"}), self._table),
            "Values": (frozenset({"fields", "rows"}), self._values),
            "Project": (frozenset({"items"}), self._project),
            "Filter": (frozenset({"condition"}), self._filter),
            "Union": (frozenset({"fields"}), self._union),
            "Expand": (frozenset({"fields", "rows"}), self._expand),
            "Join": (frozenset({"kind", "condition", "exists"}), self._join),
            "Group": (frozenset({"keys", "items"}), self._group),
            "Windowed": (frozenset({"items", "partition", "order"}), self._windowed),
            "Sort": (frozenset({"order"}), self._sort),
            "Limit": (frozenset({"count", "offset"}), self._limit),
            "Opaque": (frozenset({"fields", "name", "reason"}), self._opaque),
        }

    def _enter(self) -> None:
        self._nodes += 1
        self._depth += 1
        if self._nodes > ALGEBRA_NODES_MAX:
            raise ForgedAlgebraError(f"has more than {ALGEBRA_NODES_MAX} operators and expressions")
        if self._depth > ALGEBRA_DEPTH_MAX:
            raise ForgedAlgebraError(f"is nested deeper than {ALGEBRA_DEPTH_MAX}")

    def relation(self, document: object) -> Rel:
        self._enter()
        found = _object(document)
        name = found.get("operator")
        known = self._operators.get(name) if isinstance(name, str) else None
        if known is None:
            raise ForgedAlgebraError(f"has the operator {shown(name)}, which there is not")
        names, read = known
        _only(found, names | {"operator", "number"}, {"inputs"}, f"the operator {name}")
        inputs = tuple(self.relation(each) for each in _some(found.get("inputs", []), "inputs"))
        relation = read(found, inputs, exact_int(found["number"], "number", -1, _ID_MAX))
        self._depth -= 1
        return relation

    # --- operators ----------------------------------------------------------------------------------------------------

    def _table(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        _inputs(inputs, 0)
        if found["at"] != TableRows.NEW:  # what a planner makes of a query is not stored
            raise ForgedAlgebraError(f"reads a table at {shown(found['at'])}")
        name = exact_name(found["name"], "name")
        return Table(inputs, self._columns(found["fields"]), name, TableRows(found["at"]), number=number)

    def _values(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        _inputs(inputs, 0)
        fields = self._columns(found["fields"])
        rows = self._rows(found["rows"], fields, {})
        if any(each.op != "Literal" for row in rows for each in row):
            raise ForgedAlgebraError("has rows of other than constants")
        return Values(inputs, fields, rows, number=number)

    def _project(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        return Project(inputs, self._items(found["items"], _scope(inputs, 1)), number=number)

    def _filter(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        return Filter(inputs, self._condition(found["condition"], _scope(inputs, 1)), number=number)

    def _union(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        fields = self._columns(found["fields"])
        for each in inputs:
            _fits([column.type for column in each.columns], fields)
        if not inputs:
            raise ForgedAlgebraError("has a Union without inputs")
        return Union(inputs, fields, number=number)

    def _expand(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        scope, fields = _scope(inputs, 1), self._columns(found["fields"])
        return Expand(inputs, fields, self._rows(found["rows"], fields, scope), number=number)

    def _join(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        scope = _scope(inputs, 2)
        if found["kind"] not in [*JoinKind]:
            raise ForgedAlgebraError(f"has the join {shown(found['kind'])}")
        kind = JoinKind(found["kind"])
        condition = None if found["condition"] is None else self._condition(found["condition"], scope)
        if (kind is JoinKind.EXISTENCE) == (found["exists"] is None):
            raise ForgedAlgebraError("has a column for whether rows exist, and no such join, or the reverse")
        exists = None if found["exists"] is None else self._column(found["exists"])
        if exists is not None and exists.type != "boolean":
            raise ForgedAlgebraError(f"says of {exists.type} whether rows exist")
        return Join(inputs, kind, condition, exists, number=number)

    def _group(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        scope = _scope(inputs, 1)
        keys = tuple(self._value(each, scope) for each in _some(found["keys"], "keys"))
        items = self._items(found["items"], scope, frozenset({"AggregateExpression"}))
        return Group(inputs, keys, items, number=number)

    def _windowed(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        scope = _scope(inputs, 1)
        items = self._items(found["items"], scope, frozenset({"WindowExpression"}))
        partition = tuple(self._value(each, scope) for each in _some(found["partition"], "partition"))
        return Windowed(inputs, items, partition, self._orders(found["order"], scope), number=number)

    def _sort(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        return Sort(inputs, self._orders(found["order"], _scope(inputs, 1)), number=number)

    def _limit(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        _inputs(inputs, 1)
        rows = None if found["count"] is None else exact_int(found["count"], "count", 0, _LIMIT_MAX)
        return Limit(inputs, rows, exact_int(found["offset"], "offset", 0, _LIMIT_MAX), number=number)

    def _opaque(self, found: Mapping[str, Any], inputs: tuple[Rel, ...], number: int) -> Rel:
        name, reason = (exact_name(found[each], each) for each in ("name", "reason"))
        return Opaque(inputs, self._columns(found["fields"]), name, reason, number=number)

    # --- parts of operators -------------------------------------------------------------------------------------------

    def _columns(self, document: object) -> tuple[TypedColumn, ...]:
        return tuple(self._column(each) for each in _some(document, "fields"))

    def _column(self, document: object) -> TypedColumn:
        parts = _some(document, "a column")
        if len(parts) != 3:
            raise ForgedAlgebraError(f"has a column of {len(parts)} parts")
        return TypedColumn(exact_int(parts[0], "id", 0, _ID_MAX), exact_name(parts[1], "name"), _kind(parts[2]))

    def _rows(
        self, document: object, fields: tuple[TypedColumn, ...], scope: Mapping[int, str]
    ) -> tuple[tuple[Expr, ...], ...]:
        rows = tuple(tuple(self._value(each, scope) for each in _some(row, "a row")) for row in _some(document, "rows"))
        for row in rows:
            _fits([each.type for each in row], fields)
        return rows

    def _items(
        self, document: object, scope: Mapping[int, str], more: frozenset[str] = frozenset()
    ) -> tuple[Expr, ...]:
        items = tuple(self._expression(each, scope, more | {"Alias"}) for each in _some(document, "items"))
        for each in items:
            if each.op not in ("Alias", "Column"):
                raise ForgedAlgebraError(f"has {each.op} as a column")
            exact_int(each.info[0], "id", 0, _ID_MAX)
        return items

    def _orders(self, document: object, scope: Mapping[int, str]) -> tuple[Expr, ...]:
        orders = tuple(self._expression(each, scope, frozenset({"SortOrder"})) for each in _some(document, "order"))
        for each in orders:
            if each.op not in ("SortOrder", "Opaque"):
                raise ForgedAlgebraError(f"has {each.op} as an order")
        return orders

    def _condition(self, document: object, scope: Mapping[int, str]) -> Expr:
        found = self._value(document, scope)
        if found.type != "boolean":
            raise ForgedAlgebraError(f"has a condition of type {found.type}")
        return found

    def _value(self, document: object, scope: Mapping[int, str]) -> Expr:
        return self._expression(document, scope, frozenset())

    # --- expressions --------------------------------------------------------------------------------------------------

    def _expression(self, document: object, scope: Mapping[int, str], may: frozenset[str]) -> Expr:
        """Return an expression over the columns of a scope; `may` has those of `_WITHIN` that may stand in it."""
        self._enter()
        found = _object(document)
        _only(found, {"op", "type"}, {"args", "info", "plan"}, "an expression")
        op, kind = exact_name(found["op"], "op"), _kind(found["type"])
        if op in _WITHIN - may:
            raise ForgedAlgebraError(f"has {op} where it cannot be")
        below = may - {"Alias", "SortOrder"}
        if op in ("AggregateExpression", "WindowExpression"):
            inner = {"AggregateExpression"} if op == "WindowExpression" else set()
            below = frozenset({*AGGREGATES, *(RANKINGS if op == "WindowExpression" else ()), *inner})
        elif op in AGGREGATES or op in RANKINGS:
            below = frozenset()
        args = tuple(self._expression(each, scope, below) for each in _some(found.get("args", []), "args"))
        info = tuple(_property(each) for each in _some(found.get("info", []), "info"))
        plan = None if "plan" not in found else self.relation(found["plan"])
        expression = Expr(op, args, kind, info, plan)
        self._check(expression, scope)
        self._depth -= 1
        return expression

    def _check(self, expression: Expr, scope: Mapping[int, str]) -> None:
        ruled = result_type(expression)
        if ruled != expression.type:
            raise ForgedAlgebraError(f"has {expression.op} of type {expression.type}, and the rules give {ruled}")
        if expression.op == "Column" and scope.get(expression.column.id) != expression.type:
            raise ForgedAlgebraError(f"has the column {shown(expression.column.name)}, which its inputs have not")
        if expression.op == "Literal" and expression.type != OTHER and literal(expression) is None:
            raise ForgedAlgebraError(f"has {shown(expression.info[0])} as a constant of type {expression.type}")


def _scope(inputs: tuple[Rel, ...], number: int) -> dict[int, str]:
    _inputs(inputs, number)
    return {column.id: column.type for each in inputs for column in each.columns}


def _inputs(inputs: tuple[Rel, ...], number: int) -> None:
    if len(inputs) != number:
        raise ForgedAlgebraError(f"has an operator with {len(inputs)} inputs, and not {number}")


def _fits(kinds: list[str], fields: tuple[TypedColumn, ...]) -> None:
    if kinds != [each.type for each in fields]:
        raise ForgedAlgebraError("has rows of other types than its columns")


def _kind(value: object) -> str:
    kind = exact_name(value, "type")
    if not is_type(kind):
        raise ForgedAlgebraError(f"has the type {shown(kind)}, which there is not")
    return kind


def _property(value: object) -> Info:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > _TEXT_CHARS_MAX:
            raise ForgedAlgebraError(f"has a constant of {len(value)} characters")
        value.encode()
        return value
    return exact_int(value, "a property", -_LIMIT_MAX, _LIMIT_MAX)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ForgedAlgebraError(f"has {shown(value)} in the place of an object")
    return value


def _only(found: Mapping[str, Any], names: Iterable[str], more: Iterable[str], where: str) -> None:
    """Raise ForgedAlgebraError if a field is missing, or is one that there is not."""
    missing, other = {*names} - {*found}, {*found} - {*names} - {*more}
    if missing:
        raise ForgedAlgebraError(f"lacks {shown(min(missing))} in {where}")
    if other:
        raise ForgedAlgebraError(f"has the field {shown(min(other))} in {where}, which there is not")


def _some(value: object, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _COLUMNS_MAX:
        raise ForgedAlgebraError(f"has {shown(value)} as {name}, and not a list of at most {_COLUMNS_MAX}")
    return value
