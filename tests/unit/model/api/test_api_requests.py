"""Tests what a search may be.

What a request for a page of a job's feed may be.

Which lines of a log are about a job.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from iscp.model.api.api_requests import (
    CHANGES_MAX,
    COLUMNS_MAX,
    CURSOR_CHARS_MAX,
    FEED_WAIT_S_MAX,
    FILTER_CHARS_MAX,
    K_MAX,
    SEARCH_TEXT_CHARS_MAX,
    URI_CHARS_MAX,
    VECTOR_NUMBERS_MAX,
    WAIT_S_MAX,
    WEIGHT_MAX,
    FeedRequest,
    JobOfLines,
    SearchRequest,
    SearchWeights,
)
from iscp.model.values.errors import InvalidRequest


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


def test_a_request_may_have_what_lies_within_its_bounds() -> None:
    assert FeedRequest().cursor == ""
    FeedRequest("x" * CURSOR_CHARS_MAX, CHANGES_MAX, FEED_WAIT_S_MAX)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("limit", {"limit": 0}),
        ("limit", {"limit": CHANGES_MAX + 1}),
        ("wait_s", {"wait_s": -1.0}),
        ("wait_s", {"wait_s": float("nan")}),
        ("wait_s", {"wait_s": FEED_WAIT_S_MAX + 1}),
        ("cursor", {"cursor": "x" * (CURSOR_CHARS_MAX + 1)}),
    ],
)
def test_a_request_beyond_them_is_refused_with_its_field(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        FeedRequest(**given)
    assert (refused.value.field, bool(refused.value.remedy)) == (field, True)


JOB = JobOfLines("000000000001", "copy", "acme", ("t-1", "sales.orders", "/lake/orders"))


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"job_id": "000000000001", "table": "elsewhere"}, True),
        ({"job_id": "000000000002", "table": "sales.orders", "job": "copy", "account": "acme"}, False),
        ({"job_ids": ["000000000002", "000000000001"], "table": "/lake/orders", "account": "acme"}, True),
        ({"job_ids": ["000000000002"], "table": "/lake/orders", "account": "acme"}, False),
        ({"job_ids": [], "table": "/lake/orders"}, False),
        ({"table": "/lake/orders"}, True),
        ({"table": "sales.orders", "job": "copy"}, True),
        ({"table": "sales.orders", "job": "other"}, False),
        ({"table": "sales.orders", "job": "copy", "account": "other"}, False),
        ({"table": "/lake/orders", "account": "acme"}, True),
        ({"table": "/lake/orders", "account": "other"}, False),
        ({"shard": "t-1"}, True),
        ({"shard": "t-1/3", "node": "n"}, True),
        ({"shard": "t-10"}, False),
        ({"table": ["/lake/orders"]}, False),
        ({"event": "/lake/orders"}, False),
        ({}, False),
    ],
)
def test_a_line_is_about_the_job_or_about_its_table_and_no_other_job(fields: dict[str, object], about: bool) -> None:
    assert JOB.named_in(fields) is about
