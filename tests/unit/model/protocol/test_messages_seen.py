"""What a node says again of a source, as it is news."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.protocol.messages import FurtherSeen, SourceSeen
from iscp.model.values.ids import ShardId

BEFORE = SourceSeen(ShardId("t"), 7, 100.0, 0.0, (FurtherSeen("/u", 3, 0.0),))


@pytest.mark.parametrize(
    ("now", "news"),
    [
        (replace(BEFORE, checked_at_s=110.0), False),
        (replace(BEFORE, source_version=8), True),
        (replace(BEFORE, lag_s=2.0), True),
        (replace(BEFORE, repair_version=7), True),
        (replace(BEFORE, unreached=True), True),
        (replace(BEFORE, further=(FurtherSeen("/u", 4, 0.0),)), True),
        (replace(BEFORE, further=()), True),
    ],
)
def test_a_version_or_the_begin_of_a_lag_is_news(now: SourceSeen, news: bool) -> None:
    assert now.moved_since(BEFORE) is news


def test_a_lag_that_grows_is_none() -> None:
    assert not replace(BEFORE, lag_s=9.0).moved_since(replace(BEFORE, lag_s=2.0))
