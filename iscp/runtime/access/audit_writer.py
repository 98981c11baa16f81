"""The thread that writes who changed what: batches of entries, from a queue that is never waited for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict

from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.errors import InvalidRequest, IscpError
from iscp.core.values.untrusted_values import error_text
from iscp.ports.access.token_ports import AuditLog
from iscp.ports.system import Threads
from iscp.runtime.loop.halved_append import append_in_halves
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)

QUEUE_MAX = 20_000
"""Entries of the audit that wait to be written; those that come beyond are written to the node's own log alone, each
as `audit.lost`, and counted.
"""

QUEUE_CHARS_MAX = 32_000_000
"""Characters of these entries together; those that come beyond are treated as those beyond QUEUE_MAX."""

BATCH_MAX = 5_000
"""Entries of the audit in one commit; the others follow in further commits."""

DELAY_S = 1.0
"""How long entries of the audit are gathered before they are written together; a node that is killed loses these."""

RETRY_FIRST_S = 1.0
"""Pause after a failed write of the audit; it doubles up to RETRY_MAX_S."""

RETRY_MAX_S = 30.0
"""Longest pause between two attempts to write the audit."""

CLOSE_S = 10.0
"""How long a stopping node waits for the last entries of the audit to be written; then each that is being written
still is in its log as `audit.unconfirmed`.
"""


class AuditWriter:
    """The port `AuditSink`. No call waits for it, and none fails because of it: see docs/authorization.md for why."""

    def __init__(
        self,
        audit: AuditLog,
        threads: Threads = THREADS,
        queue_max: int = QUEUE_MAX,
        queue_chars_max: int = QUEUE_CHARS_MAX,
        close_s: float = CLOSE_S,
    ) -> None:
        self._audit = audit
        self._queue_max = queue_max
        self._queue_chars_max = queue_chars_max
        self._close_s = close_s
        self._pending: deque[AuditEntry] = deque()
        self._writing: deque[AuditEntry] = deque()
        """Taken from those that are pending; of `turn` alone."""
        self._chars = 0
        """Of both."""
        self._closing, self._closed = False, False
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
            self._thread.join(self._close_s)
        with self._wake:
            self._closed = True
            left, uncertain = list(self._pending), list(self._writing)
            self._pending.clear()
        # If the storage answers before the process ends, these are written, or lost, and then logged as such too.
        _log_all("audit.unconfirmed", uncertain, "the node stops while it is being written")
        self._lose(left, "the node stops")

    def add(self, entries: Sequence[AuditEntry]) -> None:
        left: list[AuditEntry] = []
        with self._wake:
            ended = self._closed or (self._closing and not self._thread.is_alive())
            for entry in entries:
                full = self._waiting() >= self._queue_max or self._chars + entry.chars > self._queue_chars_max
                if ended or full:
                    left.append(entry)
                else:
                    self._pending.append(entry)
                    self._chars += entry.chars
            self._wake.notify_all()
        self._lose(left, "the node stops" if ended else "the queue is full")

    def counters(self) -> dict[str, int]:
        with self._wake:
            return {"audit_waiting": self._waiting(), "audit_lost": self.lost}

    def _waiting(self) -> int:
        return len(self._pending) + len(self._writing)

    def turn(self) -> bool:
        """Write one batch; False if the storage failed, and the batch waits."""
        with self._wake:
            while self._pending and len(self._writing) < BATCH_MAX:
                self._writing.append(self._pending.popleft())
            batch = list(self._writing)
        try:
            if batch:
                append_in_halves(batch, self._append, self._refuse)
        except IscpError as error:
            log.error("audit.failed", extra={"error": str(error), "waiting": self.counters()["audit_waiting"]})
            return False
        finally:
            self._put_back()
        return True

    def _append(self, batch: Sequence[AuditEntry]) -> None:
        self._audit.append(batch)
        self._forget(len(batch))

    def _refuse(self, entry: AuditEntry, error: InvalidRequest) -> None:
        self._lose([entry], error_text(error))
        self._forget(1)

    def _forget(self, count: int) -> None:
        """Those in front are done with: batches are written in order."""
        with self._wake:
            for _ in range(count):
                self._chars -= self._writing.popleft().chars

    def _put_back(self) -> None:
        """What could not be written waits, before all others; once the node has stopped nobody writes it."""
        with self._wake:
            left = list(self._writing)
            self._writing.clear()
            if not self._closed:
                self._pending.extendleft(reversed(left))
                return
        self._lose(left, "the node stops")

    def _lose(self, entries: Sequence[AuditEntry], why: str) -> None:
        with self._wake:
            self.lost += len(entries)
        _log_all("audit.lost", entries, why)

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


def _log_all(event: str, entries: Sequence[AuditEntry], why: str) -> None:
    for entry in entries:
        log.error(event, extra={"why": why, **{f"audit_{name}": it for name, it in asdict(entry).items()}})
