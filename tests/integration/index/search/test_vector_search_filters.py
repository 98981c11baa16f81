"""A filter costs no recall: the fewer rows it keeps, the more partitions are searched."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.search.searched_index import SearchedIndex
from iscp.index.search.vector_search import VectorSearch
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.integration.index.search.small_index import SmallIndex, random_vectors
from tests.selection import in_full

ROWS, QUERIES, DIMENSION, RECALL = 20_000, 100, 64, 0.95


@pytest.mark.parametrize("precision", in_full(["float32", "float16"]))
@pytest.mark.slow
def test_the_recall_is_kept_with_filters_that_keep_many_or_few_rows(tmp_path: Path, precision: str) -> None:
    options = {"column": "v", "stored": "weight", "recall": RECALL, "precision": precision}
    index = SmallIndex(tmp_path / "index", "vector", options, [pa.field("weight", pa.int64())], DIMENSION)
    drawn, draw = random_vectors(3, ROWS + QUERIES, DIMENSION), random.Random(3)
    weights = [draw.randrange(1_000) for _ in range(ROWS)]
    index.commit([{"id": each, "weight": weights[each], "v": drawn[each]} for each in range(ROWS)])
    limits = MaintenanceLimits(recall=RECALL)
    maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), 60.0)
    at = index.store.open()
    assert 0 < at.head.probes < ROWS / 1_000, "all partitions are searched without a filter"
    rows = np.array(drawn[:ROWS], np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for below in (1_000, 500, 100, 10):
        kept = np.array(weights) < below
        search = VectorSearch(SearchedIndex(at), f"weight < {below}")
        found = 0
        for query in drawn[ROWS:]:
            near = np.where(kept, rows @ np.array(query, np.float32), -np.inf)
            wanted = {str(each) for each in np.argsort(-near)[:10]}
            found += len(wanted & {row.key for row in search.nearest(query, 10).rows})
        assert found / (10 * QUERIES) >= RECALL, below
