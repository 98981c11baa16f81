"""Which conditions are decided here, and how nulls, NaN and ways of writing count; that Spark decides the same is
compared in tests/integration/test_conditions_by_spark.py.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from iscp.adapters.delta.rows.plain_condition import VALUES_MAX, is_plain, passing_rows

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
    ],
)
def test_a_row_passes_where_the_condition_is_true(where: str, expected: list[int | None]) -> None:
    passing = passing_rows(ROWS, where)
    assert passing is not None
    assert passing["Id"].to_pylist() == expected


@pytest.mark.parametrize(
    "where",
    [
        "id + 1 = 2",
        "length(text) = 1",
        "text LIKE 'a%'",
        "text = 'it''s'",
        r"text = '\n'",
        "! flag",
        "id = 1 -- one",
        "id <=> 1",
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
