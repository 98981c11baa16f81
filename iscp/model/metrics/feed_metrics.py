"""Metrics of changefeeds that jobs write: how far their readers' stored cursors are behind the newest row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from iscp.model.job.job_row import JobRow
from iscp.model.metrics.metric import ACCOUNT, JOB, SECONDS, TABLE, Attribute, MetricReading, owner_gauge

_CURSORS = "a stored cursor"

CURSOR = Attribute("iscp.feed.cursor", "The name under which a reader has stored its cursor")

LAG = owner_gauge(
    "iscp.feed.cursor.lag",
    SECONDS,
    "Time from the row up to which a cursor has come to the newest one, in the shard in which that is longest; of the "
    "cursors that are furthest behind",
    ACCOUNT,
    TABLE,
    JOB,
    CURSOR,
    condition=_CURSORS,
)
LAG_REST = owner_gauge(
    "iscp.feed.cursor.lag.rest", SECONDS, "Sum of the lags of all cursors that are not named", condition=_CURSORS
)
COUNT = owner_gauge("iscp.feed.cursor.count", "{cursor}", "Cursors whose lag is known", condition=_CURSORS)
UNNAMED = owner_gauge(
    "iscp.feed.cursor.unnamed",
    "{cursor}",
    "Cursors beyond `metrics.per_job_max`, which are in sums alone",
    condition=_CURSORS,
)

METRICS = (LAG, LAG_REST, COUNT, UNNAMED)


class CursorLag(NamedTuple):
    """The lag, in seconds, of the cursor of that name in the changefeed that a job writes."""

    row: JobRow
    name: str
    lag_s: float


def cursor_readings(lags: Sequence[CursorLag], named_max: int) -> Iterator[MetricReading]:
    """Yield the lags of the `named_max` cursors that are furthest behind, and sums of all others; nothing where there
    are no cursors.
    """
    if not lags:
        return
    named = nlargest(named_max, lags, key=lambda each: each.lag_s)
    for row, name, lag_s in named:
        attributes = {ACCOUNT.name: row.key.account, TABLE.name: row.table_uri, JOB.name: row.key.job_name}
        yield MetricReading(LAG, lag_s, {**attributes, CURSOR.name: name})
    yield MetricReading(LAG_REST, max(0.0, sum(each.lag_s for each in lags) - sum(each.lag_s for each in named)))
    yield MetricReading(COUNT, len(lags))
    yield MetricReading(UNNAMED, len(lags) - len(named))
