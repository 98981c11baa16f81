"""The sums that commits state are those of the rows, whether or not a commit reads the vectors that it removes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import VECTOR
from tests.fakes.maintained_index import MaintainedIndex, Row, drawn_change


def all_with_vectors(rows: dict[str, Row], chance: random.Random) -> dict[str, Row]:
    return {key: replace(row, vector=row.vector or (chance.gauss(0, 1),) * 4) for key, row in rows.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("whole", [True, False], ids=["each has a vector", "some have none"])
def test_the_head_counts_vectors_as_the_rows_have_them(tmp_path: Path, whole: bool, seed: int) -> None:
    chance = random.Random(seed)
    index = MaintainedIndex(str(tmp_path / "index"), 4)
    index.create()
    for _ in range(6):
        put, removed = drawn_change(chance, 30, 60, 4)
        at = index.change(all_with_vectors(put, chance) if whole else put, removed)
        assert at.head.vectors == sum(row.vector is not None for row in index.model.values())
        assert at.head.rows == len(index.model)
        found = index.store.begin().seek([str(key) for key in range(60)])
        assert pa.types.is_boolean(found[VECTOR].type) == (at.head.vectors == at.head.rows)
        assert at.head.vectors == at.head.rows or not whole
        assert len(found) - found[VECTOR].null_count == at.head.vectors


def test_vectors_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    index = MaintainedIndex(str(tmp_path / "index"), 4)
    index.create()
    index.change({"1": Row((" a ", None), (1.0, 2.0, 3.0, 4.0))}, [])
    found = index.store.begin().seek(["1"], with_vectors=True)
    assert found[VECTOR].to_pylist() == [[1.0, 2.0, 3.0, 4.0]]
