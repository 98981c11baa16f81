"""The thread that writes the history of iterations and deletes the log's old files: nobody waits for either."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from iscp.core.job.iteration import HistoryEntry
from iscp.core.values.errors import HistoryDamaged, InvalidRequest, TemporaryError
from iscp.core.values.untrusted_values import error_text, shown
from iscp.ports.job_log import JobLog
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.halved_append import append_in_halves
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)

BATCH_MAX = 10_000
"""History entries in one commit; the others follow in further commits."""

DELAY_S = 1.0
"""How long entries are gathered before they are written together."""

CLOSE_S = 5.0
"""How long the history's thread is waited for at the end of a term; then it is left."""

KEPT_WHILE_DAMAGED_MAX = 10_000
"""Entries kept in memory while the history is damaged; beyond them the oldest are dropped, and logged."""

DAMAGED_RETRY_S = 10.0
"""Least time until a damaged history is tried again."""


class HistoryWriter:
    """Batches entries for about a second; while the storage fails they wait.

    While the history is damaged nobody waits for them: a person has to repair it, and jobs must not stop until then.
    """

    def __init__(
        self, joblog: JobLog, clock: Clock, retry_s: float, tidy_every_s: float, threads: Threads = THREADS
    ) -> None:
        self._log = joblog
        self._clock = clock
        self._retry_s = self._pause_s = retry_s
        self._damage = ""
        self._tidy_every_s = tidy_every_s
        self._tidy_at_s = clock.monotonic_s() + tidy_every_s
        (self._wake,) = threads.conditions(1)
        # Bounded by what nodes keep unacknowledged (coordination.outbox.HISTORY_MAX each): they hold back beyond it.
        self._pending: deque[HistoryEntry] = deque()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.quarantined = 0
        """Entries that were dead-lettered."""
        self._added = 0
        self._closing = False
        self._thread = threads.thread("iscp-history", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what is pending, once, and end."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def add(self, entries: Sequence[HistoryEntry], on_written: Callable[[], None]) -> None:
        """`on_written` is called, from any thread, once these and all before them are in the table."""
        with self._wake:
            self._pending.extend(entries)
            self._added += len(entries)
            self._waiting.append((self._added, on_written))
            self._wake.notify_all()
        if not entries or self._damage:
            self._tell_written()

    def _tell_written(self) -> None:
        with self._wake:
            written, called = self._added - (0 if self._damage else len(self._pending)), []
            while self._waiting and self._waiting[0][0] <= written:
                called.append(self._waiting.popleft()[1])
        # Without the lock: what it leads to may come back here.
        for on_written in called:
            on_written()

    def pending(self, job_id: str) -> list[HistoryEntry]:
        """What is not in the table yet, newest first."""
        with self._wake:
            return [entry for entry in reversed(self._pending) if entry.job_id == job_id]

    def turn(self) -> bool:
        """Write one batch, tidy if it is time; False if the storage failed."""
        with self._wake:
            batch = [self._pending[index] for index in range(min(BATCH_MAX, len(self._pending)))]
        try:
            if batch:
                append_in_halves(batch, self._log.append_history, self._quarantine)
                self._damage, self._pause_s = "", self._retry_s
                with self._wake:
                    # Only now: until they are in the table, `pending` has to show them.
                    for _ in batch:
                        self._pending.popleft()
                self._tell_written()
            if self._clock.monotonic_s() >= self._tidy_at_s:
                self._tidy_at_s = self._clock.monotonic_s() + self._tidy_every_s
                log.info("log.tidied", extra={"files": self._log.tidy()})
        except HistoryDamaged as error:
            self._go_on_without(error)
            return False
        except TemporaryError as error:
            log.warning("history.failed", extra={"error": str(error)})
            return False
        return True

    def _go_on_without(self, error: HistoryDamaged) -> None:
        if str(error) != self._damage:
            log.error("history.damaged", extra={"error": str(error)})
        self._damage, self._pause_s, dropped = str(error), max(self._retry_s, DAMAGED_RETRY_S), 0
        with self._wake:
            while len(self._pending) > KEPT_WHILE_DAMAGED_MAX:
                self._pending.popleft()
                dropped += 1
        if dropped:
            log.error("history.dropped", extra={"entries": dropped, "error": self._damage})
        self._tell_written()

    def _quarantine(self, entry: HistoryEntry, error: InvalidRequest) -> None:
        """What no table can hold is dead-lettered, as nobody could wait for it."""
        self.quarantined += 1
        log.error("history.quarantined", extra={"entry": shown(entry), "error": error_text(error)})

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._pending and not self._closing:
                    self._wake.wait(max(DELAY_S, self._tidy_at_s - self._clock.monotonic_s()))
                if not self._closing:
                    # Gather what else comes; only closing cuts this short.
                    self._wake.wait_for(lambda: self._closing, DELAY_S)
                closing = self._closing
            try:
                written = self.turn()
            except Exception:
                log.exception("history.broken")
                written = False
            with self._wake:
                if closing and (not written or not self._pending):
                    return
                if not written:
                    self._wake.wait_for(lambda: self._closing, self._pause_s)
