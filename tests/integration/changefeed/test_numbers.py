"""Numbers that a feed keeps in its log: all of 64 bits survive, for the writer and for readers alike."""

from __future__ import annotations

import pytest

from iscp.changefeed.table.feed_log import FeedLog


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63 - 1])
def test_a_number_is_read_as_it_was_put(uri: str, number: int) -> None:
    mine, others = FeedLog(uri), FeedLog(uri)
    mine.put([], {"half": number}, "commit", 1)
    assert mine.find_next("commit")
    others.refresh()
    assert [log.number("half") for log in (mine, others, FeedLog(uri))] == [number] * 3
