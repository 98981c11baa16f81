"""At the owner: reads the figures of indexes now and then, on a thread of its own, for whoever collects metrics.

Collecting metrics touches no storage, which may hang.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.job.job_row import JobRow
from iscp.core.metrics.index_metrics import figure_readings
from iscp.core.metrics.metric import MetricReading
from iscp.core.spec.index_kinds import INDEX_KINDS
from iscp.core.values.errors import NotOwner
from iscp.ports.system import Clock, Threads
from iscp.runtime.admin.target_figures import TargetFigures
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.metrics.metered_runner import kind_of
from iscp.runtime.owner.owner_loop import OwnerLoop

log = logging.getLogger(__name__)

INDEXES_MAX = 200
"""Indexes whose figures are read for metrics; the later ones have none there. `job status` shows those of any index."""

REST_FACTOR = 20.0
"""After a turn nothing is read for so many times as long as it took: a twentieth of a core at most reads figures."""


class FigureSampler:
    """Reads every `every_s` at most. `figures` reads those of one job's target within a bounded time, and raises
    nothing.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        figures: Callable[[JobRow], TargetFigures],
        clock: Clock,
        every_s: float,
        threads: Threads = THREADS,
    ) -> None:
        self._owner = owner
        self._figures = figures
        self._clock = clock
        self._every_s = every_s
        (self._wake,) = threads.conditions(1)
        self._closed = False
        self._last: list[MetricReading] = []
        self._thread = threads.thread("iscp-metric-figures", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the target that is being read; that is not waited for."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def read(self) -> Iterator[MetricReading]:
        """Yield what was read last; nothing at a node that is not the owner."""
        if self._owner.writer is not None:
            yield from self._last

    def turn(self) -> None:
        """Read the figures of all indexes, up to the bound."""
        try:
            rows = self._owner.current_writer().read(_indexes)
        except NotOwner:
            self._last = []
            return
        found: list[MetricReading] = []
        for row in rows[:INDEXES_MAX]:
            if self._closed:
                return
            found += figure_readings(row, self._figures(row).values)
        self._last = found

    def _run(self) -> None:
        while not self._closed:
            began_s = self._clock.monotonic_s()
            try:
                self.turn()
            except Exception:
                log.exception("metrics.figures_failed")
            took_s = self._clock.monotonic_s() - began_s
            with self._wake:
                self._wake.wait_for(lambda: self._closed, max(self._every_s, REST_FACTOR * took_s))


def _indexes(book: JobBook) -> list[JobRow]:
    """Return one row of each index; specs are read only where they name such a kind."""
    named = tuple(f'"{kind}"' for kind in INDEX_KINDS)
    found = {
        row.registration: row
        for row in book.rows()
        if row.drop_at_s is None and any(kind in row.spec_json for kind in named) and kind_of(row) in INDEX_KINDS
    }
    return list(found.values())
