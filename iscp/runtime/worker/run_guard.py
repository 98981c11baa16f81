"""Guard a run: whether it may still write is checked right before each commit."""

from __future__ import annotations

from collections.abc import Callable

from iscp.core.values.errors import Canceled, TimedOut
from iscp.ports.system import Clock

CANCELED = "the iteration was cancelled"
TIMED_OUT = "the iteration took too long"


class RunGuard:
    """Port Guard for one run. Once its end was ordered, or its epoch is over, it never lets anything through again."""

    def __init__(self, clock: Clock, lease_check: Callable[[int], None], timeout_s: float, epoch: int = 0) -> None:
        self._clock = clock
        self._lease_check = lease_check
        self._epoch = epoch
        self._canceled = False
        self.due_s = clock.monotonic_s() + timeout_s if timeout_s > 0 else None

    def cancel(self) -> None:
        self._canceled = True

    @property
    def canceled(self) -> bool:
        return self._canceled

    @property
    def timed_out(self) -> bool:
        return self.due_s is not None and self._clock.monotonic_s() >= self.due_s

    def check(self) -> None:
        if self._canceled:
            raise Canceled(CANCELED)
        if self.timed_out:
            raise TimedOut(TIMED_OUT)
        self._lease_check(self._epoch)
