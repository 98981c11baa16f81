"""Rows of files are read once while they are among those that were used last, and never are more held than may be."""

from __future__ import annotations

import random
from collections import OrderedDict

import pyarrow as pa
import pytest

from iscp.adapters.delta.rows.row_cache import RowCache

BYTES_MAX = 1_000


@pytest.mark.parametrize("seed", range(5))
def test_what_was_used_last_is_held_up_to_the_limit(seed: int) -> None:
    draw, held = random.Random(seed), RowCache(BYTES_MAX)
    known: OrderedDict[int, int] = OrderedDict()
    for _ in range(300):
        name = draw.randint(0, 15)
        rows = pa.table({"a": pa.array([name] * (10 * name), pa.int64())})
        read: list[int] = []

        def give(rows: pa.Table = rows, read: list[int] = read) -> pa.Table:
            read.append(1)
            return rows

        assert held.rows(name, give).equals(rows)
        assert bool(read) == (name not in known)
        known[name] = rows.nbytes
        known.move_to_end(name)
        while sum(known.values()) > BYTES_MAX:
            known.popitem(last=False)


def test_what_cannot_be_read_is_read_again() -> None:
    held, rows = RowCache(BYTES_MAX), pa.table({"a": [1]})

    def fail() -> pa.Table:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        held.rows("a", fail)
    assert held.rows("a", lambda: rows) is rows
    assert held.rows("a", fail) is rows
