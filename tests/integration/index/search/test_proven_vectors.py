"""A search that says it is proven finds the nearest rows that double precision gives, whatever the vectors are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from iscp.index.search.searched_index import SearchedIndex
from iscp.index.search.vector_search import VectorSearch, matrix_scores
from tests.integration.index.search.small_index import SmallIndex

Matrix = npt.NDArray[np.float32]

NEAR = 1e-4
"""How far near duplicates are from each other, in relation to their lengths."""


def case(draw: np.random.Generator, metric: str, dimension: int, rows: int) -> Matrix:
    """Vectors of all sorts side by side: near and exact duplicates, of one scale or of many, zeros, tiny numbers."""
    centre = draw.standard_normal(dimension)
    scale = float(draw.choice([1e-9, 1.0, 1e13]))
    if metric == "l2":
        scale = float(draw.choice([1e-43, 1e-30, 1e-14, 1.0, 1e13]))
    sorts = [
        centre + NEAR * draw.standard_normal((rows, dimension)),
        np.tile(centre, (rows, 1)),
        draw.standard_normal((rows, dimension)),
        np.zeros((rows, dimension)) if metric == "l2" else -np.tile(centre, (rows, 1)),
        centre * (1 + 1e-6 * draw.standard_normal((rows, 1))),
    ]
    chosen = draw.integers(0, len(sorts), rows)
    matrix = (np.choose(chosen[:, np.newaxis], sorts) * scale).astype(np.float32)
    # Some are of another scale, so that what is far from the others is compared with them.
    others = draw.random(rows) < 0.1
    matrix[others] *= np.float32(draw.choice([1e-3, 10.0]))
    return matrix


def queries(draw: np.random.Generator, matrix: Matrix, metric: str) -> Iterator[npt.NDArray[np.float64]]:
    """Rows themselves, what is near to rows, and what is far larger or smaller than they are."""
    rows = matrix.astype(np.float64)
    yield rows[0]
    yield rows[len(rows) // 2]
    yield rows[1] * (1 + 1e-9 * draw.standard_normal(rows.shape[1]))
    unit: npt.NDArray[np.float64] = draw.standard_normal((rows.shape[1],))
    yield unit * 1e-12
    yield unit * 1e12
    if metric == "dot":
        yield unit * 1e-30
    if metric == "l2":
        yield unit * 1e-44
        yield np.zeros(rows.shape[1])


def expected(matrix: Matrix, query: npt.NDArray[np.float64], metric: str, kept: npt.NDArray[np.bool_]) -> list[str]:
    rows = matrix.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = -np.sqrt(np.square(rows - query).sum(axis=1)) if metric == "l2" else (rows * query).sum(axis=1)
        if metric == "cosine":
            scores = scores / (np.sqrt(np.square(rows).sum(axis=1)) * np.sqrt(np.square(query).sum()))
    return [key for _, key in sorted((-scores[each], str(each)) for each in np.flatnonzero(kept).tolist())]


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
@pytest.mark.parametrize("seed", range(4))
def test_all_rows_are_compared_where_no_index_is(tmp_path: Path, metric: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    dimension, rows = int(draw.choice([1, 2, 8, 300])), 240
    matrix = case(draw, metric, dimension, rows)
    index = SmallIndex(
        tmp_path / "index",
        "vector",
        {"column": "v", "metric": metric, "stored": "weight"},
        [pa.field("weight", pa.int64())],
        dimension,
    )
    for begin in range(0, rows, 80):
        index.commit(
            [{"id": each, "weight": each % 3, "v": matrix[each].tolist()} for each in range(begin, begin + 80)]
        )
    faults = index.store.open().head.faults
    assert not faults, "each of these vectors has a distance"
    # Rows of which there are too many are not cached, and read some at a time.
    scanning: dict[str, int] = {"numbers_scanned": 50 * dimension, "cached_bytes_max": 0}
    for cached in (True, False):
        for condition, kept in (("TRUE", np.ones(rows, np.bool_)), ("weight = 1", np.arange(rows) % 3 == 1)):
            search = VectorSearch(SearchedIndex(index.store.open()), condition, **({} if cached else scanning))
            for query in queries(draw, matrix, metric):
                wanted = expected(matrix, query, metric, kept)
                for most in (1, 10, 100, rows + 7):
                    found = search.nearest(query.tolist(), most)
                    assert found.exact
                    assert [row.key for row in found.rows] == wanted[:most], (seed, cached, condition, most)


def test_a_row_is_found_by_its_own_vector_among_near_duplicates(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    matrix = (draw.standard_normal(8) + NEAR * draw.standard_normal((300, 8))).astype(np.float32)
    index = SmallIndex(tmp_path / "index", "vector", {"column": "v"}, [], 8)
    index.commit([{"id": each, "v": row.tolist()} for each, row in enumerate(matrix)])
    search = VectorSearch(SearchedIndex(index.store.open()))
    for number in range(0, 300, 10):
        found = search.nearest(matrix[number].tolist(), 1)
        scores = matrix_scores(matrix.astype(np.float64), matrix[number].astype(np.float64), search._metric)
        assert (found.exact, found.rows[0].score) == (True, scores.max())


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_near_duplicates_in_many_files_are_found_beside_rows_without_a_distance(
    tmp_path: Path, metric: str, precision: str
) -> None:
    draw, files, each_has, dimension = np.random.default_rng(7), 24, 12, 24
    count = files * each_has
    centre = draw.standard_normal(dimension)
    numbers = draw.standard_normal((count, dimension))
    near = np.flatnonzero(draw.random(count) < 0.3)  # these are in nearly all files, and some are equal
    numbers[near] = centre + NEAR * draw.integers(0, 3, (len(near), 1)) * draw.standard_normal((len(near), dimension))
    matrix: Matrix = numbers.astype(precision).astype(np.float32)
    bad = np.zeros(count, np.bool_)
    for at, number in ((5, np.nan), (77, np.inf), (140, -np.inf)):
        matrix[at, 3], bad[at] = number, True
    matrix[200] = 0.0
    bad[200] = metric != "l2"
    options = {"column": "v", "metric": metric, "precision": precision}
    index = SmallIndex(tmp_path / "index", "vector", options, [], dimension)
    for begin in range(0, count, each_has):
        index.commit([{"id": at, "v": matrix[at].tolist()} for at in range(begin, begin + each_has)])
    for again in range(2):  # the second time the rows are cached
        search = VectorSearch(SearchedIndex(index.store.open()))
        for query in (matrix[near[0]].astype(np.float64), centre, draw.standard_normal(dimension)):
            wanted = expected(matrix, query, metric, ~bad)
            for most in (1, 10, len(near) + 20, count):
                found = search.nearest(query.tolist(), most)
                assert found.exact
                assert [row.key for row in found.rows] == wanted[:most], (again, most)


def test_what_an_index_leaves_out_is_not_proven(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    matrix = draw.standard_normal((600, 8)).astype(np.float32)
    index = SmallIndex(tmp_path / "index", "vector", {"column": "v"}, [], 8)
    index.commit([{"id": each, "v": matrix[each].tolist()} for each in range(500)])
    index.cover()
    index.commit([{"id": each, "v": matrix[each].tolist()} for each in range(500, 600)])
    found = VectorSearch(SearchedIndex(index.store.open())).nearest(matrix[550].tolist(), 1)
    assert (found.exact, found.rows[0].key) == (False, "550")
