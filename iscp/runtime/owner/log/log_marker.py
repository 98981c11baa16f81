"""Keeps outside the job log what is to be known once it is damaged: its last version, and why nobody can claim it.

No commit waits for it: a thread that may wait for etcd writes it, and after a pause where one commit follows another.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor, wait

from iscp.core.values.errors import IscpError, NotOwner, no_etcd
from iscp.core.values.members import Leader
from iscp.ports.cluster import LogMarks
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least seconds between two records in etcd of how far the job log has come."""

LAST_WAIT_S = 2.0
"""Seconds that a node that ends waits for etcd to take the last record; then the next owner reads the log without
it.
"""

ASK_PAUSE_S = 5.0
"""Pause before the log's fault is read from etcd again after it did not answer."""


class LogMarker:
    """Record how far the log has come. `due_s` says when to call `advance` (None: the last version is saved, or on its
    way).

    `note` and `fault` may be called from any thread, all else belongs to the owner loop's.
    """

    def __init__(self, marks: LogMarks, clock: Clock, etcd: Executor) -> None:
        self._marks = marks
        self._clock = clock
        self._etcd = etcd
        self._version = self._saved = -1
        self._saved_at_s = self._ask_at_s = float("-inf")
        self._asking = threading.Lock()
        self._reported = (0, "")
        self._heard: IscpError | None = None
        self.due_s: float | None = None

    def note(self, version: int) -> bool:
        """Note that the log was written, or claimed, at this version, and return whether that made something due."""
        self._version = version
        if self.due_s is not None:
            return False
        self.due_s = max(self._clock.monotonic_s(), self._saved_at_s + EVERY_S)
        return True

    def advance(self, leader: Leader | None) -> None:
        now_s = self._clock.monotonic_s()
        if leader is None or self.due_s is None or self.due_s > now_s:
            return
        self.due_s, self._saved_at_s = None, now_s
        self._etcd.submit(self._save, leader)

    def close(self, leader: Leader | None) -> None:
        """Save the last version, if that is not done; wait for etcd, but not for long."""
        if leader is not None and self._saved != self._version:
            wait([self._etcd.submit(self._save, leader)], LAST_WAIT_S)

    def report(self, leader: Leader, fault: IscpError | None) -> None:
        """Report to all nodes why the log cannot be claimed; None if it was claimed."""
        report = leader.revision, str(fault or "")
        # What an earlier term has reported is gone with its lease.
        if report == self._reported or (fault is None and leader.revision != self._reported[0]):
            return
        self._reported = report
        self._etcd.submit(self._report, leader, fault)

    def fault(self) -> IscpError | None:
        """Return what the node that leads has reported, or that etcd does not answer; one thread at a time waits for
        it.
        """
        # The others are given what was heard last: no call of a user waits for etcd behind another.
        if self._asking.acquire(blocking=False):
            try:
                if self._clock.monotonic_s() >= self._ask_at_s:
                    self._heard = self._marks.fault()
            except IscpError as error:
                self._heard, self._ask_at_s = no_etcd(error), self._clock.monotonic_s() + ASK_PAUSE_S
                log.warning("owner.fault_not_known", extra={"error": str(error)})
            finally:
                self._asking.release()
        return self._heard

    def _save(self, leader: Leader) -> None:
        version = self._version
        try:
            self._marks.save(leader, version)
            self._saved = version
        except IscpError as error:
            log.warning("owner.log_not_marked", extra={"error": str(error)})
            if not isinstance(error, NotOwner):
                self.due_s = self._saved_at_s + EVERY_S

    def _report(self, leader: Leader, fault: IscpError | None) -> None:
        try:
            self._marks.report_fault(leader, fault)
        except IscpError as error:
            self._reported = leader.revision, "?"  # the next attempt to claim the log reports it again
            log.warning("owner.fault_not_reported", extra={"error": str(error)})
