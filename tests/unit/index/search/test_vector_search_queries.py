"""A query is refused if no distance to it can be computed."""

from __future__ import annotations

import pytest

from iscp.index.model.index_definition import Metric
from iscp.index.search.vector_search import checked_vector
from iscp.model.values.errors import InvalidRequest


@pytest.mark.parametrize(
    ("vector", "metric", "fault"),
    [
        ([1.0], Metric.L2, "has 1 numbers, and those of the index have 2"),
        ([1.0, float("nan")], Metric.L2, "NaN"),
        ([1.0, 1e300], Metric.L2, "too large"),
        ([3e38, 0.0], Metric.L2, "more than 1e+15"),
        ([2e15, 0.0], Metric.DOT, "more than 1e+15"),
        ([1e-30, 0.0], Metric.COSINE, "less than 1e-15"),
        ([0.0, 0.0], Metric.COSINE, "all zeros"),
        ([0.0, -0.0], Metric.DOT, "all zeros"),
    ],
)
def test_a_query_that_no_row_can_be_compared_with_is_refused(vector: list[float], metric: Metric, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_vector(vector, 2, metric)
    assert fault in caught.value.message
    assert (caught.value.field, bool(caught.value.remedy)) == ("vector", True)


@pytest.mark.parametrize(
    ("vector", "metric"), [([0.0, 0.0], Metric.L2), ([1e-30, 0.0], Metric.DOT), ([1e14, 1.0], Metric.COSINE)]
)
def test_others_are_compared(vector: list[float], metric: Metric) -> None:
    assert checked_vector(vector, 2, metric).tolist() == vector
