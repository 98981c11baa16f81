"""What a request for a page of a job's feed may be."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.core.api.feed_views import CHANGES_MAX, CURSOR_CHARS_MAX, FEED_WAIT_S_MAX, FeedRequest
from iscp.core.values.errors import InvalidRequest


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
