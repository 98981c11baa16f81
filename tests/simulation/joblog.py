"""The job log: rows that last, written by one term at a time.

Log stands for the Delta table and its fence, TermLog for one owner's handle of it
(`iscp/delta/joblog/delta_job_log.py`): commits take time, may fail, and their answers may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from iscp.cluster.owner.job_log_writer import LogLimits
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import NotOwner, OutcomeUnknown, StorageError
from iscp.model.values.ids import JobKey
from tests.simulation.specs import spec_json
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

CONFIG = JobLogConfig(uri="", flush_interval_s=5.0, compact_commits=20)
LIMITS = LogLimits(retry_s=0.5, retry_max_s=2.0, tidy_every_s=20.0)
STALLED_S = 0.5
"""How long a storage that does not answer is waited for."""


class Log:
    """`rows`: the last row of each registration. `stalled`: its storage does not answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.term = 0
        self.stalled = False
        self.version = 0
        self.rows: dict[str, JobRow] = {}
        self.history: set[tuple[str, int]] = set()
        self.written_by = 0
        self.requests: set[str] = set()
        self.refused: set[str] = set()
        self._landed: set[int] = set()
        self._newest_writer = 0

    @property
    def may_land(self) -> bool:
        """Whether a put that was not answered counts as one that may."""
        return True

    def load(self, keys: Iterable[JobKey]) -> None:
        """These were registered before the first owner."""
        for number, key in enumerate(keys, start=1):
            row = JobRow(key, f"{number:012x}", spec_json(key), key.table_id, f"/{key.table_id}")
            self.rows[row.job_id] = row

    def claim(self, seen: int) -> int | None:
        """Mint the term after `seen`, unless somebody else did."""
        if not self.claims(seen):
            return None
        term = seen + 1
        expect(term > self._newest_writer, "term {} is minted twice", term)
        self.term = self._newest_writer = term
        self.version += 1
        return term

    def claims(self, seen: int) -> bool:
        """The put-if-absent of a claim."""
        return seen == self.term

    def admits(self, term: int) -> bool:
        """The fence: only the last term's commits."""
        return term == self.term

    def land(self, term: int, number: int, entries: Sequence[LogEntry], version: int) -> None:
        """A put at the version after this one, which nobody has waited for."""
        if self.version == version:
            self.append(term, number, entries)

    def refuse(self, request_id: str) -> None:
        """A user was answered that nothing was written."""
        expect(request_id not in self.requests, "{} was said not to be written, and is", request_id)
        self.refused.add(request_id)

    def append(self, term: int, number: int, entries: Sequence[LogEntry]) -> bool:
        """Commit them under an id of their own, which makes a repetition harmless; False: the term is over."""
        if not self.admits(term):
            return False
        if number in self._landed:
            return True
        expect(term == self._newest_writer, "term {} commits after term {} was claimed", term, self._newest_writer)
        self._landed.add(number)
        self.written_by = term
        self.version += 1
        for row, request_id in entries:
            self._look_at(row)
            self.rows[row.job_id] = row
            expect(request_id not in self.refused, "{} is written after that was said not to be", request_id)
            if request_id:
                self.requests.add(request_id)
        self._world.checks.one_row_a_job(self.rows.values())
        return True

    def _look_at(self, row: JobRow) -> None:
        before = self.rows.get(row.job_id)
        if before is not None:
            expect(row.seq >= before.seq, "the log's row of {} goes back from {} to {}", row.key, before.seq, row.seq)
            expect(before.drop_at_s is None, "{} is written over its end", row.key)
        sink = self._world.sink_of(row)
        if before is not None:
            for uri, mark in before.sources.items():
                now = row.sources.get(uri)
                back = now is None or now.watermark.version < mark.watermark.version
                expect(not back, "the log's row of {} goes back from {} to {} of {}", row.key, mark, now, uri)
        if sink.job_id == row.job_id:
            told = row.watermark.version
            if self._world.further(row.key) and self._world.covers(row.key.table_id, sink.content, told):
                return
            expect(told <= sink.content, "the log has {} at {}, ahead of its sink at {}", row.key, told, sink.content)

    def compact(self, term: int, rows: Sequence[JobRow]) -> bool:
        """These are all rows from now on; False: the term is over."""
        if not self.admits(term):
            return False
        kept = {row.job_id for row in rows}
        for row in self.rows.values():
            expect(row.drop_at_s is not None or row.job_id in kept, "{} is lost by a compaction", row.key)
        for row in rows:
            if row != self.rows.get(row.job_id):
                self._look_at(row)
        self.rows = {row.job_id: row for row in rows}
        self.version += 1
        return True


class TermLog:
    """Port JobLog, of one term."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._term = 0
        self._in_doubt: tuple[int, list[LogEntry]] | None = None
        self.commits_since_compaction = 0
        self.version = -1

    def claim_term(self) -> int:
        seen = self._world.log.term
        self._wait(StorageError("the job log's storage does not answer"))
        term = self._world.log.claim(seen)
        if term is None:
            raise NotOwner("another term was claimed meanwhile")
        self._term, self.version = term, self._world.log.version
        return term

    def load(self) -> list[JobRow]:
        self._wait(StorageError("the job log's storage does not answer"))
        if not self._world.log.admits(self._term):
            raise NotOwner("another term was claimed")
        return list(self._world.log.rows.values())

    def requests(self) -> Mapping[str, Sequence[str]]:
        return {}

    def append(self, entries: Sequence[LogEntry]) -> None:
        given = list(entries)
        world, unknown = self._world, OutcomeUnknown("the job log's storage does not answer")
        number, before = self._in_doubt or (world.number(), given)
        expect(before == given, "another commit is made while one is in doubt")
        try:
            self._wait(unknown)
            if world.wrongs.happen(world.trouble.lost_puts):
                self._lose_put(number, before)
            if not world.log.append(self._term, number, before):
                self._in_doubt = None
                raise NotOwner("another term was claimed")
            if world.random.random() < world.trouble.doubt:
                raise unknown
        except OutcomeUnknown:
            self._in_doubt = number, before
            raise
        self._in_doubt, self.version = None, world.log.version
        self.commits_since_compaction += 1
        world.note(self._process.node_id, f"has {len(given)} rows in the log")

    def _lose_put(self, number: int, entries: Sequence[LogEntry]) -> None:
        """It is sent, nobody knows when it lands, if ever, and the log is as it was."""
        world = self._world
        if (after_s := world.wrongs.lands_after_s()) is not None:
            world.agenda.after(after_s, partial(world.log.land, self._term, number, entries, world.log.version))
        self._in_doubt = (number, list(entries)) if world.log.may_land else None
        raise (OutcomeUnknown if world.log.may_land else StorageError)("a put to the job log's storage has timed out")

    def compact(self, rows: Sequence[JobRow]) -> None:
        expect(self._in_doubt is None, "the log is compacted while a commit is in doubt")
        self._wait(StorageError("the job log's storage does not answer"))
        if not self._world.log.compact(self._term, rows):
            raise NotOwner("another term was claimed")
        self.commits_since_compaction = 0

    def tidy(self) -> int:
        return 0

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        self._wait(StorageError("the history's storage does not answer"))
        self._world.log.history.update((entry.job_id, entry.seq) for entry in entries)

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        return []

    def _wait(self, stalled: Exception) -> None:
        """A call to the storage, up to the moment at which it takes effect."""
        self._process.threads.sleep(self._world.log_lag_s())
        if self._world.log.stalled:
            self._process.threads.sleep(STALLED_S)
            raise stalled
