"""The thread that writes who changed what: batches of entries, from a queue that is never waited for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict

from iscp.core.audit_entry import AuditEntry
from iscp.core.errors import InvalidRequest, IscpError
from iscp.core.untrusted_values import error_text
from iscp.ports.access.token_ports import AuditLog
from iscp.ports.system import Threads
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)

QUEUE_MAX = 20_000
"""Entries of the audit that wait to be written; those that come beyond are written to the node's own log alone, each
as `audit.lost`, and counted.
"""

BATCH_MAX = 5_000
"""Entries of the audit in one commit; the others follow in further commits."""

DELAY_S = 1.0
"""How long entries of the audit are gathered before they are written together; a node that is killed loses these."""

RETRY_FIRST_S = 1.0
"""Pause after a failed write of the audit; it doubles up to RETRY_MAX_S."""

RETRY_MAX_S = 30.0
"""Longest pause between two attempts to write the audit."""

CLOSE_S = 10.0
"""How long a stopping node waits for the last entries of the audit to be written."""


class AuditWriter:
    """The port `AuditSink`. No call waits for it, and none fails because of it: see docs/authorization.md for why."""

    def __init__(self, audit: AuditLog, threads: Threads = THREADS, queue_max: int = QUEUE_MAX) -> None:
        self._audit = audit
        self._queue_max = queue_max
        self._pending: deque[AuditEntry] = deque()
        self._closing = False
        self._pause_s = RETRY_FIRST_S
        self.lost = 0
        """Entries that are not in the table, and never will be: they are in the node's log."""
        (self._wake,) = threads.conditions(1)
        self._thread = threads.thread("iscp-audit", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what is pending, and end; what cannot be written is in the node's log then."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        with self._wake:
            left, self._pending = list(self._pending), deque()
        self._lose(left, "the node stops")

    def add(self, entries: Sequence[AuditEntry]) -> None:
        with self._wake:
            room = 0 if self._closing and not self._thread.is_alive() else self._queue_max - len(self._pending)
            taken, left = entries[: max(0, room)], entries[max(0, room) :]
            self._pending.extend(taken)
            self._wake.notify_all()
        self._lose(left, "the queue is full")

    def counters(self) -> dict[str, int]:
        return {"audit_waiting": len(self._pending), "audit_lost": self.lost}

    def turn(self) -> bool:
        """Write one batch; False if the storage failed, and the batch waits."""
        with self._wake:
            batch = [self._pending[index] for index in range(min(BATCH_MAX, len(self._pending)))]
        try:
            self._write(batch)
        except IscpError as error:
            log.error("audit.failed", extra={"error": str(error), "waiting": len(self._pending)})
            return False
        with self._wake:
            for _ in batch:
                self._pending.popleft()
        return True

    def _write(self, batch: Sequence[AuditEntry]) -> None:
        if not batch:
            return
        try:
            self._audit.append(batch)
        except InvalidRequest as error:  # of what no table can hold only that is left out
            if len(batch) > 1:
                middle = len(batch) // 2
                self._write(batch[:middle])
                self._write(batch[middle:])
                return
            self._lose(batch, error_text(error))

    def _lose(self, entries: Sequence[AuditEntry], why: str) -> None:
        self.lost += len(entries)
        for entry in entries:
            log.error("audit.lost", extra={"why": why, **{f"audit_{name}": it for name, it in asdict(entry).items()}})

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._closing)
                if not self._closing:
                    self._wake.wait_for(lambda: self._closing, DELAY_S)
                closing = self._closing
            try:
                written = self.turn()
            except Exception:
                log.exception("audit.broken")
                written = False
            self._pause_s = RETRY_FIRST_S if written else min(RETRY_MAX_S, self._pause_s * 2)
            with self._wake:
                if closing and (not written or not self._pending):
                    return
                if not written:
                    self._wake.wait_for(lambda: self._closing, self._pause_s)
