"""Nearest vectors: exact scores, found as well as a comparison with all rows finds them."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from iscp.index.search.search_library import search
from iscp.model.values.errors import InvalidRequest
from tests.integration.index.search.small_index import SmallIndex, random_vectors
from tests.selection import in_full

DIMENSION = 48
SHARE = pa.field("share", pa.int32())


def vector_index(place: Path, metric: str, precision: str = "float32") -> SmallIndex:
    options = {"column": "v", "metric": metric, "precision": precision, "stored": "share"}
    return SmallIndex(place, "vector", options, [SHARE], DIMENSION)


def brute_force(rows: dict[int, list[float]], query: list[float], metric: str, half: bool) -> list[tuple[float, int]]:
    found = []
    for key, numbers in rows.items():
        row = np.asarray(numbers, np.float32).astype(np.float16 if half else np.float32).astype(np.float64)
        asked = np.asarray(query)
        match metric:
            case "l2":
                score = -math.dist(row, asked)
            case "dot":
                score = math.fsum(row * asked)
            case _:
                score = math.fsum(row * asked) / (math.hypot(*row) * math.hypot(*asked))
        found.append((-score, key))
    return sorted(found)


@pytest.mark.parametrize(
    ("metric", "precision"),
    in_full([*product(("cosine", "l2", "dot"), ("float32", "float16"))], but=[("cosine", "float32")], unpack=True),
)
def test_nearest_rows_are_those_of_a_comparison_with_all(tmp_path: Path, metric: str, precision: str) -> None:
    draw = random.Random(5)
    index = vector_index(tmp_path / "index", metric, precision)
    vectors = dict(enumerate(random_vectors(1, 3_000, DIMENSION)))
    index.commit([{"id": key, "v": each, "share": key % 100} for key, each in vectors.items()])
    require_nearest(index, vectors, metric, precision, recall=1.0)  # without an index all are compared
    index.cover()
    require_nearest(index, vectors, metric, precision, recall=0.97)
    gone = draw.sample(sorted(vectors), 200)
    changed = dict(zip(draw.sample(range(3_000, 3_500), 150), random_vectors(2, 150, DIMENSION), strict=True))
    changed |= {key: vectors[gone[at]] for at, key in enumerate(set(vectors) - set(gone)) if at < 50}
    index.commit([{"id": key, "v": each, "share": key % 100} for key, each in changed.items()], gone)
    vectors = {key: each for key, each in (vectors | changed).items() if key not in gone}
    require_nearest(index, vectors, metric, precision, recall=0.97)
    index.cover()
    require_nearest(index, vectors, metric, precision, recall=0.97)


def require_nearest(
    index: SmallIndex, vectors: dict[int, list[float]], metric: str, precision: str, recall: float
) -> None:
    half = precision == "float16"
    found = wanted = 0
    draw = np.random.default_rng(9)
    for key in sorted(vectors)[::400]:
        # Queries are near the rows, as texts are near those that they are compared with.
        query = list(map(float, vectors[key] + 0.2 * draw.normal(size=DIMENSION)))
        for below in (100, 1):
            passing = {key: each for key, each in vectors.items() if key % 100 < below}
            expected = brute_force(passing, query, metric, half)[:10]
            answer = search(index.uri, vector=query, filter=f"share < {below}" if below < 100 else "")
            keys = {int(hit.key["id"]) for hit in answer.hits}
            assert keys <= set(passing), "a row that is gone, or does not pass the filter"
            assert len(keys) == 10
            exact = {key: -loss for loss, key in brute_force(passing, query, metric, half)}
            for hit in answer.hits:
                assert math.isclose(hit.score, exact[int(hit.key["id"])], rel_tol=1e-6, abs_tol=1e-9)
            assert [hit.score for hit in answer.hits] == sorted((hit.score for hit in answer.hits), reverse=True)
            found += len(keys & {key for _, key in expected})
            wanted += 10
    assert found / wanted >= recall


def test_equal_vectors_are_ordered_by_their_keys_whatever_the_index_went_through(tmp_path: Path) -> None:
    index = vector_index(tmp_path / "index", "cosine")
    same = random_vectors(3, 1, DIMENSION)[0]
    index.commit([{"id": key, "v": same, "share": 0} for key in range(50, 100)])
    expected = sorted(map(str, range(100)))
    index.cover()
    index.commit([{"id": key, "v": same, "share": 0} for key in range(50)])
    hits = search(index.uri, vector=same, k=100).hits
    assert [str(hit.key["id"]) for hit in hits] == expected
    assert all(math.isclose(hit.score, 1.0, rel_tol=1e-12) for hit in hits)


@pytest.mark.parametrize(
    ("vector", "fault"),
    [
        ([1.0] * (DIMENSION - 1), "47 numbers"),
        ([math.nan] * DIMENSION, "NaN"),
        ([1e39] * DIMENSION, "too large"),
        ([0.0] * DIMENSION, "zeros"),
    ],
)
def test_a_vector_that_fits_no_row_is_refused(tmp_path: Path, vector: list[float], fault: str) -> None:
    index = vector_index(tmp_path / "index", "cosine")
    index.commit([{"id": 1, "v": [1.0] * DIMENSION, "share": 0}])
    with pytest.raises(InvalidRequest, match=fault) as refused:
        search(index.uri, vector=vector)
    assert refused.value.field == "vector"


def test_rows_without_a_vector_are_never_found(tmp_path: Path) -> None:
    index = vector_index(tmp_path / "index", "l2")
    index.commit([{"id": 1, "v": None, "share": 0}, {"id": 2, "v": [1.0], "share": 0}])
    assert search(index.uri, vector=[0.0] * DIMENSION).hits == ()
    index.commit([{"id": 3, "v": [0.0] * DIMENSION, "share": 0}])
    assert [hit.key["id"] for hit in search(index.uri, vector=[0.0] * DIMENSION).hits] == [3]
