"""Of many cursors those that are furthest behind are named, and the others are in sums."""

from __future__ import annotations

from iscp.model.metrics import feed_metrics as metrics
from iscp.model.metrics.feed_metrics import CursorLag, cursor_readings
from tests.fakes.owned_jobs import row

CURSORS = 5_000


def test_the_worst_are_named_and_the_rest_is_in_sums() -> None:
    lags = [CursorLag(row(f"j-{n % 7}"), f"reader-{n}", float(n)) for n in range(CURSORS)]
    found = list(cursor_readings(lags, 500))
    named = {each.attributes["iscp.feed.cursor"]: each.value for each in found if each.metric is metrics.LAG}
    assert named == {f"reader-{n}": float(n) for n in range(CURSORS - 500, CURSORS)}
    sums = {each.metric: each.value for each in found if each.metric is not metrics.LAG}
    assert sums[metrics.UNNAMED] == CURSORS - 500
    assert sums[metrics.COUNT] == CURSORS
    assert sums[metrics.LAG_REST] + sum(named.values()) == sum(range(CURSORS))


def test_a_named_cursor_has_the_job_that_writes_its_feed() -> None:
    key = row("feed").key
    (lag, *_) = cursor_readings([CursorLag(row("feed"), "mail", 3.5)], 1)
    assert (lag.metric, lag.value) == (metrics.LAG, 3.5)
    assert lag.attributes == {
        "iscp.account": key.account,
        "iscp.table": row("feed").table_uri,
        "iscp.job": "feed",
        "iscp.feed.cursor": "mail",
    }


def test_without_cursors_there_is_nothing() -> None:
    assert list(cursor_readings([], 500)) == []
