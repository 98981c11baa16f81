"""Collects why the jobs of a watch needed Spark, until their next result says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from iscp.core.job.iteration import JobOutcome
from iscp.core.job.usage import SparkNeed, joined_needs
from iscp.ports.system import Clock
from iscp.ports.work_timer import UsageTally, working_for


class SparkNeeds:
    """The needs of jobs by their ids; safe for threads. What a failed iteration needed is not among them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._needs: dict[str, SparkNeed] = {}

    @contextmanager
    def noting(self) -> Iterator[UsageTally]:
        """Charge what this thread does within to the tally that is returned, whose need may be added afterwards."""
        tally = UsageTally()
        with working_for(self._clock, [tally]):
            yield tally

    def hear(self, outcome: JobOutcome) -> None:
        """Add what an iteration needed Spark for."""
        self.add(outcome.row.job_id, outcome.spark)

    def add(self, job_id: str, need: SparkNeed | None) -> None:
        with self._lock:
            if (both := joined_needs(self._needs.get(job_id), need)) is not None:
                self._needs[job_id] = both

    def take(self, job_id: str) -> SparkNeed | None:
        """Return what the job needed Spark for since this was last called; None: it needed none."""
        with self._lock:
            return self._needs.pop(job_id, None)
