"""Comparisons of a stored column with a value, in Lance's SQL, with the results that Spark's have.

Lance's own differ: a number that a column's type lacks is refused, -0.0 is less than 0.0 or equal to it as the plan may
be, and a NaN with a sign is less than all numbers. So numbers are compared with the nearest one that the type has, and
NaN is dealt with apart.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import assert_never

import pyarrow as pa

from iscp.core.values.errors import InvalidRequest
from iscp.index.search.filter_literals import FIELD, Value, date_of, instant_of, local_time_of, refusal


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
