"""The job log: rows that last, written by one term at a time.

Log stands for the Delta table and its fence (`iscp/adapters/delta/joblog.py`), Writer for
`iscp/runtime/log_writer.py`: real drafts on a real book, commits that take time and whose answers may be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iscp.coordination.book import BookChange, JobBook
from iscp.coordination.draft import Draft, Request
from iscp.core.errors import Conflict, InvalidRequest, JobNotFound
from iscp.core.ids import JobKey
from iscp.core.iteration import HistoryEntry
from iscp.core.job import JobReport, JobRow
from tests.simulation.specs import spec_json
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

STATUS_DELAY_S = 0.2
WATERMARK_DELAY_S = 5.0
RETRY_S = 0.5


class Log:
    """`rows`: the last row of each registration. `stalled`: its storage does not answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.term = 0
        self.stalled = False
        self.rows: dict[str, JobRow] = {}
        self.history: set[tuple[str, int]] = set()
        self._landed: set[int] = set()
        self._newest_writer = 0

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
        return term

    def claims(self, seen: int) -> bool:
        """The put-if-absent of a claim."""
        return seen == self.term

    def admits(self, term: int) -> bool:
        """The fence: only the last term's commits."""
        return term == self.term

    def append(self, term: int, number: int, rows: Sequence[JobRow]) -> bool:
        """Commit `rows` under an id of their own, which makes a repetition harmless; False: the term is over."""
        if not self.admits(term):
            return False
        if number in self._landed:
            return True
        expect(term == self._newest_writer, "term {} commits after term {} was claimed", term, self._newest_writer)
        self._landed.add(number)
        for row in rows:
            before = self.rows.get(row.job_id)
            if before is not None:
                expect(
                    row.seq >= before.seq, "the log's row of {} goes back from {} to {}", row.key, before.seq, row.seq
                )
                expect(before.drop_at_s is None, "{} is written over its end", row.key)
            sink = self._world.sink(row.key)
            if sink.job_id == row.job_id:
                told = row.watermark.version
                expect(
                    told <= sink.content, "the log has {} at {}, ahead of its sink at {}", row.key, told, sink.content
                )
            self.rows[row.job_id] = row
        self._world.checks.one_row_a_job(self.rows.values())
        return True


@dataclass(slots=True)
class _Batch:
    number: int
    draft: Draft
    statuses: list[JobRow] = field(default_factory=list)

    @property
    def rows(self) -> list[JobRow]:
        return [entry.row for entry in self.draft.entries] + self.statuses


class Writer:
    """The log's writer of one term. `on_moved` is told of what the book has moved, `on_deposed` of the term's end."""

    def __init__(
        self,
        process: Process,
        term: int,
        book: JobBook,
        on_moved: Callable[[BookChange], None],
        on_deposed: Callable[[Writer], None],
    ) -> None:
        self._process = process
        self._world = process.world
        self.term, self.book = term, book
        self._on_moved = on_moved
        self._on_deposed = on_deposed
        self._requests: deque[Request] = deque()
        self._history: list[tuple[Sequence[HistoryEntry], Callable[[], None]]] = []
        self._reports: list[JobReport] = []
        self._status_planned = self._watermark_planned = self._busy = False
        self.closed = False
        self.recorded: set[object] = set()

    def submit(self, request: Request) -> None:
        self._requests.append(request)
        self._turn()

    def report(
        self, reports: Iterable[JobReport], history: Sequence[HistoryEntry], on_written: Callable[[], None]
    ) -> None:
        """Take progress in; `on_written` comes when its history has been written down."""
        self._reports.extend(reports)
        if not self._busy:
            self._take_reports()
        self._history.append((history, on_written))
        if len(self._history) == 1:
            self._process.after(self._world.random.random() if history else 0.0, self._write)

    def close(self) -> None:
        """Write what is pending, once, and end."""
        if not self.closed and not self._busy:
            self._turn(statuses=True)
        self.closed = True

    def _take_reports(self) -> None:
        """The book does not change while a commit of it is under way."""
        reports, self._reports = self._reports, []
        change = self.book.apply(reports)
        if change.rows and not self.closed:
            self._plan_watermarks()
            self._on_moved(change)
        self._plan_statuses()

    def _write(self) -> None:
        """All that waits, in its order."""
        if self._world.log.stalled:
            self._process.after(RETRY_S, self._write)
            return
        waiting, self._history = self._history, []
        for history, on_written in waiting:
            self._world.log.history.update((entry.job_id, entry.seq) for entry in history)
            on_written()

    def _plan_statuses(self) -> None:
        if not self._status_planned and self.book.due(1):
            self._status_planned = True
            self._process.after(STATUS_DELAY_S, self._status_time)

    def _plan_watermarks(self) -> None:
        if not self._watermark_planned:
            self._watermark_planned = True
            self._process.after(WATERMARK_DELAY_S, self._watermark_time)

    def _watermark_time(self) -> None:
        self._watermark_planned = False
        if self._busy:
            self._plan_watermarks()
        elif self.book.flush_watermarks():
            self._turn(statuses=True)

    def _status_time(self) -> None:
        self._status_planned = False
        self._turn(statuses=True)

    def _turn(self, statuses: bool = False) -> None:
        if self._busy or self.closed:
            return
        batch = _Batch(self._world.number(), Draft(self.book, self._process.wall_s))
        while self._requests:
            try:
                batch.draft.decide(self._requests.popleft())
            except (InvalidRequest, JobNotFound, Conflict):
                continue  # it was answered so
        decided = {entry.row.job_id for entry in batch.draft.entries}
        if statuses:
            batch.statuses = [row for row in self.book.due(1_000) if row.job_id not in decided]
        if batch.rows:
            self._busy = True
            self._process.after(self._world.log_lag_s(), lambda: self._commit(batch))

    def _commit(self, batch: _Batch) -> None:
        world = self._world
        if world.log.stalled:
            self._process.after(RETRY_S, lambda: self._commit(batch))
            return
        if not world.log.append(self.term, batch.number, batch.rows):
            self.closed = True
            self._on_deposed(self)
            return
        if world.random.random() < world.trouble.doubt:
            self._process.after(RETRY_S + world.random.random() * 2, lambda: self._commit(batch))
            return
        world.note(self._process.node_id, f"has {len(batch.rows)} rows in the log")
        change = self.book.commit(batch.draft.entries)
        self.book.logged(batch.statuses)
        self._busy = False
        if change.rows and not self.closed:
            self._on_moved(change)
        self._take_reports()
        self._turn()
