"""Groups kept as counts and sums are, after changes, what all of their rows come to."""

from __future__ import annotations

import random
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from iscp.adapters.delta.rows.group_moves import moved_groups
from iscp.core.sql.sql_names import OP

SCHEMA = pa.schema([("k0", pa.string()), ("k1", pa.decimal128(7, 2)), ("n", pa.int64()), ("s0", pa.decimal128(38, 2))])
KEYS = ["k0", "k1"]
Group = tuple[Any, Any]


def rows_of(groups: dict[Group, tuple[int, Decimal]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"k0": a, "k1": b, "n": n, "s0": total} for (a, b), (n, total) in groups.items()], SCHEMA
    )


def draw_groups(draw: random.Random, least: int) -> dict[Group, tuple[int, Decimal]]:
    keys = {(draw.choice([None, "", "a"]), draw.choice([None, Decimal("1.50"), Decimal("2.00")])) for _ in range(6)}
    return {
        key: (draw.randint(least, 3), Decimal(draw.randint(-500, 500)).scaleb(-2)) for key in sorted(keys, key=repr)
    }


@pytest.mark.parametrize("seed", range(20))
def test_each_group_is_what_was_held_and_what_came(seed: int) -> None:
    draw = random.Random(seed)
    held, changes = draw_groups(draw, 1), draw_groups(draw, -1)
    wanted: dict[Group, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    for key, (number, total) in changes.items():
        was = held.get(key, (0, Decimal(0)))
        wanted[key] = (was[0] + number, was[1] + total)
    found = moved_groups(rows_of(held), rows_of(changes), KEYS, "n")
    assert found.drop_columns([OP]).schema == SCHEMA
    rows = found.to_pylist()
    assert {(row["k0"], row["k1"]): (row["n"], row["s0"]) for row in rows} == wanted
    assert len(rows) == len(wanted)
    ops = {key: "d" if number == 0 else "u" if key in held else "i" for key, (number, _) in wanted.items()}
    assert {(row["k0"], row["k1"]): row[OP] for row in rows} == ops


def test_a_sum_of_too_many_digits_is_refused() -> None:
    most = Decimal("9" * 36 + ".99")
    key = ("a", None)
    with pytest.raises(pa.ArrowInvalid):
        moved_groups(rows_of({key: (1, most)}), rows_of({key: (1, Decimal("0.01"))}), KEYS, "n")
