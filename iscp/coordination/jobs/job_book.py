"""The owner's book of jobs: the current row of each, and what of it the job log does not have yet.

Decisions (see PendingChanges) take effect here once the log has them. Reports of progress move the book at once, for
the sink is the truth about them, and their rows follow at the log's pace. The book knows no clock, no threads and no
storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter

from iscp.coordination.jobs.answered_requests import AnsweredRequests, RequestKey
from iscp.coordination.jobs.book_change import BookChange
from iscp.coordination.jobs.book_index import BookIndex, target_of
from iscp.coordination.jobs.job_counts import JobCounts
from iscp.coordination.jobs.split_tables import SplitTables
from iscp.coordination.jobs.table_paths import Places
from iscp.coordination.jobs.unlogged_rows import UnloggedRows
from iscp.core.job.job_of_ranges import combined
from iscp.core.job.job_row import Deletion, JobReport, JobRow, JobState, LogEntry, Reason, apply_report
from iscp.core.rows.key_ranges import WHOLE
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.ids import JobKey, ShardId


class JobBook:
    """The current row of every job by its key, and the dropped registrations until they are collected.

    `last_job_id` is the greatest there is, dropped ones too. Invariants: every wanted row has `drop_at_s` None, every
    dropped one has not; the indexes are those of the wanted rows. If a table is split, each of its jobs has a row for
    each of its ranges; jobs are what is counted and selected. One thread changes it; see LogWriter for how others read.
    """

    def __init__(self, rows: Iterable[JobRow] = (), requests: Mapping[str, Sequence[str]] | None = None) -> None:
        """`rows`: the last of each registration; `requests`: by their job_id the ids of requests, oldest first."""
        self._jobs: dict[JobKey, JobRow] = {}
        self._dropped: dict[str, JobRow] = {}
        self._keys: dict[str, JobKey] = {}
        self._tables: dict[str, dict[str, JobKey]] = {}
        self._split = SplitTables()
        self._index = BookIndex(lambda: self._jobs.values())
        self._counts = JobCounts()
        self._unlogged = UnloggedRows()
        self._deleted: dict[str, None] = {}
        self._load(sorted(rows, key=attrgetter("create_at_s")))
        known = {job_id: row for job_id in requests or {} if (row := self.by_id(job_id)) is not None}
        self._requests = AnsweredRequests(
            {(row.key.account, each): job_id for job_id, row in known.items() for each in (requests or {})[job_id]}
        )

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, key: JobKey) -> JobRow | None:
        """Return the row of this key, unless it was dropped."""
        return self._jobs.get(key)

    def rows_of(self, key: JobKey) -> tuple[JobRow, ...]:
        """Return the rows of a job, one for each range of its table, whichever of them is named; none if it was
        dropped.
        """
        found = (self._jobs.get(key.of_range(each)) for each in self.ranges(key.table_id))
        return tuple(row for row in found if row is not None)

    def job(self, key: JobKey) -> JobRow | None:
        """Return the job of this name as its users see it, unless it was dropped."""
        rows = self.rows_of(key)
        return combined(rows) if rows else None

    def ranges(self, table_id: str) -> tuple[int, ...]:
        """Return the ranges that a table is split into."""
        return self._split.ranges(table_id)

    def by_id(self, job_id: str) -> JobRow | None:
        """Return a registration, dropped or not."""
        key = self._keys.get(job_id)
        return self._dropped.get(job_id) if key is None else self._jobs[key]

    def jobs_on(self, table_id: str) -> tuple[JobRow, ...]:
        return tuple(self._jobs[key] for key in self._tables.get(table_id, {}).values())

    def uri_of(self, table_id: str, but: JobKey | None = None) -> str | None:
        """Return where the table lies that the jobs with this id, `but` for one, read; None if there are none."""
        first = next((key for key in self._tables.get(table_id, {}).values() if key.job != but), None)
        return None if first is None else self._jobs[first].table_uri

    def jobs_in(self, shard: ShardId) -> tuple[JobRow, ...]:
        return tuple(row for row in self.jobs_on(shard.table_id) if row.key.range_id == shard.range_id)

    def tables_called(self, name: str) -> tuple[str, ...]:
        """Return the ids of tables with jobs that have this URI, were called so at a registration, or have this id by
        now.

        The newest first. There are several where a table was dropped and recreated: each job is on the one that it was
        registered on.
        """
        return self._index.tables_called(name)

    def has_jobs_on(self, table_id: str) -> bool:
        return table_id in self._tables

    def tables(self) -> list[str]:
        """Return the ids of all tables that have jobs."""
        return list(self._tables)

    def targets(self) -> Places:
        """Return the places where the jobs store their targets."""
        return self._index.targets()

    def sources(self) -> Places:
        """Return the tables that the jobs are on, by their URIs."""
        return self._index.sources()

    def jobs_reading(self, uri: str) -> Mapping[str, str]:
        """Return the ids of the jobs that read the table at this URI besides their own, each with that of its own."""
        return dict(self._index.readers(uri))

    def rows(self) -> list[JobRow]:
        """Return the rows for the log: the last one of every registration, dropped ones before their successors."""
        return [*self._dropped.values(), *self._jobs.values()]

    def select(
        self,
        account: str = "",
        tables: Sequence[str] = (),
        state: JobState | None = None,
        reason: Reason | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        """Return jobs in the order in which they were registered (on each of `tables`); empty fields do not filter."""
        rows = chain(*map(self.jobs_on, tables)) if tables else self._jobs.values()
        found = (
            row
            for row in filter(None, map(self._once, rows))
            if (not account or row.key.account == account)
            and (state is None or row.state is state)
            and (reason is None or row.reason is reason)
        )
        return list(islice(found, limit))

    def _once(self, row: JobRow) -> JobRow | None:
        """Return the job of a row, for the first of its rows alone."""
        if row.key.range_id == WHOLE:
            return combined((row,))
        rows = self.rows_of(row.key)
        return combined(rows) if rows[0] is row else None

    def count(
        self, account: str = "", tables: Sequence[str] = (), state: JobState | None = None, reason: Reason | None = None
    ) -> int:
        """Count jobs, at a cost that does not depend on their number unless a table is named."""
        if tables:
            return len(self.select(account, tables, state, reason))
        return self._counts.count(account, state, reason)

    # Reports

    def apply(self, reports: Iterable[JobReport]) -> BookChange:
        """Apply reports to the rows that they are about; late, doubled and foreign ones change nothing."""
        changed_rows: dict[str, JobRow] = {}
        woken: dict[ShardId, None] = {}
        for report in reports:
            row = self._jobs.get(report.key)
            changed = apply_report(row, report) if row is not None else None
            if changed is None:
                continue
            self._install(changed)
            changed_rows[changed.job_id] = changed
            if row is not None and changed.seq > row.seq:  # each commit of a sink has a seq of its own
                woken |= dict.fromkeys(self._reading_target_of(changed))
            has_status = report.state is not None or report.reason is not None or report.status is not None
            self._unlogged.add(changed.job_id, due=has_status)
        return BookChange(rows=tuple(changed_rows.values()), woken=tuple(woken))

    def _reading_target_of(self, row: JobRow) -> Iterator[ShardId]:
        """Return the shards of jobs for which the target of this one is a source. Costs with their number alone."""
        target = target_of(row.spec_json)
        job_ids = (*self._index.sources().at(target), *self._index.readers(target)) if target else ()
        return (self._keys[job_id].shard for job_id in job_ids)

    def due(self, limit: int) -> list[JobRow]:
        """Return rows whose status the log does not have yet; they stay due until `mark_logged`."""
        return [self._jobs[self._keys[job_id]] for job_id in self._unlogged.due(limit)]

    def deleted(self) -> list[JobRow]:
        """Return the jobs whose targets are deleted: they are to be dropped."""
        return [self._jobs[self._keys[job_id]] for job_id in self._deleted]

    def mark_logged(self, rows: Iterable[JobRow]) -> None:
        """Note that the log has these rows."""
        self._unlogged.remove(row.job_id for row in rows)

    def flush_watermarks(self) -> int:
        """Make rows due of which only the watermark has moved; answers how many rows are due now.

        A dropped job is never among them: nothing is written over a `drop_at`.
        """
        return self._unlogged.flush()

    def collect(self, dropped_before_s: float) -> int:
        """Forget registrations dropped before a time (Unix seconds); the next compaction takes them out of the log."""
        gone = {job_id for job_id, row in self._dropped.items() if (row.drop_at_s or 0.0) < dropped_before_s}
        for job_id in gone:
            del self._dropped[job_id]
        if gone:
            self._requests.forget(gone)
        return len(gone)

    # Decisions

    def request(self, account: str, request_id: str) -> JobRow | None:
        """Return the registration, dropped or not, that an earlier request about a job of the account was about."""
        return self.by_id(self._requests.get((account, request_id)) or "")

    def commit(self, entries: Iterable[LogEntry]) -> BookChange:
        """Take the entries of a draft that the log has into effect, and return what has changed."""
        shards: dict[ShardId, None] = {}
        rows: dict[str, JobRow] = {}
        answered: dict[RequestKey, str] = {}
        for entry in entries:
            self._install(entry.row)
            rows[entry.row.job_id] = entry.row
            shards[entry.row.key.shard] = None
            if entry.request_id:
                answered[entry.row.key.account, entry.request_id] = entry.row.job_id
        self.mark_logged(rows.values())
        self._requests.add(answered)
        return BookChange(tuple(rows.values()), tuple(shards))

    def _load(self, rows: Sequence[JobRow]) -> None:
        """Load all rows at once: one by one, a hundred thousand would be half of what a new owner does."""
        wanted = [row for row in rows if row.drop_at_s is None]
        self._dropped = {row.job_id: row for row in rows if row.drop_at_s is not None}
        self._keys = {row.job_id: row.key for row in wanted}
        self._jobs = {row.key: row for row in wanted}
        self._deleted = {row.job_id: None for row in wanted if row.deletion is Deletion.DONE}
        if len(self._jobs) < len(wanted):
            twice = next(row for row in wanted if self._jobs[row.key] is not row)
            raise InvariantBroken(f"{twice.key} is registered twice")
        for row in wanted:
            self._tables.setdefault(row.key.table_id, {})[row.job_id] = row.key
        ranges = [row.key for row in wanted if row.key.range_id != WHOLE]
        for key in ranges:
            self._split.add(key)
        for job in {key.job for key in ranges}:
            self._count_job(job, 1)
        self._counts.add_all(row for row in wanted if row.key.range_id == WHOLE)
        self.last_job_id = max((row.job_id for row in rows), default="")

    def _install(self, row: JobRow) -> None:
        if row.key.range_id == WHOLE:
            self._install_row(row)
            return
        self._count_job(row.key, -1)
        self._install_row(row)
        self._count_job(row.key, 1)

    def _count_job(self, key: JobKey, by: int) -> None:
        if (job := self.job(key)) is not None:
            self._counts.add(job, by)

    def _install_row(self, row: JobRow) -> None:
        before = self._jobs.get(row.key)
        whole = row.key.range_id == WHOLE
        if before is not None and before.job_id == row.job_id:
            if whole:
                self._counts.add(before, -1)
            if row.drop_at_s is not None:
                self._forget(before)
            else:
                if row.source_id != before.source_id:
                    self._index.follow(before, row)
                if row.spec_json != before.spec_json:
                    self._index.reread(before, row)
        elif row.drop_at_s is None:
            if before is not None:
                raise InvariantBroken(f"{row.key} is registered twice, as {before.job_id} and {row.job_id}")
            self._keys[row.job_id] = row.key
            self._tables.setdefault(row.key.table_id, {})[row.job_id] = row.key
            self._split.add(row.key)
            self._index.add(row)
        self.last_job_id = max(self.last_job_id, row.job_id)
        if row.drop_at_s is not None:
            self._dropped[row.job_id] = row
        else:
            self._jobs[row.key] = row
            if row.deletion is Deletion.DONE:
                self._deleted[row.job_id] = None
            if whole:
                self._counts.add(row)

    def _forget(self, row: JobRow) -> None:
        del self._jobs[row.key], self._keys[row.job_id]
        self._unlogged.remove([row.job_id])
        self._deleted.pop(row.job_id, None)
        on_table = self._tables[row.key.table_id]
        del on_table[row.job_id]
        if not on_table:
            del self._tables[row.key.table_id]
        self._split.remove(row.key)
        self._index.remove(row)
