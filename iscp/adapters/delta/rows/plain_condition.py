"""Rows that hold by a condition of a job, decided on Arrow's columns: only where Spark decides the same for certain.

That is so of comparisons of a column with a value of its own kind, and of what AND, OR and NOT make of them. Nulls are
neither true nor false; NaN is equal to itself and greater than every number, and -0.0 is equal to 0.0, as in Spark.
All else (functions, arithmetic, times, casts, whatever may be spelled in two ways) is for Spark to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import cache, lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.system.late_imports import exp, sqlglot

CONDITIONS_PARSED_MAX = 4096
"""Conditions that are cached as they were parsed; others are parsed again."""

VALUES_MAX = 100
"""Values after IN that are compared one by one; Spark has sets for more."""

_SPELLED_OTHERWISE = re.compile(r"""\\|''|""|``|--|/\*|!(?!=)|[$@&|^~]""")
"""Matches what sqlglot may read in another way than Spark does, also within texts."""


@cache
def _comparisons() -> dict[type[exp.Expr], str]:
    """Return the name of Arrow's function for each comparison of SQL."""
    return {
        exp.EQ: "equal",
        exp.NEQ: "not_equal",
        exp.LT: "less",
        exp.LTE: "less_equal",
        exp.GT: "greater",
        exp.GTE: "greater_equal",
    }


_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


@cache
def _nodes() -> tuple[type[exp.Expr], ...]:
    """Return what a condition may be made of."""
    return (
        *_comparisons(),
        *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Is, exp.In, exp.Between),
        *(exp.Column, exp.Identifier, exp.Literal, exp.Neg, exp.Null, exp.Boolean, exp.Cast, exp.DataType),
    )


_WHOLE = re.compile(r"\d{1,18}")
_NUMBER = re.compile(r"\d{1,15}|(?=[\d.]{3,16}$)\d+\.\d+")
_ANY_TEXT = re.compile(".*", re.DOTALL)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_FLOAT_WHOLE_MAX, _DOUBLE_WHOLE_MAX = 2**24, 2**53
_DECIMAL_WHOLE_MAX, _DECIMAL_DIGITS_MAX = 20, 38


class _NotPlainError(Exception):
    """Spark has to decide."""


def is_plain(where: str) -> bool:
    """Return whether a condition is of the kind that `passing_rows` decides, if its columns' types are."""
    return _parsed(where) is not None


def passing_rows(rows: pa.Table, where: str) -> pa.Table | None:
    """Return the rows for which `where` is true; None: Spark has to decide.

    No text in `rows` may have a collation, or a length that it is padded to.
    """
    condition = _parsed(where)
    if condition is None:
        return None
    try:
        return rows.filter(_Decision(rows).of(condition))
    except _NotPlainError:
        return None


@lru_cache(maxsize=CONDITIONS_PARSED_MAX)
def _parsed(where: str) -> exp.Expr | None:
    if _SPELLED_OTHERWISE.search(where):
        return None
    try:
        condition = sqlglot.parse_one(where, dialect="spark", into=exp.Condition)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    return condition if all(isinstance(node, _nodes()) for node in condition.walk()) else None


class _Decision:
    """Decides for each of some rows whether a condition is true, false or null."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._names = {name.lower(): name for name in rows.column_names}

    def of(self, node: exp.Expr) -> Any:
        match node:
            case exp.Paren():
                return self.of(node.this)
            case exp.Not():
                return pc.invert(self.of(node.this))
            case exp.And():
                return pc.and_kleene(self.of(node.left), self.of(node.right))
            case exp.Or():
                return pc.or_kleene(self.of(node.left), self.of(node.right))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return pc.is_null(self._column(node.this))
            case exp.In():
                return self._is_in(node)
            case exp.Between():
                return self._is_between(node)
            case exp.Column():
                return self._flag(node)
            case exp.Binary() if (name := _comparisons().get(type(node))) is not None:
                if isinstance(node.left, exp.Column):
                    return self._compared(node.left, name, node.right)
                return self._compared(node.right, _MIRRORED.get(name, name), node.left)
        raise _NotPlainError

    def _is_in(self, node: exp.In) -> Any:
        values = node.expressions
        column = self._column(node.this)
        if not 1 <= len(values) <= VALUES_MAX or pa.types.is_date(column.type):  # with dates it compares texts
            raise _NotPlainError
        return reduce(pc.or_kleene, [self._compared(node.this, "equal", value) for value in values])

    def _is_between(self, node: exp.Between) -> Any:
        if node.args.get("symmetric"):
            raise _NotPlainError
        at_least = self._compared(node.this, "greater_equal", node.args["low"])
        return pc.and_kleene(at_least, self._compared(node.this, "less_equal", node.args["high"]))

    def _flag(self, node: exp.Expr) -> Any:
        column = self._column(node)
        if not pa.types.is_boolean(column.type):
            raise _NotPlainError
        return column

    def _column(self, node: exp.Expr) -> pa.ChunkedArray:
        if not isinstance(node, exp.Column) or len(node.parts) != 1 or node.name.lower() not in self._names:
            raise _NotPlainError
        return self._rows[self._names[node.name.lower()]]

    def _compared(self, node: exp.Expr, name: str, value: exp.Expr) -> Any:
        column = self._column(node)
        kind, compare = column.type, getattr(pc, name)
        if pa.types.is_integer(kind):
            return compare(column.cast(pa.int64()), pa.scalar(_whole(value), pa.int64()))
        if pa.types.is_floating(kind):
            passes = compare(column.cast(pa.float64()), pa.scalar(_double(value, kind), pa.float64()))
            return pc.or_kleene(passes, pc.is_nan(column)) if name.startswith("greater") else passes
        if pa.types.is_decimal(kind):
            return _compare_decimals(column, compare, value)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return compare(column, pa.scalar(_text(value), kind))
        if pa.types.is_date32(kind):
            return compare(column, pa.scalar(_date(value), kind))
        if pa.types.is_boolean(kind) and isinstance(value, exp.Boolean) and name in ("equal", "not_equal"):
            return compare(column, pa.scalar(bool(value.this)))
        raise _NotPlainError


def _compare_decimals(column: pa.ChunkedArray, compare: Callable[..., Any], value: exp.Expr) -> Any:
    """Compare with all digits of both sides: where these are too many Spark rounds.

    Raises _NotPlain there.
    """
    number = Decimal(_number(value))
    scale = max(column.type.scale, -int(number.as_tuple().exponent))
    whole = max(column.type.precision - column.type.scale, _DECIMAL_WHOLE_MAX)
    if whole + scale > _DECIMAL_DIGITS_MAX:
        raise _NotPlainError
    kind = pa.decimal128(whole + scale, scale)
    return compare(column.cast(kind), pa.scalar(number, kind))


def _signed(node: exp.Expr) -> tuple[exp.Expr, str]:
    return (node.this, "-") if isinstance(node, exp.Neg) else (node, "")


def _literal(node: exp.Expr, spelling: re.Pattern[str], *, is_string: bool) -> str:
    if not isinstance(node, exp.Literal) or node.is_string is not is_string or not spelling.fullmatch(node.name):
        raise _NotPlainError
    return str(node.name)


def _whole(node: exp.Expr) -> int:
    unsigned, sign = _signed(node)
    return int(sign + _literal(unsigned, _WHOLE, is_string=False))


def _number(node: exp.Expr) -> str:
    unsigned, sign = _signed(node)
    return sign + _literal(unsigned, _NUMBER, is_string=False)


def _double(node: exp.Expr, kind: pa.DataType) -> float:
    """Return the number, if both kinds of numbers have it exactly: Spark may widen floats or not. Raises _NotPlain."""
    text = _number(node)
    if pa.types.is_float64(kind):
        if "." not in text and abs(int(text)) > _DOUBLE_WHOLE_MAX:
            raise _NotPlainError
        return float(text)
    if "." in text or abs(int(text)) > _FLOAT_WHOLE_MAX:
        raise _NotPlainError
    return float(text)


def _text(node: exp.Expr) -> str:
    return _literal(node, _ANY_TEXT, is_string=True)


def _date(node: exp.Expr) -> date:
    if isinstance(node, exp.Cast):
        if node.to.this is not exp.DataType.Type.DATE or node.args.get("format"):
            raise _NotPlainError
        node = node.this
    try:
        return date.fromisoformat(_literal(node, _DATE, is_string=True))
    except ValueError as error:  # a day that is none
        raise _NotPlainError from error
