"""Which conditions are decided here, and how nulls, NaN and ways of writing count; that Spark decides the same is
compared in tests/integration/test_conditions_by_spark.py.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from iscp.algebra.row_conditions import VALUES_MAX, is_plain, passing_rows

ROWS = pa.table(
    {
        "Id": pa.array([0, 1, 2, None], pa.int32()),
        "amount": pa.array([1.5, float("nan"), None, -0.0]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-1.00"), Decimal("0.00")], pa.decimal128(10, 2)),
        "text": ["a", None, "b", ""],
        "day": pa.array([date(2024, 2, 29), None, date(1, 1, 1), date(9999, 12, 31)]),
        "flag": [True, False, None, True],
        "at": pa.array([0, 1, None, 2], pa.timestamp("us", "UTC")),
    }
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id = 1", [1]),
        ("2 > ID", [0, 1]),
        ("id <> 1", [0, 2]),
        ("NOT id = 1", [0, 2]),
        ("id IN (0, 2)", [0, 2]),
        ("id NOT IN (0, 2)", [1]),
        ("id BETWEEN 1 AND 2", [1, 2]),
        ("id IS NULL", [None]),
        ("id IS NOT NULL", [0, 1, 2]),
        ("amount > 1", [0, 1]),
        ("amount <= 1.5", [0, None]),
        ("amount = 0", [None]),
        ("price >= -1", [0, 2, None]),
        ("price < 1.505", [0, 2, None]),
        ("text <> 'a'", [2, None]),
        ("day >= '2024-02-29'", [0, None]),
        ("day = DATE '0001-01-01'", [2]),
        ("flag", [0, None]),
        ("NOT flag OR id = 2", [1, 2]),
        ("flag = FALSE", [1]),
        ("id <=> 1", [1]),
        ("NOT id <=> 1", [0, 2, None]),
        ("length(text) = 1", [0, 2]),
        ("upper(text) = 'B'", [2]),
        ("trim(text) = 'b'", [2]),
        ("text LIKE 'a%'", [0]),
        ("text NOT LIKE 'a%'", [2, None]),
        ("startswith(text, 'b') OR endswith(text, 'a')", [0, 2]),
        ("year(day) > 1 AND month(day) = 2 AND day(day) = 29", [0]),
    ],
)
def test_a_row_passes_where_the_condition_is_true(where: str, expected: list[int | None]) -> None:
    passing = passing_rows(ROWS, where)
    assert passing is not None
    assert passing["Id"].to_pylist() == expected


@pytest.mark.parametrize(
    "where",
    [
        *("text = +'1'", "+text = '1'", "text IN (+'1', '2')", "length(+text) = 1", "id = +1", "id = - -1"),
        *("id BETWEEN 0 2", "id BETWEEN ASYMMETRIC 0 AND 2", "id IN ()", "id IN (, 1)", "id IN (1,)", "id IN (1, , 2)"),
        *("startswith(text, , 'a')", "contains(text, ALL 'b')", "day(, day) = 29", "trim(FROM text) = 'a'"),
        *("(flag", "flag)", "(flag) AND AND (flag)", "AND (flag)", "flag OR", "flag flag", "flag;", "NOT", ""),
        *("text ISNULL", "text NOT NULL", "text IS NOT", "starts_with(text, 'a')", "flag {# x #}", "id\x1c= 1"),
        *("text = 'a' 'b'", "id = 1 = 1", "id = 1L", "amount < .1", "amount < 1.", "amount < 1e0", "id = 0x1"),
        *("text = r'a'", "text = N'a'", "map(a)", "text = 'a\\'", "/* x */ flag", "flag -- x", "case = 1", "`` = 1"),
        *("decimal(" * 500 + "1" + ")" * 500, "(" * 500 + "flag" + ")" * 500, "NOT " * 500 + "flag"),
        " AND ".join(["id = 1"] * 5_000),
    ],
)
def test_what_is_no_plain_condition_is_none(where: str) -> None:
    assert not is_plain(where)
    assert passing_rows(ROWS, where) is None


def test_long_conditions_are_decided() -> None:
    passing = passing_rows(ROWS, " OR ".join(f"id = {each}" for each in range(1_000)))
    assert passing is not None
    assert passing["Id"].to_pylist() == [0, 1, 2]


def test_columns_that_differ_by_their_case_and_one_named_as_the_place_are_left_to_spark() -> None:
    twice = pa.table({"a": [1], "A": [2]})
    assert passing_rows(twice, "a = 1") is None
    place = pa.table({"\1PLACE": [3, 2, 1, 0], "place": range(4)})
    assert passing_rows(place, "`\1place` = 3") is None
    assert passing_rows(place, "place = 3") is None


@pytest.mark.parametrize(
    "where",
    [
        "id + 1 = 2",
        "substring(text, 1, 1) = 'a'",
        "text RLIKE 'a'",
        "text LIKE 'a' ESCAPE 'x'",
        "text = 'it''s'",
        r"text = '\n'",
        "! flag",
        "id = 1 -- one",
        "CASE WHEN flag THEN id = 1 END",
    ],
)
def test_of_other_kinds_spark_decides(where: str) -> None:
    assert not is_plain(where)
    assert passing_rows(ROWS, where) is None


@pytest.mark.parametrize(
    "where",
    [
        "id = '1'",
        "id = 1.0",
        "id = 9223372036854775808",
        "id = NULL",
        "id = amount",
        "trim(BOTH 'a' FROM text) = ''",
        "upper(id) = 'A'",
        "length(day) = 4",
        "year(at) = 2024",
        "year(text) = 2024",
        "text LIKE text",
        "text LIKE '%a%a_b'",
        "upper(text) = 1",
        "text = 1",
        "text = DATE '2024-02-29'",
        "day = '2024-02-30'",
        "day IN ('2024-02-29')",
        "amount = 9007199254740993",
        "price = 1e0",
        "at >= '2024-01-01'",
        "missing = 1",
        "id.part = 1",
        "id BETWEEN SYMMETRIC 2 AND 1",
        f"id IN ({', '.join(map(str, range(VALUES_MAX + 1)))})",
    ],
)
def test_of_other_types_spark_decides(where: str) -> None:
    assert passing_rows(ROWS, where) is None
