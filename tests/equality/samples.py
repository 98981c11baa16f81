"""Nasty and random values of each type, from which the table of equality makes its rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import pyarrow as pa

PAIRS_MAX = 420
"""Rows of a table of pairs; of more, some are drawn."""

GROUPS = 60
_BETWEEN = (-7760620367004511, -7760620367004511, -7760620367004512)

DECIMALS = tuple(
    f"decimal({precision},{scale})"
    for precision, scale in ((5, 2), (7, 2), (9, 0), (15, 2), (17, 2), (18, 6), (20, 0), (38, 10), (38, 0), (10, 10))
)
INTS = ("byte", "short", "integer", "long")
FLOATS = ("float", "double")
TIMES = ("date", "timestamp", "timestamp_ntz")
MOMENTS = TIMES[1:]
NUMBERS = (*INTS, *FLOATS, *DECIMALS)
COMPARED = (*NUMBERS, *TIMES, "string", "boolean", "binary")
ARRAYS = tuple(f"array<{each}>" for each in (*INTS, "string", "boolean", "decimal(7,2)", "decimal(38,10)"))

TEXTS = (
    *("", " ", "  a ", "a", "A", "ab", "abc", "Zebra", "zebra", "straße", "STRASSE", "İstanbul", "ıI", "é", "e\u0301"),
    *("ﬁn", "😀", "😀a", "日本語", "a\tb", "\ta\n", "x%y_z", "a\\b", "100", "-5", "+7", " 12 ", "1.5", "1e3", "0x1F"),
    *("2024-02-29", "2024-2-9", "2024-13-01", "true", "T", "NaN", "Infinity", "null", "9223372036854775808", "-0"),
    *("00012", "12.", ".5", "-.5", "1.005", "abcabcabc", "\u00a0a\u00a0", "Ǆ", "ŉ", "ΑΣ", "Σ", "'", '"', "a_b", "\\%"),
)
DATES = tuple(
    dt.date(*each)
    for each in (
        *((1, 1, 1), (1582, 10, 4), (1582, 10, 15), (1900, 2, 28), (1900, 3, 1), (1969, 12, 31), (1970, 1, 1)),
        *((999, 12, 31), (2000, 2, 29), (2019, 12, 30), (2020, 12, 31), (2021, 1, 3), (2024, 1, 31), (2024, 2, 29)),
        *((2024, 12, 29), (9999, 12, 31)),
    )
)
MICROS = (
    *(-62135596800000000, -30641760000000001, -1, 0, 1, 999999, 1000000, -1000001, 951782399999999, 1709164800000000),
    *(1709164799999999, 1735689599999999, 253402300799999999, -2208988800000001, 1709164800120000),
)
DOUBLES = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1.5, 2.5, -2.5, 0.125, 1.005, 2.675, 1e-5, 1e7, 1e10, 123456789.125, 1e15 + 0.5),
    *(9007199254740993.0, 1e16, 1e100, 1.7976931348623157e308, 5e-324, float("inf"), float("-inf"), float("nan")),
    *(2147483647.5, -2147483648.9, 9.223372036854775e18, 1e19),
)
SINGLES = (0.0, -0.0, 1.5, 2.5, 0.1, -1.25, 16777217.0, 3.4028234663852886e38, *DOUBLES[22:25], 1e-45)

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_ARROW = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def element_of(kind: str) -> str:
    return kind.removeprefix("array<").removesuffix(">")


def digits_of(kind: str) -> tuple[int, int]:
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def arrow_type(kind: str) -> pa.DataType:
    if kind in ARRAYS:
        return pa.list_(arrow_type(element_of(kind)))
    return pa.decimal128(*digits_of(kind)) if kind.startswith("decimal") else _ARROW[kind]


def _whole(draw: random.Random, bits: int) -> list[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    some = (draw.randint(low, high) for _ in range(3))
    return [low, low + 1, -1, 0, 1, 2, -2, 3, 7, -7, 10, high - 1, high, high // 2, *some]


def _decimals(draw: random.Random, precision: int, scale: int) -> list[Decimal]:
    most = 10**precision - 1
    units = [0, 1, -1, 5, -5, 15, 25, 49, 50, 51, 99, -149, -150, most, -most, most // 2, most // 3]
    units += [draw.randint(-most, most) for _ in range(4)]
    units += [draw.randint(-(10 ** (precision // 2)), 10 ** (precision // 2)) for _ in range(4)]
    with localcontext(Context(prec=60)):
        return [Decimal(each if abs(each) <= most else each % most).scaleb(-scale) for each in units]


def values_of(kind: str) -> list[Any]:
    """Values of a type, the same each time."""
    draw = random.Random(kind)
    if kind in ARRAYS:
        elements = [None, *values_of(element_of(kind))]
        return [
            [],
            *([each] for each in elements[:6]),
            *(draw.choices(elements, k=draw.randint(1, 5)) for _ in "1234567"),
            [elements[2], elements[1], None, elements[2], None, elements[1]],
            [*elements, *reversed(elements)],
        ]
    if kind in _BITS:
        return [*_whole(draw, _BITS[kind])]
    if kind.startswith("decimal"):
        return [*_decimals(draw, *digits_of(kind))]
    fixed: dict[str, Sequence[Any]] = {
        "float": SINGLES,
        "double": DOUBLES,
        "string": TEXTS,
        "date": DATES,
        "boolean": (True, False),
        "binary": (b"", b"\0", b"a", b"ab", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\0", "é".encode()),
        "timestamp": MICROS,
        "timestamp_ntz": MICROS,
    }
    return [*fixed[kind]]


def pairs(first: str, second: str) -> pa.Table:
    """All pairs of values and nulls of two types, as `a` and `b`, numbered by `id`."""
    draw = random.Random(first + second)
    rows = [(a, b) for a in (None, *values_of(first)) for b in (None, *values_of(second))]
    if len(rows) > PAIRS_MAX:
        rows = draw.sample(rows, PAIRS_MAX)
    a, b = zip(*rows, strict=True)
    return _table(range(len(rows)), {"a": (a, first), "b": (b, second)})


def cut(first: str) -> pa.Table:
    """Texts, or dates, with small whole numbers beside them: positions, lengths, days."""
    few = (-2147483648, -40, -7, -6, -5, -3, -2, -1, 0, 1, 2, 3, 5, 6, 7, 28, 31, 100, 2147483647, None)
    near = tuple(each for each in few if each is None or abs(each) < 1000)
    values = ("", "a", "abcdef", "😀b日c") if first == "string" else DATES
    rows = [(value, number) for value in (None, *values) for number in (few if first == "string" else near)]
    a, b = zip(*rows, strict=True)
    return _table(range(len(rows)), {"a": (a, first), "b": (b, "integer")})


def groups(kind: str) -> pa.Table:
    """Groups of values, half of them of small ones alone, so that their sums are in range."""
    draw = random.Random(f"groups {kind}")
    values = values_of(kind)
    small = [each for each in values if kind in NUMBERS and each == each and 1e-9 < abs(each) < 1e6]
    keys, found = [], []
    for group in range(GROUPS):
        for _ in range(draw.randint(0, 6)):
            keys.append(group)
            found.append(None if draw.random() < 0.15 else draw.choice(small if small and group % 2 else values))
    if kind in ("long", "double"):  # their sum is between two doubles, of which DuckDB takes the other one
        keys += [GROUPS] * len(_BETWEEN)
        found += [float(each) if kind == "double" else each for each in _BETWEEN]
    table = _table(range(len(keys)), {"a": (found, kind)})
    return table.add_column(1, "g", pa.array(keys, pa.int64()))


def partitions() -> pa.Table:
    """Partitions with ties, for windows."""
    draw = random.Random("partitions")
    size = 160
    doubles = (None, 0.0, -0.0, 1.5, float("nan"), float("inf"), -2.0)
    columns: dict[str, tuple[Sequence[Any], str]] = {
        "g": ([draw.randint(0, 8) for _ in range(size)], "long"),
        "k": ([draw.choice((None, 1, 2, 3, 3)) for _ in range(size)], "long"),
        "s": ([draw.choice((*TEXTS[:20], None)) for _ in range(size)], "string"),
        "d": ([draw.choice((*values_of("decimal(7,2)"), None)) for _ in range(size)], "decimal(7,2)"),
        "f": ([draw.choice(doubles) for _ in range(size)], "double"),
        "t": ([draw.choice((*DATES, None)) for _ in range(size)], "date"),
    }
    return _table(range(size), columns)


def _table(ids: Sequence[int], columns: dict[str, tuple[Sequence[Any], str]]) -> pa.Table:
    arrays = {name: pa.array(values, arrow_type(kind)) for name, (values, kind) in columns.items()}
    return pa.table({"id": pa.array(ids, pa.int64()), **arrays})
