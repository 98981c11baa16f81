"""Tests what a search may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from iscp.core.api.search_views import (
    COLUMNS_MAX,
    FILTER_CHARS_MAX,
    K_MAX,
    SEARCH_TEXT_CHARS_MAX,
    URI_CHARS_MAX,
    VECTOR_NUMBERS_MAX,
    WAIT_S_MAX,
    WEIGHT_MAX,
    SearchRequest,
    SearchWeights,
)
from iscp.core.values.errors import InvalidRequest


def test_the_greatest_search_is_one() -> None:
    SearchRequest(
        "u" * URI_CHARS_MAX,
        "t" * SEARCH_TEXT_CHARS_MAX,
        (1.0,) * VECTOR_NUMBERS_MAX,
        K_MAX,
        "f" * FILTER_CHARS_MAX,
        ("c",) * COLUMNS_MAX,
        2**62,
        WAIT_S_MAX,
        weights=SearchWeights(WEIGHT_MAX, 0),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uri", ""),
        ("uri", "u" * (URI_CHARS_MAX + 1)),
        ("text", " \n"),
        ("text", "t" * (SEARCH_TEXT_CHARS_MAX + 1)),
        ("vector", (1.0,) * (VECTOR_NUMBERS_MAX + 1)),
        ("vector", (1.0, math.nan)),
        ("vector", (-math.inf,)),
        ("k", 0),
        ("k", K_MAX + 1),
        ("filter", "f" * (FILTER_CHARS_MAX + 1)),
        ("columns", ("c",) * (COLUMNS_MAX + 1)),
        ("min_version", -1),
        ("min_version", 2**62 + 1),
        ("wait_s", -0.1),
        ("wait_s", WAIT_S_MAX + 1),
        ("wait_s", math.nan),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(field: str, value: Any) -> None:
    given: dict[str, Any] = {"uri": "u", "text": "t", field: value}
    with pytest.raises(InvalidRequest) as refused:
        SearchRequest(**given)
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize(("text", "vector"), [(-1.0, 1.0), (1.0, WEIGHT_MAX + 1), (math.nan, 1.0), (0.0, 0.0)])
def test_weights_that_are_none_are_refused(text: float, vector: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SearchWeights(text, vector)
    assert refused.value.field.startswith("weights")
