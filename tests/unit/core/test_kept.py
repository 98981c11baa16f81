"""What a filter leaves of a net change. SQLite reads the SQL as Spark does, which tries it in the pipeline's tests."""

from __future__ import annotations

import sqlite3

import pytest

from iscp.core.kept import OP, kept_op


@pytest.mark.parametrize(
    ("op", "value", "left"),
    [
        ("i", 1, "i"),
        ("i", 9, None),
        ("i", None, None),
        ("u", 1, "u"),
        ("u", 9, "d"),
        ("u", None, "d"),
        ("d", 1, "d"),
        ("d", 9, "d"),
    ],
)
def test_what_is_left_of_a_change(op: str, value: int | None, left: str | None) -> None:
    expression = kept_op("v < 5 -- small ones")
    with sqlite3.connect(":memory:") as db:
        found = db.execute(f"SELECT {expression} FROM (SELECT ? AS {OP}, ? AS v)", (op, value)).fetchone()
    assert found == (left,)
