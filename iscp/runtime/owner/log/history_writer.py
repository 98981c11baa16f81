"""The thread that writes the history of iterations and deletes the log's old files: nobody waits for either."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from iscp.core.job.iteration import HistoryEntry
from iscp.core.values.errors import HistoryDamaged, InvalidRequest, IscpError
from iscp.core.values.untrusted_values import error_text, shown
from iscp.ports.job_log import JobLog
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.batch_writer import BatchLimits, BatchWriter, Chore, Outlet
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)

BATCH_MAX = 10_000
"""History entries in one commit; the others follow in further commits."""

CLOSE_S = 5.0
"""Seconds that the end of a term waits for the history's thread; then it is left."""

WAITING_WHILE_DAMAGED_MAX = 10_000
"""Entries that wait in memory while the history is damaged; beyond them the oldest are dropped, and logged."""

DAMAGED_RETRY_S = 10.0
"""Least seconds until a damaged history is tried again."""


class HistoryWriter:
    """Batches entries for about a second; while the storage fails they wait.

    While the history is damaged nobody waits for them: a person has to repair it, and jobs must not stop until then.
    """

    def __init__(
        self, joblog: JobLog, clock: Clock, retry_s: float, tidy_every_s: float, threads: Threads = THREADS
    ) -> None:
        self.quarantined = 0
        """Entries that were dead-lettered."""
        self._log = joblog
        self._damage = ""
        outlet = Outlet(append=self._append, refuse=self._quarantine, on_failure=self._take_failure)
        # The queue is bounded by what nodes keep unacknowledged (coordination.outbox.HISTORY_MAX each).
        limits = BatchLimits(BATCH_MAX, retry_s, retry_s, CLOSE_S)
        self._batches = BatchWriter("history", outlet, limits, Chore(self._tidy, tidy_every_s, clock), threads)

    def start(self) -> None:
        self._batches.start()

    def close(self) -> None:
        """Write what is pending, once, and end."""
        self._batches.close()

    def turn(self) -> bool:
        """Write one batch; return False if the storage failed, and the batch waits."""
        return self._batches.turn()

    def add(self, entries: Sequence[HistoryEntry], on_written: Callable[[], None]) -> None:
        """Add entries; `on_written` is called, from any thread, once these and all before them are in the table."""
        self._batches.add(entries, on_written)

    def pending(self, job_id: str) -> list[HistoryEntry]:
        """Return what is not in the table yet, newest first."""
        return [entry for entry in reversed(self._batches.waiting()) if entry.job_id == job_id]

    def _append(self, entries: Sequence[HistoryEntry]) -> None:
        self._log.append_history(entries)
        self._damage = ""

    def _tidy(self) -> None:
        log.info("log.tidied", extra={"files": self._log.tidy()})

    def _take_failure(self, error: IscpError) -> float:
        if not isinstance(error, HistoryDamaged):
            log.warning("history.failed", extra={"error": str(error)})
            return 0.0
        if str(error) != self._damage:
            log.error("history.damaged", extra={"error": str(error)})
        self._damage = str(error)
        if dropped := self._batches.delay(WAITING_WHILE_DAMAGED_MAX):
            log.error("history.dropped", extra={"entries": dropped, "error": self._damage})
        return DAMAGED_RETRY_S

    def _quarantine(self, entry: HistoryEntry, error: InvalidRequest) -> None:
        """Dead-letter an entry that no table can hold, as nobody could wait for it."""
        self.quarantined += 1
        log.error("history.quarantined", extra={"entry": shown(entry), "error": error_text(error)})
