"""At the owner: reads figures of jobs' targets now and then, on a thread of its own, for whoever collects metrics.

Collecting metrics touches no storage, which may hang.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.job.job_row import JobRow
from iscp.core.metrics.feed_metrics import CursorLag, cursor_readings
from iscp.core.metrics.index_metrics import figure_readings
from iscp.core.metrics.metric import MetricReading
from iscp.core.spec.index_kinds import INDEX_KINDS
from iscp.core.values.errors import IscpError, NotOwner
from iscp.ports.system import Clock, Threads
from iscp.runtime.access.place_guard import PlaceGuard
from iscp.runtime.admin.target_figures import TargetFigures
from iscp.runtime.loop.paced_thread import PacedThread
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.metrics.metered_runner import kind_of
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.account_turns import TargetReads

log = logging.getLogger(__name__)

TARGETS_MAX = 200
"""Indexes whose figures are read for metrics, and as many changefeeds; the later ones have none there. `job status`
shows those of any index.
"""

CURSORS_READ_S = 5.0
"""Seconds that reading the cursors of one changefeed may take; it has no lags in metrics then."""

FEED_KINDS = ("changefeed",)


@dataclass(frozen=True, slots=True)
class SampledTargets:
    """Names what is read of the targets of jobs of some kinds.

    `read` reads one target within a bounded time, and raises nothing; `readings` makes readings of what was read of
    all.
    """

    kinds: Collection[str]
    read: Callable[[JobRow], Iterable[Any]]
    readings: Callable[[Sequence[Any]], Iterable[MetricReading]] = lambda found: found


def sampled_indexes(figures: Callable[[JobRow], TargetFigures]) -> SampledTargets:
    """Return what is read of indexes: the figures that `figures` reads."""
    return SampledTargets(INDEX_KINDS, lambda row: figure_readings(row, figures(row).values))


def sampled_feeds(
    lags: Callable[[str], dict[str, float]], places: PlaceGuard, named_max: int, read_s: float = CURSORS_READ_S
) -> SampledTargets:
    """Return what is read of changefeeds: the lags of their cursors, which `lags` reads by a feed's URI."""
    reads = TargetReads(places, read_s, "iscp-feed-cursors", "read of the cursors")
    return SampledTargets(
        FEED_KINDS, lambda row: _read_cursors(row, reads, lags), lambda found: cursor_readings(found, named_max)
    )


def _read_cursors(row: JobRow, reads: TargetReads, lags: Callable[[str], dict[str, float]]) -> list[CursorLag]:
    try:
        found = reads.run(row, lambda: lags(row.spec.consumer.target))
    except IscpError as error:
        log.info("metrics.cursors_not_read", extra={"job_id": row.job_id, "error": str(error)})
        return []
    return [CursorLag(row, name, lag_s) for name, lag_s in found.items()]


class FigureSampler:
    """Reads every `every_s` at most, one target after another."""

    def __init__(
        self,
        owner: OwnerLoop,
        sampled: Sequence[SampledTargets],
        clock: Clock,
        every_s: float,
        threads: Threads = THREADS,
    ) -> None:
        self._owner = owner
        self._sampled = sampled
        self._last: list[MetricReading] = []
        self._thread = PacedThread("iscp-metric-figures", self.turn, clock, every_s, threads)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the target that is being read; that is not waited for."""
        self._thread.close()

    def read(self) -> Iterator[MetricReading]:
        """Yield what was read last; nothing at a node that is not the owner."""
        if self._owner.writer is not None:
            yield from self._last

    def turn(self) -> None:
        """Read the figures of all targets, up to the bound."""
        try:
            writer = self._owner.current_writer()
            rows = [writer.read(_rows_of(each.kinds)) for each in self._sampled]
        except NotOwner:
            self._last = []
            return
        readings: list[MetricReading] = []
        for each, of_kinds in zip(self._sampled, rows, strict=True):
            found: list[Any] = []
            for row in of_kinds[:TARGETS_MAX]:
                if self._thread.closed:
                    return
                found += each.read(row)
            readings += each.readings(found)
        self._last = readings


def _rows_of(kinds: Collection[str]) -> Callable[[JobBook], list[JobRow]]:
    """Return what reads one row of each job of these kinds; specs are read only where they name such a kind."""
    named = tuple(f'"{kind}"' for kind in kinds)

    def read(book: JobBook) -> list[JobRow]:
        found = {
            row.registration: row
            for row in book.rows()
            if row.drop_at_s is None and any(kind in row.spec_json for kind in named) and kind_of(row) in kinds
        }
        return list(found.values())

    return read
