"""The values that a filter compares columns with, read from its tree as Spark reads them."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

from sqlglot import exp

from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import shown

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
            return _finite(float(_exact(value)), value)
        case int() | str() if kind in _WHOLE:
            number = _exact(value)
            if number == int(number) and abs(number) < 2 ** (_WHOLE[kind] - 1):
                return int(number)
    raise refusal(
        f"casts {shown(str(value))} to {to.sql('spark')}", "Cast literals to DATE, TIMESTAMP, DECIMAL or BIGINT alone"
    )


def _exact(value: int | Decimal | str) -> Decimal:
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
    number = _exact(value)
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
