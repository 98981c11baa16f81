"""A job log in memory: many instances may share one `LogStorage`, as owners share a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.values.errors import InvariantBroken, IscpError, NotOwner


@dataclass
class LogStorage:
    """What is durable: the term, the entries, the history; `commits` holds the rows of each append."""

    term: int = 0
    entries: list[LogEntry] = field(default_factory=list)
    commits: list[list[JobRow]] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)
    version: int = -1


class FakeJobLog:
    """Port JobLog. `faults` are raised by the writes to come, one each, before anything is written (None: none is).

    `landed_faults` are raised after it was written, as when an answer is lost.
    """

    def __init__(self, storage: LogStorage | None = None) -> None:
        self.storage = storage or LogStorage()
        self.term = 0
        self.faults: list[IscpError | None] = []
        self.landed_faults: list[IscpError] = []
        self.compact_faults: list[IscpError] = []
        self.compactions = 0
        self.tidied = 0
        self._since = 0
        self._in_doubt: Sequence[LogEntry] | None = None
        self._landed = False

    @property
    def version(self) -> int:
        return self.storage.version

    @property
    def commits_since_compaction(self) -> int:
        return self._since

    def claim_term(self) -> int:
        self.storage.term += 1
        self.storage.version += 1
        self.term = self.storage.term
        return self.term

    def load(self) -> list[JobRow]:
        self._check()
        last: dict[str, JobRow] = {}
        for row, _ in self.storage.entries:
            last.pop(row.job_id, None)
            last[row.job_id] = row
        return list(last.values())

    def requests(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for row, request_id in self.storage.entries:
            if request_id:
                found.setdefault(row.job_id, []).append(request_id)
        return found

    def append(self, entries: Sequence[LogEntry]) -> None:
        self._check()
        if self._in_doubt is not None:
            if self._in_doubt != entries:
                raise InvariantBroken("another commit while one is in doubt")
            if self._landed:
                self._in_doubt = None
                return
        if fault := self.faults.pop(0) if self.faults else None:
            raise fault
        self._in_doubt = None
        self.storage.entries += entries
        self.storage.version += 1
        self.storage.commits.append([entry.row for entry in entries])
        self._since += 1
        if self.landed_faults:
            self._in_doubt, self._landed = entries, True
            raise self.landed_faults.pop(0)

    def compact(self, rows: Sequence[JobRow]) -> None:
        self._check()
        if self.compact_faults:
            raise self.compact_faults.pop(0)
        requests = {row.job_id: request_id for row, request_id in self.storage.entries if request_id}
        self.storage.entries = [LogEntry(row, requests.get(row.job_id, "")) for row in rows]
        self.compactions += 1
        self.storage.version += 1
        self._since = 0

    def tidy(self) -> int:
        self.tidied += 1
        return 0

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        if fault := self.faults.pop(0) if self.faults else None:
            raise fault
        self.storage.history += entries

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        return [entry for entry in reversed(self.storage.history) if entry.job_id == job_id][:limit]

    def _check(self) -> None:
        if self.term != self.storage.term:
            raise NotOwner(f"the term is {self.storage.term}, ours is {self.term}")
