"""Iterations that do what a test says (port IterationRunner)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.values.errors import Canceled
from iscp.model.values.watermark import Watermark
from iscp.ports.system import Guard

WAIT_MAX_S = 30.0


def applied(iteration: Iteration, version: int) -> tuple[JobOutcome, ...]:
    """All jobs of `iteration` came to `version`."""
    mark = Watermark(version, float(version))
    return tuple(
        JobOutcome(row, mark, row.seq + 1, rows=1, from_version=row.watermark.version, committed=True)
        for row in iteration.jobs
    )


class FakeRunner:
    """Runs `body` for each iteration; `order` are the numbers as they began, `cancelled` as they were cancelled."""

    def __init__(self, body: Callable[[Iteration, Guard], tuple[JobOutcome, ...]] | None = None) -> None:
        self._body = body or (lambda iteration, guard: applied(iteration, 0))
        self._lock = threading.Lock()
        self.order: list[int] = []
        self.cancelled: list[int] = []
        self.running = 0
        self.most_running = 0

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        with self._lock:
            self.order.append(iteration.number)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            return self._body(iteration, guard)
        finally:
            with self._lock:
                self.running -= 1

    def cancel(self, iteration: Iteration) -> None:
        with self._lock:
            self.cancelled.append(iteration.number)


class GatedRunner(FakeRunner):
    """Each iteration waits for its gate; a cancel opens it, and then the guard has the last word.

    `deaf`: a cancel opens nothing, as of work that is stuck.
    """

    def __init__(self, deaf: bool = False) -> None:
        super().__init__(self._wait)
        self._gates: dict[int, threading.Event] = {}
        self._deaf = deaf

    def gate(self, number: int) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(number, threading.Event())

    def _wait(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if not self.gate(iteration.number).wait(WAIT_MAX_S):
            raise Canceled("the test forgot it")
        guard.check()
        return applied(iteration, 0)

    def cancel(self, iteration: Iteration) -> None:
        super().cancel(iteration)
        if not self._deaf:
            self.gate(iteration.number).set()
