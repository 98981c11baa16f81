"""What columns of random tables hold: few distinct values of each type, so that rows meet each other and are equal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa


class Family(Enum):
    """Types that an expression takes for one another."""

    WHOLE = "whole"
    DECIMAL = "decimal"
    DOUBLE = "double"
    TEXT = "text"
    DATE = "date"
    TIME = "time"
    TRUTH = "truth"
    BYTES = "bytes"
    LIST = "list"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as Spark and Arrow call it, and what a column of it holds besides nulls."""

    sql: str
    family: Family
    arrow: pa.DataType
    values: tuple[Any, ...]


_WHOLE = (1, 2, 3, 0, -1, 100)
_POINT = tuple(map(Decimal, ("1.10", "2.20", "0.00", "-3.00", "999.99")))
_DOUBLE = (1.5, 0.0, -0.0, float("nan"), 2.25, float("inf"), float("-inf"))
"""Sums of them are the same in any order."""
_TENTHS = (0.1, 0.2, 0.3, 0.6, 0.7, 1.1)
"""Sums of them are not."""
_TIMES = (
    datetime(2024, 2, 29, 12, 30, 0, 1),
    datetime(1969, 12, 31, 23, 59, 59),
    datetime(2024, 3, 1),
    datetime(2024, 2, 29, 12, 30, 0, 2),
)

KINDS = (
    Kind("bigint", Family.WHOLE, pa.int64(), (*_WHOLE, 2**40)),
    Kind("string", Family.TEXT, pa.string(), ("p", "q", "", "P", "p ", "é")),
    Kind("int", Family.WHOLE, pa.int32(), _WHOLE),
    Kind("decimal(10,2)", Family.DECIMAL, pa.decimal128(10, 2), _POINT),
    Kind("double", Family.DOUBLE, pa.float64(), _DOUBLE),
    Kind("date", Family.DATE, pa.date32(), (date(2024, 2, 29), date(1969, 12, 31), date(2024, 3, 1))),
    Kind("boolean", Family.TRUTH, pa.bool_(), (True, False)),
    Kind("smallint", Family.WHOLE, pa.int16(), _WHOLE),
    Kind("tinyint", Family.WHOLE, pa.int8(), _WHOLE),
    Kind("decimal(5,2)", Family.DECIMAL, pa.decimal128(5, 2), _POINT),
    Kind("decimal(38,10)", Family.DECIMAL, pa.decimal128(38, 10), _POINT),
    Kind("float", Family.DOUBLE, pa.float32(), _DOUBLE),
    Kind("timestamp", Family.TIME, pa.timestamp("us", "UTC"), tuple(each.replace(tzinfo=UTC) for each in _TIMES)),
    Kind("binary", Family.BYTES, pa.binary(), (b"", b"p", b"\x00\xff")),
    Kind("array<bigint>", Family.LIST, pa.list_(pa.int64()), ([1, 2], [], [None], [2, 1], [1])),
    Kind(
        "struct<p:bigint,q:string>",
        Family.STRUCT,
        pa.struct([("p", pa.int64()), ("q", pa.string())]),
        ({"p": 1, "q": "p"}, {"p": None, "q": "q"}, {"p": 1, "q": None}, {"p": 2, "q": "p"}),
    ),
)

SUMMED = 4
"""Of KINDS, that which has values of SUMMED_KIND instead where sums of doubles are played."""

SUMMED_KIND = replace(KINDS[SUMMED], values=_TENTHS)

LITERALS: dict[Family, tuple[str, ...]] = {
    Family.WHOLE: ("1", "2", "0"),
    Family.DECIMAL: ("1.10", "2.2"),
    Family.DOUBLE: ("1.5D", "0.0D", "0.6D", "0.3D"),
    Family.TEXT: ("'p'", "'q'", "''"),
    Family.DATE: ("DATE'2024-02-29'",),
    Family.TIME: ("TIMESTAMP'2024-03-01 00:00:00Z'",),
    Family.TRUTH: ("true", "false"),
    Family.BYTES: ("X'70'",),
    Family.LIST: ("array(1L, 2L)",),
    Family.STRUCT: ("named_struct('p', 1L, 'q', 'p')",),
}


def value_of(kind: Kind, nullable: bool, number: int) -> Any:
    """The value that `number` stands for: 0 is null, or the first one where there are no nulls."""
    if nullable:
        return None if number == 0 else kind.values[(number - 1) % len(kind.values)]
    return kind.values[number % len(kind.values)]
