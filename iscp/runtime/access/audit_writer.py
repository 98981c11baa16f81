"""The thread that writes who changed what: batches of entries, from a queue that is never waited for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.errors import IscpError
from iscp.core.values.untrusted_values import error_text
from iscp.ports.access.token_ports import AuditLog
from iscp.ports.system import Threads
from iscp.runtime.loop.batch_writer import BatchLimits, BatchWriter, Outlet
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

RETRY_FIRST_S = 1.0
"""Pause after a failed write of the audit; it doubles up to RETRY_MAX_S."""

RETRY_MAX_S = 30.0
"""Longest pause between two attempts to write the audit."""

CLOSE_S = 10.0
"""Seconds that a stopping node waits for the last entries of the audit to be written; then each that is being written
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
        self.lost = 0
        """Entries that are not in the table, and never will be: they are in the node's log."""
        outlet = Outlet(
            append=audit.append,
            refuse=lambda entry, error: self._lose([entry], error_text(error)),
            on_failure=self._log_failure,
            lose=self._lose,
            doubt=lambda entries, why: _log_all("audit.unconfirmed", entries, why),
            weigh=lambda entry: entry.chars,
        )
        limits = BatchLimits(BATCH_MAX, RETRY_FIRST_S, RETRY_MAX_S, close_s, queue_max, queue_chars_max)
        self._lost_lock = threads.conditions(1)[0]
        self._batches = BatchWriter("audit", outlet, limits, threads=threads)

    def start(self) -> None:
        self._batches.start()

    def close(self) -> None:
        """Write what is pending, and end; what cannot be written is in the node's log then."""
        self._batches.close()

    def turn(self) -> bool:
        """Write one batch; return False if the storage failed, and the batch waits."""
        return self._batches.turn()

    def add(self, entries: Sequence[AuditEntry]) -> None:
        self._batches.add(entries)

    def counters(self) -> dict[str, int]:
        return {"audit_waiting": self._batches.waiting_count(), "audit_lost": self.lost}

    def _log_failure(self, error: IscpError) -> float:
        log.error("audit.failed", extra={"error": str(error), "waiting": self._batches.waiting_count()})
        return 0.0

    def _lose(self, entries: Sequence[AuditEntry], why: str) -> None:
        with self._lost_lock:
            self.lost += len(entries)
        _log_all("audit.lost", entries, why)


def _log_all(event: str, entries: Sequence[AuditEntry], why: str) -> None:
    for entry in entries:
        log.error(event, extra={"why": why, **{f"audit_{name}": it for name, it in asdict(entry).items()}})
