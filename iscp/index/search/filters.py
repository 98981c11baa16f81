"""A user's condition on stored columns, made into Lance's SQL: from its tree alone, never from its text.

The parts: comparisons of a column with a value, the condition as a whole, and the values in it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from fractions import Fraction
from typing import NoReturn, TypeAlias, assert_never

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from iscp.index.lance.lance_access import FALSE, TRUE
from iscp.model.api.api_requests import FILTER_CHARS_MAX
from iscp.model.sql.sql_names import SQL_NESTING_MAX, nesting_of
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import first_line, shown

# --- comparisons ------------------------------------------------------------------------------------------------------
# A stored column is compared with a value in Lance's SQL, with the results that Spark's comparisons have. Lance's own
# differ: a number that a column's type lacks is refused, -0.0 is less than 0.0 or equal to it as the plan may be, and a
# NaN with a sign is less than all numbers. So numbers are compared with the nearest one that the type has, and NaN is
# dealt with apart.


class Sign(Enum):
    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def opposite(self) -> Sign:
        """Return the sign that holds where this one does not, of two values that are not null."""
        return _OPPOSITES[self]

    @property
    def mirrored(self) -> Sign:
        """Return the sign that holds of two values that have changed places."""
        return _MIRRORED.get(self, self)


_OPPOSITES = {Sign.EQ: Sign.NE, Sign.LT: Sign.GE, Sign.GT: Sign.LE}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}
_MIRRORED = {Sign.LT: Sign.GT, Sign.GT: Sign.LT, Sign.LE: Sign.GE, Sign.GE: Sign.LE}


class ColumnKind(Enum):
    """The kinds of columns that comparisons distinguish."""

    WHOLE = "a whole number"
    DECIMAL = "a decimal number"
    REAL = "a number"
    TEXT = "a text"
    BOOLEAN = "TRUE or FALSE"
    DATE = "a date"
    INSTANT = "a time"
    LOCAL_TIME = "a time without a zone"
    OTHER = "nothing"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A stored column: `sql` is its name as Lance's SQL has it. The least and the greatest value are unscaled."""

    name: str
    sql: str
    type: pa.DataType
    kind: ColumnKind
    scale: int = 0
    least: int = 0
    most: int = 0


def stored_column(field: pa.Field) -> StoredColumn:
    """Return what comparisons with a column need. Raises InvalidRequest for a name that Lance's SQL cannot have."""
    kind, scale, least, most = field.type, 0, 0, 0
    if any(each in field.name for each in "`."):
        raise InvalidRequest(
            f"names the column {field.name}, whose name has a dot or a backquote",
            field=FIELD,
            remedy="Have a column of another name stored",
        )
    if pa.types.is_signed_integer(kind):
        found, most = ColumnKind.WHOLE, 2 ** (kind.bit_width - 1) - 1
        least = -most - 1
    elif pa.types.is_decimal128(kind):
        found, scale, most = ColumnKind.DECIMAL, kind.scale, 10**kind.precision - 1
        least = -most
    else:
        found = next((each for each, test in _KINDS.items() if test(kind)), ColumnKind.OTHER)
        if pa.types.is_timestamp(kind):
            found = ColumnKind.LOCAL_TIME if kind.tz is None else ColumnKind.INSTANT
    return StoredColumn(field.name, f"`{field.name}`", kind, found, scale, least, most)


_KINDS = {
    ColumnKind.REAL: lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind),
    ColumnKind.TEXT: lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    ColumnKind.BOOLEAN: pa.types.is_boolean,
    ColumnKind.DATE: pa.types.is_date32,
}


def quoted(text: str) -> str:
    """Return a text as a literal of Lance's SQL, in which a backslash means itself."""
    return "'" + text.replace("'", "''") + "'"


def compared(column: StoredColumn, sign: Sign, value: Value) -> str:
    """Return a comparison with a value that is not null. Raises InvalidRequest for a value of another kind."""
    match column.kind, value:
        case (ColumnKind.WHOLE | ColumnKind.DECIMAL | ColumnKind.REAL, float()):
            if column.kind is ColumnKind.DECIMAL:
                raise refusal(
                    f"compares the decimal {column.name} with a double", "Write the number without an exponent"
                )
            return _real(column, sign, value)
        case (ColumnKind.WHOLE | ColumnKind.DECIMAL, int() | Decimal()) if not isinstance(value, bool):
            return _exact(column, sign, Fraction(value))
        case (ColumnKind.REAL, int() | Decimal()) if not isinstance(value, bool):
            return _real(column, sign, float(value))
        case (ColumnKind.TEXT, str()):
            return f"{column.sql} {sign.value} {quoted(value)}"
        case (ColumnKind.BOOLEAN, bool()):
            return _boolean(column, sign, value)
        case (ColumnKind.DATE, str() | dt.date()) if not isinstance(value, dt.datetime):
            day = date_of(value) if isinstance(value, str) else value
            return f"{column.sql} {sign.value} CAST('{day.isoformat()}' AS DATE)"
        case (ColumnKind.INSTANT | ColumnKind.LOCAL_TIME, str() | dt.date()):
            return f"{column.sql} {sign.value} {_instant(column, value)}"
        case _:
            remedy = (
                "Ask IS NULL or IS NOT NULL of it"
                if column.kind is ColumnKind.OTHER
                else "Compare it with such a value"
            )
            raise refusal(
                f"compares {column.name}, which is {column.kind.value} to a filter, with {value!r}"[:300], remedy
            )


def equal_to_any(column: StoredColumn, values: Sequence[Value], negated: bool) -> list[str]:
    """Return comparisons any of which holds (`negated`: all of which hold) if a column is (none) one of the values."""
    each = [compared(column, Sign.NE if negated else Sign.EQ, value) for value in values]
    # The whole list in one comparison is found by an index, where there is one.
    start = f"{column.sql} {Sign.NE.value if negated else Sign.EQ.value} "
    if (
        len(each) > 1
        and column.kind in (ColumnKind.WHOLE, ColumnKind.TEXT, ColumnKind.DATE)
        and all(x.startswith(start) for x in each)
    ):
        listed = ", ".join(dict.fromkeys(x.removeprefix(start) for x in each))
        return [f"{column.sql} {'NOT IN' if negated else 'IN'} ({listed})"]
    return list(dict.fromkeys(each))


def _exact(column: StoredColumn, sign: Sign, value: Fraction) -> str:
    """Compare with the nearest number that the column's type has."""
    shifted = value * 10**column.scale
    floor, ceiling = math.floor(shifted), math.ceil(shifted)
    match sign:
        case Sign.EQ | Sign.NE:
            if floor != ceiling or not column.least <= floor <= column.most:
                return _of_all(column, sign is Sign.NE)
            return _beside(column, sign, floor)
        case Sign.LT | Sign.GE:  # of what is less than the value, the greatest is ceiling - 1
            if not column.least < ceiling <= column.most:
                return _of_all(column, (ceiling > column.most) == (sign is Sign.LT))
            return _beside(column, sign, ceiling)
        case Sign.GT | Sign.LE:
            if not column.least <= floor < column.most:
                return _of_all(column, (floor < column.least) == (sign is Sign.GT))
            return _beside(column, sign, floor)
        case _ as never:
            assert_never(never)


def _beside(column: StoredColumn, sign: Sign, unscaled: int) -> str:
    if column.kind is ColumnKind.WHOLE:
        # Lance reads the least number as a minus before one that is too large, and so as a double.
        number = f"CAST('{unscaled}' AS BIGINT)" if unscaled == -(2**63) else str(unscaled)
        return f"{column.sql} {sign.value} {number}"
    text = f"{Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -column.scale)):f}"
    return f"{column.sql} {sign.value} CAST('{text}' AS DECIMAL({column.type.precision},{column.type.scale}))"


def _of_all(column: StoredColumn, holds: bool) -> str:
    """Return what holds of all values, or of none; never of null."""
    return f"{column.sql} IS NOT NULL" if holds else "FALSE"


def _real(column: StoredColumn, sign: Sign, value: float) -> str:
    """Compare as doubles: NaN is equal to itself and greater than all else, -0.0 is 0.0."""
    number = _as_real(column)
    nan = f"isnan({number})"
    if column.kind is ColumnKind.WHOLE:
        nan = "FALSE"
    if math.isnan(value):
        match sign:
            case Sign.EQ | Sign.GE:
                return nan
            case Sign.NE | Sign.LT:
                return f"({column.sql} IS NOT NULL AND NOT {nan})"
            case Sign.LE | Sign.GT:
                return _of_all(column, sign is Sign.LE)
            case _ as never:
                assert_never(never)
    text = f"CAST('{value + 0.0!r}' AS DOUBLE)"
    comparison = f"{number} {sign.value} {text}"
    match sign:
        case Sign.EQ | Sign.LT | Sign.LE:
            return f"({comparison} AND NOT {nan})"
        case Sign.NE | Sign.GT | Sign.GE:
            return f"({comparison} OR {nan})"
        case _ as never:
            assert_never(never)


def _as_real(column: StoredColumn) -> str:
    return f"(CAST({column.sql} AS DOUBLE) + CAST('0.0' AS DOUBLE))"  # the sum of -0.0 and 0.0 is 0.0


def _boolean(column: StoredColumn, sign: Sign, value: bool) -> str:
    holds = {each for each in (False, True) if _holds(sign, each, value)}
    if len(holds) != 1:
        return _of_all(column, bool(holds))
    return f"{column.sql} IS {'TRUE' if holds == {True} else 'FALSE'}"


def _holds(sign: Sign, one: bool, other: bool) -> bool:
    return {
        Sign.EQ: one == other,
        Sign.NE: one != other,
        Sign.LT: one < other,
        Sign.LE: one <= other,
        Sign.GT: one > other,
        Sign.GE: one >= other,
    }[sign]


def _instant(column: StoredColumn, value: str | dt.date) -> str:
    local = column.kind is ColumnKind.LOCAL_TIME
    if isinstance(value, str):
        value = local_time_of(value) if local else instant_of(value)
    elif not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day, tzinfo=None if local else dt.UTC)
    if (value.tzinfo is None) != local:
        remedy = "Write TIMESTAMP_NTZ" if local else "Write TIMESTAMP"
        raise refusal(f"compares {column.name} with a time {'with' if local else 'without'} a zone", remedy)
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"CAST('{text}{'' if local else 'Z'}' AS TIMESTAMP)"


def compared_columns(one: StoredColumn, sign: Sign, other: StoredColumn) -> str:
    """Return a comparison of two columns. Raises InvalidRequest for two that no comparison is exact of."""
    same = one.kind is other.kind and one.kind is not ColumnKind.OTHER
    if one.kind is ColumnKind.DECIMAL:
        same = one.type == other.type
    if not same:
        raise refusal(f"compares {one.name} with {other.name}, which has another type", "Compare columns of one type")
    if one.kind is not ColumnKind.REAL:
        return f"{one.sql} {sign.value} {other.sql}"
    left, right = (_as_real(each) for each in (one, other))
    both = f"{one.sql} IS NOT NULL AND {other.sql} IS NOT NULL"
    plain = f"({left} {sign.value} {right} AND NOT isnan({left}) AND NOT isnan({right}))"
    nans = {
        Sign.EQ: f"(isnan({left}) AND isnan({right}))",
        Sign.NE: f"((isnan({left}) AND NOT isnan({right})) OR (isnan({right}) AND NOT isnan({left})))",
        Sign.LT: f"(isnan({right}) AND NOT isnan({left}))",
        Sign.LE: f"isnan({right})",
        Sign.GT: f"(isnan({left}) AND NOT isnan({right}))",
        Sign.GE: f"isnan({left})",
    }[sign]
    return f"({both} AND ({plain} OR {nans}))"


# --- the condition ----------------------------------------------------------------------------------------------------
# The condition is read as Spark's SQL. What is not in the list below is refused by name. Comparisons with null are
# neither true nor false, which NOT leaves as it is. So NOT is moved into the comparisons, of which nothing but AND and
# OR remains: there null is as good as false.

COMPARISONS_MAX = 1_000
"""Comparisons of a filter, each value of a list counted; one with more is refused."""

LEVELS_MAX = 100
"""Levels of AND, OR and NOT within each other in a filter; one with more is refused."""


_SIGNS: Mapping[type[exp.Expr], Sign] = {
    exp.EQ: Sign.EQ,
    exp.NEQ: Sign.NE,
    exp.LT: Sign.LT,
    exp.LTE: Sign.LE,
    exp.GT: Sign.GT,
    exp.GTE: Sign.GE,
}
_ALLOWED: Mapping[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys([*_SIGNS, exp.And, exp.Or, exp.NullSafeEQ, exp.NullSafeNEQ], frozenset({"this", "expression"})),
    exp.Is: frozenset({"this", "expression"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    **dict.fromkeys([exp.Not, exp.Paren, exp.Neg, exp.Boolean], frozenset({"this"})),
    exp.Null: frozenset(),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    **dict.fromkeys([exp.Cast, exp.TryCast], frozenset({"this", "to", "safe", "requires_string"})),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.DataTypeParam: frozenset({"this"}),
    exp.Concat: frozenset({"expressions"}),  # two texts side by side, which are then refused as such
}
"""What the tree of a filter may be made of: nodes, and which of their arguments may have a value."""

_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_ESCAPED = frozenset("\\'\"ntr")


def lance_filter(condition: str, schema: pa.Schema, stored: Sequence[str]) -> str:
    """Return a condition as a filter of Lance's: TRUE if it holds of all rows, FALSE if of none.

    `stored` are the columns that may be named. Raises InvalidRequest (field `filter`).
    """
    if len(condition) > FILTER_CHARS_MAX:
        raise refusal(f"has {len(condition)} characters, more than {FILTER_CHARS_MAX}", "Make it shorter")
    if nesting_of(condition) > SQL_NESTING_MAX:
        _refuse_depth()
    for found in _ESCAPE.finditer(condition):
        if found[0][1:] not in _ESCAPED:
            raise refusal(f"has {shown(found[0])} at character {found.start() + 1}", "Write \\\\ for a backslash")
    columns = {name.lower(): stored_column(schema.field(name)) for name in stored if not set(name) & set("`.")}
    try:
        trees = sqlglot.parse(condition, dialect="spark")
    except SqlglotError as error:
        raise refusal(
            f"does not parse: {first_line(error)}", "Write a condition as in SQL: a > 1 AND b = 'x'"
        ) from error
    except RecursionError:
        _refuse_depth()
    if len(trees) != 1 or trees[0] is None:
        raise refusal("is not one condition", "Write one, without a semicolon")
    tree = trees[0]
    assert isinstance(tree, exp.Expr)  # sqlglot declares a wider type
    for node in tree.walk():
        _refuse_unlisted(node)
    try:
        return _FilterTranslation(columns, list(stored)).sql(tree)
    except RecursionError:
        _refuse_depth()


def _refuse_depth() -> NoReturn:
    raise refusal(
        "is nested too deeply", f"Use at most {SQL_NESTING_MAX} parentheses and {LEVELS_MAX} levels of AND, OR, NOT"
    )


def _refuse_unlisted(node: exp.Expr) -> None:
    known = _ALLOWED.get(type(node))
    if known is None or any(value and name not in known for name, value in node.args.items()):
        _refuse_node(node)


def _refuse_node(node: exp.Expr) -> NoReturn:
    raise refusal(
        f"has {shown(node.sql('spark'))}, which filters cannot have",
        "Use comparisons, AND, OR, NOT, IN, BETWEEN, LIKE and IS NULL over stored columns",
    )


@dataclass
class _FilterTranslation:
    columns: Mapping[str, StoredColumn]
    stored: Sequence[str]
    count: int = 0

    def sql(self, node: exp.Expr, negated: bool = False, level: int = 0) -> str:
        """Return SQL that is true where `node` is true (`negated`: where it is false), and else false or null."""
        if level > LEVELS_MAX:
            _refuse_depth()
        match node:
            case exp.Paren():
                return self.sql(node.this, negated, level)
            case exp.Not():
                return self.sql(node.this, not negated, level + 1)
            case exp.And() | exp.Or():
                parts = [self.sql(each, negated, level + 1) for each in _chain(node)]
                return _joined(parts, "AND" if isinstance(node, exp.And) is not negated else "OR")
            case exp.Boolean() | exp.Null():
                value = literal_value(node)
                return FALSE if value is None or value is negated else TRUE
        self.count += 1
        self._refuse_many()
        return self._comparison(node, negated)

    def _comparison(self, node: exp.Expr, negated: bool) -> str:
        if (sign := _SIGNS.get(type(node))) is not None:
            return self._binary(node.this, sign.opposite if negated else sign, node.expression)
        match node:
            case exp.Column():
                column = self._column(node)
                if column.kind is not ColumnKind.BOOLEAN:
                    raise refusal(
                        f"has {column.name} as a condition, which is not TRUE or FALSE", "Compare it with a value"
                    )
                return compared(column, Sign.EQ, not negated)
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._null_safe(node, negated is isinstance(node, exp.NullSafeEQ))
            case exp.Is():
                return self._is(node, negated)
            case exp.In():
                return self._in(node, negated)
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                parts = [
                    self._binary(node.this, Sign.LT if negated else Sign.GE, low),
                    self._binary(node.this, Sign.GT if negated else Sign.LE, high),
                ]
                return _joined(parts, "OR" if negated else "AND")
            case exp.Like():
                return self._like(node, negated)
        _refuse_node(node)

    def _binary(self, left: exp.Expr, sign: Sign, right: exp.Expr) -> str:
        left, right = left.unnest(), right.unnest()
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            return compared_columns(self._column(left), sign, self._column(right))
        if isinstance(right, exp.Column):
            left, sign, right = right, sign.mirrored, left
        if not isinstance(left, exp.Column):
            raise refusal(
                f"has {shown(left.sql('spark'))} where a column is to be", "Compare stored columns with values"
            )
        column, value = self._column(left), literal_value(right)
        if value is None:
            return FALSE
        return compared(column, sign, value)

    def _null_safe(self, node: exp.Binary, negated: bool) -> str:
        """Compare so that null is equal to null, and to nothing else."""
        left, right = node.this.unnest(), node.expression.unnest()
        if isinstance(right, exp.Column):
            left, right = right, left
        if not isinstance(left, exp.Column) or isinstance(right, exp.Column):
            raise refusal("compares by <=> what is not a column and a value", "Compare a stored column with a value")
        column, value = self._column(left), literal_value(right)
        if value is None:
            return f"{column.sql} IS {'NOT NULL' if negated else 'NULL'}"
        if negated:
            return _joined([compared(column, Sign.NE, value), f"{column.sql} IS NULL"], "OR")
        return compared(column, Sign.EQ, value)

    def _is(self, node: exp.Is, negated: bool) -> str:
        left = node.this.unnest()
        if not isinstance(left, exp.Column):
            raise refusal(f"has {shown(node.sql('spark'))}", "Ask IS NULL of a stored column")
        column = self._column(left)
        if isinstance(node.expression, exp.Null):
            return f"{column.sql} IS {'NOT NULL' if negated else 'NULL'}"
        if isinstance(node.expression, exp.Boolean) and column.kind is ColumnKind.BOOLEAN:
            return f"{column.sql} IS {'NOT ' if negated else ''}{TRUE if node.expression.this else FALSE}"
        raise refusal(
            f"has {shown(node.sql('spark'))}", "Ask IS NULL of a column, or IS TRUE of one that is TRUE or FALSE"
        )

    def _in(self, node: exp.In, negated: bool) -> str:
        left = node.this.unnest()
        if not isinstance(left, exp.Column):
            raise refusal(f"has {shown(left.sql('spark'))} before IN", "Name a stored column there")
        column = self._column(left)
        self.count += len(node.expressions)
        self._refuse_many()
        values: list[Value] = [literal_value(each) for each in node.expressions]
        some = [each for each in values if each is not None]
        if negated and len(some) < len(values):
            some_sql = [FALSE]  # nothing is known not to be null
        else:
            some_sql = equal_to_any(column, some, negated) if some else [FALSE]
        return _joined(some_sql, "AND" if negated else "OR")

    def _like(self, node: exp.Like, negated: bool) -> str:
        left, pattern = node.this.unnest(), literal_value(node.expression)
        if not isinstance(left, exp.Column) or (column := self._column(left)).kind is not ColumnKind.TEXT:
            raise refusal(f"has {shown(left.sql('spark'))} before LIKE", "Name a stored column of texts there")
        if pattern is None:
            return FALSE
        if not isinstance(pattern, str) or "\\" in pattern:
            raise refusal(f"has the pattern {shown(str(pattern))}", "Write a text with % and _, without a backslash")
        if node.args.get("negate"):
            negated = not negated
        return f"{column.sql} {'NOT LIKE' if negated else 'LIKE'} {quoted(pattern)}"

    def _column(self, node: exp.Column) -> StoredColumn:
        found = None if node.args.get("table") is not None else self.columns.get(node.name.lower())
        if found is None:
            raise refusal(
                f"names {shown(node.sql('spark'))}, which the index does not store",
                f"Name one of {shown(', '.join(self.stored)) if self.stored else 'no columns: none are stored'}",
            )
        return found

    def _refuse_many(self) -> None:
        if self.count > COMPARISONS_MAX:
            raise refusal(f"has more than {COMPARISONS_MAX} comparisons", "Compare less")


def _chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of a chain of one operator, from left to right, however long it is."""
    parts, stack, kind = [], [node], type(node)
    while stack:
        last = stack.pop()
        if type(last) is kind:
            stack += [last.expression, last.this]
        else:
            parts.append(last)
    yield from parts


def _joined(parts: Sequence[str], operator: str) -> str:
    """Join by AND or OR, in a tree that is as flat as can be: a chain of a thousand would be as deep to Lance."""
    whole, nothing = (TRUE, FALSE) if operator == "AND" else (FALSE, TRUE)
    if nothing in parts:
        return nothing
    rest = [each for each in dict.fromkeys(parts) if each != whole]
    if not rest:
        return whole
    while len(rest) > 1:
        pairs = [rest[at : at + 2] for at in range(0, len(rest), 2)]
        rest = [f"({f' {operator} '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return rest[0]


# --- values -----------------------------------------------------------------------------------------------------------
# The values that a filter compares columns with, read from its tree as Spark reads them.

DIGITS_MAX = 38
"""Digits of a number in a filter, as of Spark's decimals; one with more is refused."""

FIELD = "filter"

Value: TypeAlias = bool | int | Decimal | float | str | dt.date | dt.datetime | None
"""What a literal is: a float only where Spark's is a double; a datetime without a zone only for TIMESTAMP_NTZ."""

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?P<exponent>[eE][+-]?\d{1,3})?")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_TIME = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?) ?(?P<zone>Z|UTC|[+-]\d{2}:\d{2})?)?"
)
_WHOLE = {exp.DataType.Type.TINYINT: 8, exp.DataType.Type.SMALLINT: 16, exp.DataType.Type.BIGINT: 64}
_WHOLE[exp.DataType.Type.INT] = 32
_INSTANTS = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)


def refusal(fault: str, remedy: str) -> InvalidRequest:
    """Return the error for a filter that is none of ours."""
    return InvalidRequest(fault, field=FIELD, remedy=remedy)


def literal_value(node: exp.Expr) -> Value:
    """Return the value of a literal, of one with a sign, or of a cast of one. Raises InvalidRequest for others."""
    match node:
        case exp.Paren():
            return literal_value(node.this)
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(node.this)
        case exp.Literal() if node.is_string:
            return str(node.this)
        case exp.Literal():
            return _number(str(node.this))
        case exp.Neg():
            value = literal_value(node.this)
            if isinstance(value, bool) or not isinstance(value, int | Decimal | float):
                raise refusal(f"has a sign before {shown(node.this.sql('spark'))}", "Write it before a number alone")
            # A decimal's own minus rounds it to 28 digits.
            return value.copy_negate() if isinstance(value, Decimal) else -value
        case exp.Cast():  # sqlglot's TryCast, as which it reads Spark's casts, is one
            return _cast(literal_value(node.this), node.to)
        case exp.Concat():
            raise refusal("has two texts side by side, or a quotation mark twice", "Write \\' for a mark within a text")
        case _:
            raise refusal(
                f"compares with {shown(node.sql('spark'))}, which is no value",
                "Compare stored columns with numbers, texts, dates, times, TRUE, FALSE or NULL",
            )


def _number(text: str) -> int | Decimal | float:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise refusal(f"has {shown(text)}, which is no number", "Write digits, as in 12.5")
    if found["exponent"]:
        return _finite(float(text), text)
    number = Decimal(text)
    if len(number.as_tuple().digits) > DIGITS_MAX or -int(number.as_tuple().exponent) > DIGITS_MAX:
        raise refusal(f"has a number of more than {DIGITS_MAX} digits", "Write a shorter one")
    return number if "." in text else int(text)


def _finite(number: float, text: object) -> float:
    if not math.isfinite(number):
        raise refusal(f"has {shown(text)}, which no double is", "Write a smaller number")
    return number


def _cast(value: Value, to: exp.DataType) -> Value:
    kind = to.this
    if value is None:
        return None
    match value:
        case str() if kind == exp.DataType.Type.DATE:
            return date_of(value)
        case str() if kind in _INSTANTS:
            return instant_of(value)
        case str() if kind == exp.DataType.Type.TIMESTAMPNTZ:
            return local_time_of(value)
        case str() if kind in (exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT) and value.lower() == "nan":
            return math.nan
        case bool() | float():
            pass
        case str() | int() | Decimal() if kind == exp.DataType.Type.DECIMAL:
            return _decimal(value, to)
        case int() | Decimal() | str() if kind == exp.DataType.Type.DOUBLE:
            return _finite(float(_exact_decimal(value)), value)
        case int() | str() if kind in _WHOLE:
            number = _exact_decimal(value)
            if number == int(number) and abs(number) < 2 ** (_WHOLE[kind] - 1):
                return int(number)
    raise refusal(
        f"casts {shown(str(value))} to {to.sql('spark')}", "Cast literals to DATE, TIMESTAMP, DECIMAL or BIGINT alone"
    )


def _exact_decimal(value: int | Decimal | str) -> Decimal:
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip().lstrip("+-")):
        raise refusal(f"has {shown(value)} as a number", "Write digits, as in 12.5")
    try:
        return Decimal(value)
    except InvalidOperation:
        raise refusal(f"has {shown(value)} as a number", "Write digits, as in 12.5") from None


def _decimal(value: int | Decimal | str, to: exp.DataType) -> Decimal:
    """Return a number as a decimal of a type; one that would have to be rounded is refused."""
    sizes = [int(each.this.this) for each in to.expressions] or [10]
    precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
    number = _exact_decimal(value)
    if not 0 <= scale <= precision <= DIGITS_MAX or precision < 1:
        raise refusal(f"has the type {to.sql('spark')}, which is none", f"Choose at most {DIGITS_MAX} digits")
    shifted = Fraction(number) * 10**scale
    if shifted.denominator != 1 or abs(shifted) >= 10**precision:
        raise refusal(f"has {shown(str(value))}, which is no {to.sql('spark')}", "Choose a type that has the number")
    return number


def date_of(text: str) -> dt.date:
    """Return the day that a text names as year, month and day. Raises InvalidRequest."""
    try:
        if _DATE.fullmatch(text.strip()):
            return dt.date.fromisoformat(text.strip())
    except ValueError:
        pass
    raise refusal(f"has {shown(text)} as a date", "Write it as 2026-11-27")


def instant_of(text: str) -> dt.datetime:
    """Return the instant that a text names; without a zone it is one of UTC. Raises InvalidRequest."""
    found, parts = _time(text)
    if parts["zone"] is None or found.tzinfo is None:
        return found.replace(tzinfo=dt.UTC)
    try:
        return found.astimezone(dt.UTC)
    except OverflowError:
        raise refusal(f"has {shown(text)} as a time", "Write a time of the years 1 to 9999") from None


def local_time_of(text: str) -> dt.datetime:
    """Return the time without a zone that a text names. Raises InvalidRequest."""
    found, parts = _time(text)
    if parts["zone"] is not None:
        raise refusal(f"has the time {shown(text)} with a zone for a column without", "Leave out the zone")
    return found


def _time(text: str) -> tuple[dt.datetime, re.Match[str]]:
    parts = _TIME.fullmatch(text.strip())
    try:
        if parts is not None:
            zone = "+00:00" if parts["zone"] in ("Z", "UTC") else parts["zone"] or ""
            return dt.datetime.fromisoformat(f"{parts['date']}T{parts['time'] or '00:00'}{zone}"), parts
    except ValueError:
        pass
    raise refusal(
        f"has {shown(text)} as a time", "Write it as 2026-11-27 14:30:00, with +01:00 or Z if it is not of UTC"
    )
