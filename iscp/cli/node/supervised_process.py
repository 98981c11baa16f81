"""A child process that is started again when it dies."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from iscp.adapters.system.child_process import how_it_ended

log = logging.getLogger(__name__)

BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 10.0
SETTLED_S = 60.0
"""A process that ran for so long starts again without a growing pause."""


@dataclass(slots=True)
class SupervisedProcess:
    """A child that is started again when it dies, after 0.5 s doubling to 10 s.

    Invariant: either `child` runs, or `due_s` says when it is started (monotonic seconds).
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    child: subprocess.Popen[bytes] | None = None
    due_s: float = 0.0
    started_s: float = 0.0
    failures: int = 0
    status: int = 0
    """The status with which it ended last."""

    @property
    def pid(self) -> int:
        return self.child.pid if self.child else 0

    def tick(self, now_s: float) -> None:
        if self.child is not None:
            returncode = self.child.poll()
            if returncode is None:
                return
            self._plan_restart(returncode, now_s)
        if now_s >= self.due_s:
            try:
                self.child, self.started_s = self.start(), now_s
            except OSError as error:  # its log cannot be opened: the disk may be full, and have room again
                self._wait_before_restart(now_s)
                log.warning("child.not_started", extra={"child": self.name, "error": str(error)})
                return
            log.info("child.started", extra={"child": self.name, "pid": self.pid})

    def _plan_restart(self, returncode: int, now_s: float) -> None:
        self.status = returncode
        wait_s = self._wait_before_restart(now_s)
        extra = {"child": self.name, "pid": self.pid, "by": how_it_ended(returncode), "again_in_s": wait_s}
        log.warning("child.died", extra=extra)
        self.child = None

    def _wait_before_restart(self, now_s: float) -> float:
        self.failures = 1 if now_s - self.started_s >= SETTLED_S else self.failures + 1
        wait_s: float = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** (self.failures - 1))
        self.due_s = now_s + wait_s
        return wait_s
