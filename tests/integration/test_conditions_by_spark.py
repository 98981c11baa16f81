"""A condition that is decided on Arrow's columns holds for the rows for which it does by Spark."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from iscp.algebra.row_conditions import is_plain, passing_rows

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

ROWS = 400
CONDITIONS = 300
MUTATED = 3_000
AT_ONCE = 50
NAN, ENDLESS = float("nan"), float("inf")

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, -1, 0, 1, 127]),
    "whole": (pa.int64(), [-(2**63), -(2**53) - 1, -1, 0, 1, 2, 2**53, 2**63 - 1]),
    "single": (pa.float32(), [NAN, ENDLESS, -ENDLESS, -0.0, 0.0, 1.0, 2.0, 0.1, 2.0**24]),
    "double": (pa.float64(), [NAN, ENDLESS, -ENDLESS, -0.0, 0.0, 1.0, 2.5, 0.1, 0.1 + 0.2, 2.0**53, 1e300]),
    "price": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("2.50"), Decimal("-2.50"), Decimal("99999999.99")]),
    "huge": (pa.decimal128(38, 10), [Decimal("0E-10"), Decimal("2.5"), Decimal("9" * 28)]),
    "text": (pa.string(), ["", " ", "a", "A", "a ", "ä", "z", "\U0001f600", "\uffff", "1", "null", "2024-02-29"]),
    "day": (pa.date32(), [date(1, 1, 1), date(1582, 10, 4), date(2024, 2, 29), date(9999, 12, 31)]),
    "flag": (pa.bool_(), [True, False]),
}
LITERALS = [
    *(
        "0",
        "-0",
        "1",
        "-1",
        "2",
        "127",
        "128",
        "-129",
        "16777216",
        "16777217",
        "9007199254740993",
        "9223372036854775807",
    ),
    *("9223372036854775808", "0.1", "0.3", "2.5", "-2.50", "2.505", "0.30000000000000004", "1e0", "1L", "2.5D", "1BD"),
    *("''", "'a'", "'A'", "'a '", '"a"', "'ä'", "'\U0001f600'", "'1'", "'null'", "'it''s'", r"'\n'", "x'61'", "r'a'"),
    *("'2024-02-29'", "DATE '2024-02-29'", "DATE'1582-10-04'", "'2024-2-29'", "TRUE", "FALSE", "NULL"),
]
FITTING = {
    "tiny": LITERALS[:10],
    "whole": LITERALS[:12],
    "single": LITERALS[:9],
    "double": [*LITERALS[:11], *LITERALS[13:17]],
    "price": [*LITERALS[:12], *LITERALS[13:18]],
    "text": ["''", "'a'", "'A'", "'a '", '"a"', "'ä'", "'\U0001f600'", "'1'", "'null'", "'it''s'"],
    "day": ["'2024-02-29'", "DATE '2024-02-29'", "DATE'1582-10-04'"],
}
FUNCTIONS = {
    **{f"{function}(text)": FITTING["text"] for function in ("upper", "lower", "trim")},
    **{f"{function}(day)": FITTING["tiny"] for function in ("year", "month", "day", "dayofmonth")},
    "length(text)": FITTING["tiny"],
}
MATCHES = ("startswith", "endswith", "contains")
PATTERNS = ("''", "'a%'", "'%a'", "'_'", "'%😀%'", "'A'", "'%'")
COMPARED = ("<=>", "=", "==", "<>", "!=", "<", "<=", ">", ">=")
LEAVES = ("function", "match", "compared", "mirrored", "null", "in", "between", "flag")


def table() -> pa.Table:
    """Every value of each column, and nulls, beside any other ones'."""
    draw = Random(7)
    return pa.table(
        {
            name: pa.array([None if draw.random() < 0.15 else draw.choice(values) for _ in range(ROWS)], kind)
            for name, (kind, values) in VALUES.items()
        }
        | {"place": pa.array(range(ROWS), pa.int64())}
    )


def comparisons() -> list[str]:
    """Each column with each literal, on either side."""
    draw = Random(3)
    pairs = [(name, literal) for name, literal in product(VALUES, LITERALS)]
    plain = [f"{name} {draw.choice(COMPARED)} {literal}" for name, literal in pairs]
    mirrored = [f"{literal} {draw.choice(COMPARED)} {name}" for name, literal in pairs]
    return [*plain, *mirrored]


def condition(draw: Random, depth: int = 3) -> str:
    """Of comparisons of what can be compared, and few others."""
    name = draw.choice([*FITTING])
    one, other = draw.choice(FITTING[name]), draw.choice(FITTING[name])
    negated, compared = draw.choice(("", "NOT ")), draw.choice(COMPARED)
    match draw.choice(("AND", "OR", "NOT", "AND", "OR", "NOT", *LEAVES) if depth else LEAVES):
        case "AND" | "OR" as joining:
            joined = f"{condition(draw, depth - 1)} {joining} {condition(draw, depth - 1)}"
            return draw.choice((joined, f"({joined})"))
        case "NOT":
            return draw.choice(("NOT {}", "NOT ({})")).format(condition(draw, depth - 1))
        case "function":
            value = draw.choice([*FUNCTIONS])
            return f"{value} {compared} {draw.choice(FUNCTIONS[value])}"
        case "match":
            pattern = draw.choice(PATTERNS)
            matches = f"text {negated}LIKE {pattern}", f"{draw.choice(MATCHES)}(text, {pattern})"
            return draw.choice(matches)
        case "null":
            return f"{name} IS {negated}NULL"
        case "in":
            return f"{name} {negated}IN ({one}, {other})"
        case "between":
            return f"{name} {negated}BETWEEN {one} AND {other}"
        case "mirrored":
            return f"{one} {compared} {name}"
        case "flag":
            return draw.choice(("flag", "FLAG", "`flag`", "flag = true", "false <> flag"))
    return f"{name} {compared} {one}"


def mutated(draw: Random, where: str) -> str:
    """The condition with some of its tokens gone, doubled, changed for others, or beside others."""
    tokens = re.findall(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\w+|<=>|[<>=!]+|[^\w\s]", where)
    for _ in range(draw.randint(1, 2)):
        place = draw.randrange(len(tokens))
        other = draw.choice([*tokens, "+", "-", ",", "(", ")", "NOT", "AND", "IS", "NULL", "1", "'a'", "flag"])
        tokens[place : place + 1] = draw.choice(([], [tokens[place]] * 2, [other], [other, tokens[place]]))
        if not tokens:
            return where
    return " ".join(tokens)


def by_spark(runtime: SparkRuntime, rows: pa.Table, conditions: list[str]) -> dict[str, list[int]]:
    """The places of the rows for which each holds."""
    frame = runtime.root.createDataFrame(rows)
    found: dict[str, list[int]] = {}
    for begin in range(0, len(conditions), AT_ONCE):
        part = conditions[begin : begin + AT_ONCE]
        columns = [F.expr(each).alias(f"c{number}") for number, each in enumerate(part)]
        held = frame.select("place", *columns).toArrow()
        found |= {each: sorted(held.filter(held[f"c{n}"])["place"].to_pylist()) for n, each in enumerate(part)}
    return found


def test_what_is_decided_is_what_spark_decides(spark_runtime: SparkRuntime) -> None:
    rows, draw = table(), Random(11)
    drawn = [condition(draw) for _ in range(CONDITIONS)]
    other = [mutated(draw, draw.choice(drawn)) for _ in range(MUTATED)]
    passing = {each: passing_rows(rows, each) for each in (*comparisons(), *drawn, *other)}
    decided = {each: held["place"].to_pylist() for each, held in passing.items() if held is not None}
    assert decided == by_spark(spark_runtime, rows, [*decided])
    assert 0 < sum(each in decided for each in {*other} - {*drawn}) < 0.5 * MUTATED
    assert sum(each in decided for each in drawn) > 0.7 * CONDITIONS
    assert all(map(is_plain, decided))
