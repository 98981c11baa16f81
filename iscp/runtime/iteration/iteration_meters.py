"""Measures iterations while they run, only on request, and at most so often.

An iteration notes what is known of its size, which costs it nothing; counting what is not known, and reading the
engine's counters, is left to the thread of the request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from iscp.core.job.iteration import Iteration
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_jobs
from iscp.core.values.errors import IscpError
from iscp.core.values.progress import UNKNOWN, RunProgress, StageWork, TableSize, measured
from iscp.core.values.watermark import Watermark
from iscp.ports.engine import Engine
from iscp.ports.system import Clock
from iscp.ports.work_timer import UsageTally

log = logging.getLogger(__name__)

MEASURED_EVERY_S = 1.0
"""A running iteration is measured at most so often, however many request its progress; they get the last measure."""


class HandedOver(Protocol):
    """The retriever of a consumer; `rows_given` says how many rows the consumer has taken."""

    @property
    def rows_given(self) -> int: ...


class IterationMeter:
    """The measures of one iteration, which its threads write, and those of requests read."""

    def __init__(self, iteration: Iteration, began_s: float, began_at_s: float) -> None:
        self.iteration = iteration
        self.began_s = began_s
        self.began_at_s = began_at_s
        self.retrievers: list[HandedOver] = []
        self.last: RunProgress | None = None
        self.measured_s = 0.0
        self._ranges: dict[Watermark, int] = {}
        self._count: Callable[[], TableSize] | None = None
        self._size: TableSize | None = None
        self._stages: dict[int, StageWork] = {}
        self._tallies: dict[str, UsageTally] = {row.job_id: UsageTally() for row in iteration.jobs}

    def tally(self, row: JobRow) -> UsageTally:
        """Return the sums of the job's part, or of a range of it, in all attempts."""
        return self._tallies[row.job_id]

    def note_range(self, since: Watermark, size: int) -> None:
        """Note that the range from there on is in files of `size` bytes."""
        self._ranges[since] = size

    def note_snapshot(self, count: Callable[[], TableSize]) -> None:
        """Note that all rows of a table are written; `count`, from any thread, reads how many they are."""
        self._count = count

    def read(self, stages: dict[int, StageWork], elapsed_s: float, at_s: float) -> RunProgress:
        """Return the iteration's progress.

        The engine forgets older stages: those seen before still count.
        """
        self._stages |= stages
        if self._size is None and self._count is not None:
            try:
                self._size = self._count()
            except IscpError as error:
                named = {"table": self.iteration.table_uri, "account": self.iteration.account, "error": str(error)}
                log.info("iteration.size_unknown", extra={**named, **logged_jobs(self.iteration.jobs)})
                self._size = TableSize(UNKNOWN, UNKNOWN)
        rows, size = (self._size.rows, self._size.bytes) if self._size else (UNKNOWN, UNKNOWN)
        if self._size is None and self._ranges:
            size = sum(self._ranges.values())
        purpose = self.iteration.purpose.value
        begun = RunProgress(purpose, self.began_at_s, max(0.0, elapsed_s), rows_total=rows, bytes_total=size)
        return measured(begun, at_s, tuple(self._stages.values()), sum(each.rows_given for each in self.retrievers))


class IterationMeters:
    """Measures the iterations that run in this node."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._running: dict[int, IterationMeter] = {}
        self._measuring = threading.Lock()

    @contextmanager
    def running(self, iteration: Iteration) -> Iterator[IterationMeter]:
        meter = IterationMeter(iteration, self._clock.monotonic_s(), self._clock.now_s())
        self._running[iteration.number] = meter
        try:
            yield meter
        finally:
            del self._running[iteration.number]

    def progress(self, job_id: str) -> RunProgress | None:
        """Return the progress of the iteration that the job is in, shared with others or not; None if it is in none.

        Raises IscpError.
        """
        for meter in tuple(self._running.values()):
            if any(row.job_id == job_id for row in meter.iteration.jobs):
                return self._measure(meter)
        return None

    def _measure(self, meter: IterationMeter) -> RunProgress | None:
        # An engine that hangs holds up one request, and no other.
        if not self._measuring.acquire(blocking=False):
            return meter.last
        try:
            now_s = self._clock.monotonic_s()
            if meter.last is None or now_s - meter.measured_s >= MEASURED_EVERY_S:
                stages = self._engine.stages(meter.iteration.label)
                meter.last = meter.read(stages, now_s - meter.began_s, self._clock.now_s())
                meter.measured_s = now_s
            return meter.last
        finally:
            self._measuring.release()
