"""Conditions drawn at random, each with its meaning in Spark: a function of a row that gives True, False or None.

The meaning is built beside the text, so that nothing of the translation is used. Numbers are compared exactly, and
doubles as Spark does it: NaN is equal to itself and greater than all else, -0.0 is 0.0.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

Row = Mapping[str, Any]
SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("whole", pa.int32()),
        ("long", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("real", pa.float64()),
        ("single", pa.float32()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
    ]
)
TEXTS = ["", "a", "A", "ab", "a'b", "a\\b", 'a"b', "%", "_", "日本", "\U0001f600", "\n", "a%b", "NULL", " ", "--", ";"]
NUMBERS = ["0", "1", "-1", "127", "128", "-128", "-129", "2147483647", "2147483648", "-2147483649", "1.5", "-0.005"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999.99", "0.01", "100000000.00"]
DOUBLES = ["1e0", "-0e0", "1.5e0", "1e300", "CAST('NaN' AS DOUBLE)"]
DAYS = ["0001-01-01", "1969-12-31", "1970-01-01", "2026-02-28", "9999-12-31"]
TIMES = ["1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2026-11-27 14:30:00", "0001-01-01 00:00:00"]


def drawn_row(draw: random.Random) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tiny": draw.choice((-128, -1, 0, 1, 127)),
        "whole": draw.choice((-(2**31), -1, 0, 1, 128, 2**31 - 1)),
        "long": draw.choice((-(2**63), -1, 0, 1, 2**31, 2**63 - 1)),
        "price": draw.choice([Decimal(each) for each in ("0.00", "-0.01", "1.50", "99999999.99", "-99999999.99")]),
        "real": draw.choice((0.0, -0.0, 1.0, 1.5, -1.0, math.nan, -math.nan, math.inf, -math.inf, 1e300, 5e-324)),
        "single": draw.choice((0.0, -0.0, 1.5, -1.0, math.nan, math.inf)),
        "name": draw.choice(TEXTS),
        "flag": draw.random() < 0.5,
        "day": dt.date.fromisoformat(draw.choice(DAYS)),
        "at": dt.datetime.fromisoformat(draw.choice(TIMES)).replace(tzinfo=dt.UTC),
        "local": dt.datetime.fromisoformat(draw.choice(TIMES)),
    }
    return {name: None if draw.random() < 0.15 else value for name, value in row.items()}


@dataclass(frozen=True)
class Condition:
    text: str
    holds: Callable[[Row], bool | None]


def drawn_condition(draw: random.Random, depth: int = 3) -> Condition:
    kind = draw.choice(("and", "or", "not", "leaf")) if depth else "leaf"
    if kind == "not":
        one = drawn_condition(draw, depth - 1)
        return Condition(f"NOT ({one.text})", lambda row: None if (found := one.holds(row)) is None else not found)
    if kind in ("and", "or"):
        parts = [drawn_condition(draw, depth - 1) for _ in range(draw.randint(2, 3))]
        text = f" {kind.upper()} ".join(f"({each.text})" for each in parts)
        decided = kind == "or"

        def holds(row: Row) -> bool | None:
            found = [each.holds(row) for each in parts]
            return decided if decided in found else None if None in found else not decided

        return Condition(text, holds)
    return _leaf(draw)


def _leaf(draw: random.Random) -> Condition:
    column = draw.choice(SCHEMA.names)
    match draw.choice(("compare", "compare", "compare", "in", "between", "null", "safe", "like", "flag", "columns")):
        case "null":
            negated = draw.random() < 0.5
            text = f"{column} IS {'NOT ' if negated else ''}NULL"
            return Condition(text, lambda row: (row[column] is None) is not negated)
        case "flag":
            return draw.choice(
                (
                    Condition("flag", lambda row: row["flag"]),
                    Condition("flag IS NOT TRUE", lambda row: row["flag"] is not True),
                    Condition("flag IS FALSE", lambda row: row["flag"] is False),
                )
            )
        case "like":
            pattern, test = draw.choice(_PATTERNS)
            negated = draw.random() < 0.5
            text = f"name {'NOT ' if negated else ''}LIKE '{pattern}'"
            return Condition(text, lambda row: None if row["name"] is None else test(row["name"]) is not negated)
        case "columns":
            one, other = draw.choice((("tiny", "long"), ("real", "single"), ("whole", "whole"), ("name", "name")))
            sign = draw.choice(list(_SIGNS))
            return Condition(f"{one} {sign} {other}", lambda row: _compared(row[one], sign, row[other]))
        case "in":
            values = [_value(draw, column) for _ in range(draw.randint(1, 4))]
            negated = draw.random() < 0.5
            text = f"{column} {'NOT ' if negated else ''}IN ({', '.join(each for each, _ in values)})"

            def among(row: Row) -> bool | None:
                found = [_compared(row[column], "=", value) for _, value in values]
                whole = True if True in found else None if None in found else False
                return None if whole is None else whole is not negated

            return Condition(text, among)
        case "between":
            (low, least), (high, most) = _value(draw, column), _value(draw, column)

            def between(row: Row) -> bool | None:
                found = [_compared(row[column], ">=", least), _compared(row[column], "<=", most)]
                return False if False in found else None if None in found else True

            return Condition(f"{column} BETWEEN {low} AND {high}", between)
        case "safe":
            text, value = _value(draw, column)

            def same(row: Row) -> bool:
                return row[column] is None if value is None else _compared(row[column], "=", value) is True

            return Condition(f"{column} <=> {text}", same)
        case _:
            text, value = _value(draw, column)
            sign = draw.choice(list(_SIGNS))
            if draw.random() < 0.3:
                return Condition(f"{text} {sign} {column}", lambda row: _compared(value, sign, row[column]))
            return Condition(f"{column} {sign} {text}", lambda row: _compared(row[column], sign, value))


_PATTERNS: list[tuple[str, Callable[[str], bool]]] = [
    ("a%", lambda text: text.startswith("a")),
    ("%b", lambda text: text.endswith("b")),
    ("_", lambda text: len(text) == 1),
    ("%", lambda text: True),
    ("a_b", lambda text: len(text) == 3 and text[0] == "a" and text[2] == "b"),
    ("日%", lambda text: text.startswith("日")),
    ("a\\'b", lambda text: text == "a'b"),
    ("", lambda text: text == ""),
]
_SIGNS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "==": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "!=": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def _compared(one: Any, sign: str, other: Any) -> bool | None:
    if one is None or other is None:
        return None
    return _SIGNS[sign](_order(one, other))


def _order(one: Any, other: Any) -> int:
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) - math.isnan(other)
    elif isinstance(one, int | Decimal) and not isinstance(one, bool):
        one, other = Fraction(one), Fraction(other)
    elif isinstance(one, str):
        one, other = one.encode(), other.encode()
    return int(one > other) - int(one < other)


def _value(draw: random.Random, column: str) -> tuple[str, Any]:
    """Return a literal and its value: null, or one that the column may be compared with."""
    if draw.random() < 0.08:
        return "NULL", None
    match column:
        case "name":
            text = draw.choice(TEXTS)
            escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            return f"'{escaped}'", text
        case "flag":
            flag = draw.random() < 0.5
            return str(flag).upper(), flag
        case "day":
            day = draw.choice(DAYS)
            return draw.choice((f"DATE '{day}'", f"'{day}'", f"CAST('{day}' AS DATE)")), dt.date.fromisoformat(day)
        case "at":
            at = draw.choice(TIMES)
            text = draw.choice((f"TIMESTAMP '{at}'", f"TIMESTAMP '{at}Z'", f"'{at}+00:00'"))
            return text, dt.datetime.fromisoformat(at).replace(tzinfo=dt.UTC)
        case "local":
            at = draw.choice(TIMES)
            return f"TIMESTAMP_NTZ '{at}'", dt.datetime.fromisoformat(at)
        case "real" if draw.random() < 0.5:
            text = draw.choice(DOUBLES)
            return text, math.nan if "NaN" in text else float(text)
        case "real" | "single":
            number = draw.choice(("0", "1", "-1", "1.5", "2147483648"))
            return number, float(number)
        case _:
            number = draw.choice(NUMBERS)
            return number, Decimal(number) if "." in number else int(number)
