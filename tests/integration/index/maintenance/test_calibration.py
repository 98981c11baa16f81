"""The probes that a calibration finds reach the recall, for vectors that were not in the sample too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iscp.index.lance.index_columns import KEY, VECTOR
from iscp.index.lance.index_store import OpenIndex
from iscp.index.maintenance.index_maintenance import NEIGHBOURS, MaintenanceLimits, calibrate, maintain
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.maintained_index import MaintainedIndex, Row
from tests.selection import in_full

ROWS, DIMENSION, CENTRES = 6_000, 64, 300
RECALL = 0.95


def clustered(path: Path, metric: str) -> tuple[MaintainedIndex, np.ndarray]:
    """An index of vectors in clusters, and others of the same clusters."""
    numbers = np.random.default_rng(5)
    centres = numbers.standard_normal((CENTRES, DIMENSION))
    drawn = centres[numbers.integers(0, CENTRES, ROWS + 100)] + 0.4 * numbers.standard_normal((ROWS + 100, DIMENSION))
    index = MaintainedIndex(str(path / "index"), DIMENSION)
    index.create()
    index.change({str(each): Row((None, None), tuple(drawn[each].tolist())) for each in range(ROWS)}, [])
    limits = MaintenanceLimits(keep_s=600.0, metric=metric, recall=RECALL)
    maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), 60.0)
    return index, drawn[ROWS:].astype(np.float32)


def nearest(index: MaintainedIndex, query: np.ndarray, metric: str) -> set[str]:
    """The keys of the nearest rows by all distances, computed in another way than the calibration does."""
    keys = list(index.model)
    rows = np.array([index.model[key].vector for key in keys])
    if metric == "cosine":
        distances = 1 - rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    elif metric == "l2":
        distances = np.linalg.norm(rows - query, axis=1)
    else:
        distances = -rows @ query
    return {keys[each] for each in np.argsort(distances)[:NEIGHBOURS]}


def found(at: OpenIndex, query: np.ndarray, metric: str) -> set[str]:
    near = {
        "column": VECTOR,
        "q": query,
        "k": NEIGHBOURS,
        "metric": metric,
        "nprobes": at.head.probes,
        "refine_factor": at.head.refine,
    }
    return set(at.dataset.scanner(columns=[KEY, "_distance"], nearest=near).to_table()[KEY].to_pylist())


@pytest.mark.parametrize("metric", in_full(["cosine", "l2", "dot"]))
@pytest.mark.slow
def test_probes_reach_the_recall_for_other_vectors(tmp_path: Path, metric: str) -> None:
    index, queries = clustered(tmp_path, metric)
    at = index.store.open()
    assert at.head.calibrated_rows == ROWS
    hits = sum(len(found(at, query, metric) & nearest(index, query, metric)) for query in queries)
    assert hits / (NEIGHBOURS * len(queries)) >= RECALL


@pytest.mark.slow
def test_a_calibration_gives_the_same_each_time_and_fewer_probes_for_less_recall(tmp_path: Path) -> None:
    index, _ = clustered(tmp_path, "cosine")
    at = index.store.open()
    once = calibrate(at, "cosine", RECALL, ROWS)
    assert once == calibrate(at, "cosine", RECALL, ROWS)
    less = calibrate(at, "cosine", 0.2, ROWS)
    assert once is not None
    assert less is not None
    assert less.probes < once.probes
    assert less.is_reached


def test_an_index_without_vectors_has_no_probes(tmp_path: Path) -> None:
    index = MaintainedIndex(str(tmp_path / "index"), 8)
    index.create()
    index.change({str(each): Row((None, None)) for each in range(7)}, [])
    assert calibrate(index.store.open(), "cosine", 0.9, 10) is None
