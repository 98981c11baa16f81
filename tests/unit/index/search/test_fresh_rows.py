"""Cached rows are those of a version only if all rows that live in it were read, and the nearest of them are found."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from iscp.index.model.index_definition import Metric
from iscp.index.search.document_scores import CodedColumns, CodedTexts
from iscp.index.search.fresh_rows import FreshRows, NearestBound, VectorRows
from iscp.index.search.vector_search import matrix_scores

ROWS = FreshRows(
    np.array([2**32, 2**32 + 2, 2**32 + 3], np.uint64),
    ["a", "b", "c"],
    CodedColumns({"body": CodedTexts(pa.array([" x ", None, " y "], pa.string()))}),
)


@pytest.mark.parametrize(
    ("living", "wanted"),
    [
        ([], [False, False, False]),
        ([0, 3], [True, False, True]),
        ([0, 2, 3], [True, True, True]),
        ([0, 1], None),  # a row that was deleted when the others were read
        ([3, 4], None),
    ],
)
def test_rows_live_whose_addresses_do(living: list[int], wanted: list[bool] | None) -> None:
    found = ROWS.living(np.array([2**32 + each for each in living], np.uint64))
    assert wanted == (None if found is None else found.tolist())


def test_the_memory_of_rows_is_counted() -> None:
    assert ROWS.bytes > ROWS.addresses.nbytes + ROWS.content.bytes


def stored(matrix: np.ndarray, nulls: np.ndarray) -> pa.FixedSizeListArray:
    flat = pa.array(matrix.reshape(-1).astype(np.float32), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1], mask=pa.array(nulls))


def may_be_nearest(rows: VectorRows, query: np.ndarray, living: np.ndarray, most: int, metric: Metric) -> np.ndarray:
    bound = NearestBound(query, most, metric)
    numbers, upper = bound.compare(rows, living)
    return numbers[upper >= bound.least]


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("seed", range(12))
def test_the_nearest_are_among_those_that_may_be(metric: Metric, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, dimension, most = 300, int(draw.choice([1, 3, 48, 700])), int(draw.choice([1, 10]))
    scale = float(draw.choice([1e-14, 1.0, 1e13]))
    # Many vectors that differ in their last digits alone, and which are equal in single precision.
    centre = draw.standard_normal(dimension)
    spread = float(draw.choice([0.0, 1e-7, 1e-3, 1.0]))
    matrix = ((centre + spread * draw.standard_normal((rows, dimension))) * scale).astype(np.float32)
    nulls, living = draw.random(rows) < 0.1, draw.random(rows) < 0.8
    query = (centre + 1e-3 * draw.standard_normal(dimension)) * scale
    found = may_be_nearest(VectorRows(stored(matrix, nulls)), query, living, most, metric)
    right = np.flatnonzero(living & ~nulls)
    assert set(found.tolist()) <= set(right.tolist())
    scores = matrix_scores(matrix[right].astype(np.float64), query, metric)
    least = np.partition(scores, -most)[-most]
    assert set(right[scores >= least].tolist()) <= set(found.tolist())


def test_few_of_many_that_differ_are_left() -> None:
    draw = np.random.default_rng(1)
    matrix = draw.standard_normal((2_000, 64))
    rows = VectorRows(stored(matrix, np.zeros(2_000, np.bool_)))
    for metric in Metric:
        assert len(may_be_nearest(rows, matrix[7], np.ones(2_000, np.bool_), 10, metric)) < 20
    assert rows.bytes >= 2_000 * 64 * 4


@pytest.mark.parametrize("metric", list(Metric))
def test_the_nearest_of_many_files_are_few_of_each(metric: Metric) -> None:
    draw = np.random.default_rng(2)
    files = [draw.standard_normal((500, 32)).astype(np.float32) for _ in range(20)]
    query, most = draw.standard_normal(32), 500
    bound = NearestBound(query, most, metric)
    compared = [
        bound.compare(VectorRows(stored(each, np.zeros(500, np.bool_))), np.ones(500, np.bool_)) for each in files
    ]
    left = [numbers[upper >= bound.least] for numbers, upper in compared]
    assert most <= sum(map(len, left)) < most + 20
    scores = np.concatenate([matrix_scores(each.astype(np.float64), query, metric) for each in files])
    found = np.concatenate([500 * number + some for number, some in enumerate(left)])
    assert set(np.argsort(-scores)[:most].tolist()) <= set(found.tolist())


def test_numbers_too_large_for_single_precision_prove_nothing() -> None:
    # The sum of the first row's products is less than nothing, and infinite on its way there.
    matrix = np.array([[3e38] * 96 + [-3.3e38] * 96, [1.0] * 192, [0.5] * 192])
    living = np.ones(3, np.bool_)
    found = may_be_nearest(VectorRows(stored(matrix, ~living)), np.ones(192), living, 1, Metric.DOT)
    assert 1 in found


def test_half_precision_is_widened_without_a_loss() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    flat = pa.array(every[np.isfinite(every)], pa.float16())
    rows = VectorRows(pa.FixedSizeListArray.from_arrays(flat, 2))
    assert np.array_equal(rows.matrix.reshape(-1), every[np.isfinite(every)].astype(np.float32))


def test_vectors_that_have_no_distance_hide_no_others() -> None:
    matrix = np.array([[0.0, 0.0], [math.inf, 0.0], [math.nan, 1.0], [1.0, 0.0], [0.9, 0.1]])
    rows = VectorRows(stored(matrix, np.zeros(5, np.bool_)))
    for metric in Metric:
        found = may_be_nearest(rows, np.array([1.0, 0.0]), np.ones(5, np.bool_), 1, metric)
        assert 3 in found
        assert not {1, 2} & set(found.tolist())
