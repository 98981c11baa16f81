"""Searches of samples prove an index right, whatever its rows are like, and find out segments of other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from iscp.consumers.index.index_check import sampled_faults
from tests.integration.index.search.small_index import SmallIndex

TITLE = pa.field("title", pa.string())


def made(place: Path, rows: list[dict[str, Any]], **options: str) -> SmallIndex:
    index = SmallIndex(place / "index", "search", {"columns": "title", **options}, [TITLE], dimension=8)
    index.commit(rows)
    return index


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_rows_with_the_same_vectors_and_with_zeros_are_right(tmp_path: Path, metric: str) -> None:
    vectors = [[1.0] * 8, [0.0] * 8, [3.0, *[1.0] * 7]]
    rows = [{"id": each, "title": f"word w{each % 9}", "embedding": vectors[each % 3]} for each in range(600)]
    index = made(tmp_path, rows, column="embedding", metric=metric)
    assert not sampled_faults(index.store.open())  # no segment is there yet
    index.cover()
    assert not sampled_faults(index.store.open())
    index.commit([{"id": each, "title": "other", "embedding": [2.0] * 8} for each in range(50)], removed=[70, 71])
    assert not sampled_faults(index.store.open())
    index.compact()
    assert not sampled_faults(index.store.open())


def test_an_index_without_words_and_without_vectors_is_right(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": each, "title": None, "embedding": None} for each in range(300)]
    index = made(tmp_path, rows, column="embedding")
    index.cover()
    assert not sampled_faults(index.store.open())
