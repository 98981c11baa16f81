"""Rows of a table with some keys as they were before its changes follow from those afterwards, or are searched for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from iscp.delta.rows.net_changes import CHANGE_TYPE
from iscp.views.refresh.view_query import rows_before

Row = tuple[Any, ...]

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("x", pa.int32())])


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def rows_of(table: pa.Table) -> Counter[Row]:
    return Counter(zip(*table.to_pydict().values(), strict=True)) if len(table) else Counter()


def drawn(draw: random.Random) -> Row:
    return draw.choice([None, 1, 2, 3]), draw.choice([None, "", "a"]), draw.choice([None, 0, 7])


@pytest.mark.parametrize("seed", range(200))
def test_what_came_is_taken_out_and_what_went_put_back(seed: int) -> None:
    """Of bags of rows, through several commits, in which a row may come and go more than once."""
    draw = random.Random(seed)
    before = [drawn(draw) for _ in range(draw.randrange(12))]
    rows, changed = [*before], list[tuple[Row, str]]()
    for _ in range(draw.randrange(12)):
        if rows and draw.random() < 0.5:
            changed.append((rows.pop(draw.randrange(len(rows))), draw.choice(["delete", "update_preimage"])))
        else:
            rows.append(drawn(draw))
            changed.append((rows[-1], draw.choice(["insert", "update_postimage"])))
    columns = draw.choice([["k"], ["t", "k"], ["x", "t", "k"]])
    keys = table_of([drawn(draw) for _ in range(3)]).select(columns)
    wanted = {*zip(*keys.to_pydict().values(), strict=True)}

    def within(rows: list[Row]) -> list[Row]:
        return [row for row in rows if tuple(row[SCHEMA.names.index(each)] for each in columns) in wanted]

    held = table_of([row for row, _ in changed]).append_column(
        CHANGE_TYPE, pa.array([how for _, how in changed], pa.string())
    )
    found = rows_before(table_of(within(rows)), held, keys)
    assert found is not None
    assert rows_of(found) == Counter(within(before))


def test_rows_that_are_not_those_afterwards_are_not_made_up() -> None:
    held = table_of([(1, "a", 0)]).append_column(CHANGE_TYPE, pa.array(["insert"]))
    assert rows_before(table_of([(1, "a", 7)]), held, pa.table({"k": [1]})) is None
