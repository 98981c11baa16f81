"""The owner's book of jobs: the current row of each, and what of it the job log does not have yet.

`JobBook` is the book; the other classes are its parts: indexes by places and names, changes, answered requests, counts,
ranges of tables, and rows that the log does not have yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter

from iscp.model.job.job_row import (
    Deletion,
    JobReport,
    JobRow,
    JobState,
    LogEntry,
    Reason,
    apply_report,
    combined,
    further_tables,
)
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.spec.spec_parsing import target_of
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import JobKey, ShardId

# --- places, by path --------------------------------------------------------------------------------------------------

_PATHS = ("/", "s3://")


class Places:
    """The jobs of each place that jobs write or read, by their ids, found by path.

    What lies above and below a place is found without reading all the others: a change or a lookup costs with a path's
    depth, not with the number of jobs. A VACUUM of a table deletes what lies in its directory and is not its own, so
    that no target is ever above or below a place that another job writes or reads.

    A place may be any text; only paths lie above or below one another. If `letters` is set, each place stands for the
    table of its dead letters too.
    """

    def __init__(self, *, letters: bool = False) -> None:
        self._letters = letters
        self._here: dict[str, tuple[str, ...]] = {}
        self._below: dict[str, set[str]] = {}  # directory: the names in it that are places, or lead to some

    def at(self, place: str) -> tuple[str, ...]:
        """Return the ids of the jobs that have this very place."""
        return self._here.get(place, ())

    def add(self, place: str, job_id: str) -> None:
        if not place:
            return
        self._here[place] = (*self.at(place), job_id)
        for directory, name in _above(place):
            names = self._below.setdefault(directory, set())
            if name in names:
                return
            names.add(name)

    def remove(self, place: str, job_id: str) -> None:
        """Remove a place that was added."""
        if not place:
            return
        self._here[place] = tuple(each for each in self._here[place] if each != job_id)
        if self._here[place]:
            return
        del self._here[place]
        if place in self._below:
            return
        for directory, name in _above(place):
            self._below[directory].remove(name)
            if self._below[directory]:
                return
            del self._below[directory]
            if directory in self._here:
                return

    def around(self, path: str) -> Iterator[str]:
        """Return the places strictly above and below `path`."""
        for directory, _ in _above(path):
            yield from self._standing_for(directory)
        yield from self._under(path)

    def _standing_for(self, path: str) -> Iterator[str]:
        if path in self._here:
            yield path
        if self._letters and path.endswith(DEAD_LETTER_SUFFIX):
            target = path.removesuffix(DEAD_LETTER_SUFFIX)
            if target in self._here:
                yield target

    def _under(self, path: str) -> Iterator[str]:
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            for name in self._below.get(directory, ()):
                found = f"{directory}/{name}"
                if found in self._here:
                    yield found
                waiting.append(found)


def _above(path: str) -> Iterator[tuple[str, str]]:
    """Return each directory above a path, the nearest first, and the name in it that leads to the path."""
    if not path.startswith(_PATHS):
        return
    while (at := path.rfind("/")) > 0:
        yield path[:at], path[at + 1 :]
        path = path[:at]


def with_letters(target: str) -> tuple[str, str]:
    """Return a target, and where the table of its dead letters is, or would be."""
    return target, target + DEAD_LETTER_SUFFIX


# --- indexes ----------------------------------------------------------------------------------------------------------


class BookIndex:
    """The indexes of the book's jobs: by the places that they write and read, and by the names of their tables.

    Each index is built when it is first needed, of all rows: a new owner has no time for them. Invariant: what has been
    made is that of all rows that `rows` gives.
    """

    def __init__(self, rows: Callable[[], Iterable[JobRow]]) -> None:
        self._rows = rows
        self._targets: Places | None = None
        self._sources: Places | None = None
        self._called: dict[str, dict[str, int]] | None = None
        self._readers: dict[str, dict[str, str]] | None = None

    def readers(self, uri: str) -> dict[str, str]:
        """Return the ids of the jobs that read the table at `uri` besides their own, with those of their tables."""
        if self._readers is None:
            self._readers = {}
            for row in self._rows():
                self._read(row)
        return self._readers.get(uri, {})

    def reread(self, before: JobRow, row: JobRow) -> None:
        """Index a job whose spec has changed."""
        self._read_no_more(before)
        self._read(row)

    def _read(self, row: JobRow) -> None:
        if self._readers is not None:
            for uri in further_tables(row):
                self._readers.setdefault(uri, {})[row.job_id] = row.key.table_id

    def _read_no_more(self, row: JobRow) -> None:
        if self._readers is not None:
            for uri in further_tables(row):
                jobs = self._readers.get(uri, {})
                jobs.pop(row.job_id, None)
                if not jobs:
                    self._readers.pop(uri, None)

    def targets(self) -> Places:
        """Return the places where the jobs store their targets."""
        if self._targets is None:
            self._targets = Places(letters=True)
            for row in self._rows():
                self._targets.add(target_of(row.spec_json), row.job_id)
        return self._targets

    def sources(self) -> Places:
        """Return the tables that the jobs are on, by their URIs."""
        if self._sources is None:
            self._sources = Places()
            for row in self._rows():
                self._sources.add(row.table_uri, row.job_id)
        return self._sources

    def tables_called(self, name: str) -> tuple[str, ...]:
        """Return the ids of tables that have this name, the newest first."""
        if self._called is None:
            self._called = {}
            for row in self._rows():
                self._call(row, 1, _names(row))
        return tuple(reversed(self._called.get(name, {})))

    def add(self, row: JobRow) -> None:
        """Index a job that is new."""
        if self._targets is not None:
            self._targets.add(target_of(row.spec_json), row.job_id)
        if self._sources is not None:
            self._sources.add(row.table_uri, row.job_id)
        self._read(row)
        self._call(row, 1, _names(row))

    def remove(self, row: JobRow) -> None:
        self._read_no_more(row)
        self._call(row, -1, _names(row))
        if self._targets is not None:
            self._targets.remove(target_of(row.spec_json), row.job_id)
        if self._sources is not None:
            self._sources.remove(row.table_uri, row.job_id)

    def follow(self, before: JobRow, row: JobRow) -> None:
        """Index a job that has gone on to a table of another id, at the same place."""
        self._call(before, -1, _followed(before))
        self._call(row, 1, _followed(row))

    def _call(self, row: JobRow, by: int, names: Iterable[str]) -> None:
        if self._called is None:
            return
        for name in names:
            jobs = self._called.setdefault(name, {})
            jobs[row.key.table_id] = jobs.get(row.key.table_id, 0) + by
            if not jobs[row.key.table_id]:
                del jobs[row.key.table_id]
            if not jobs:
                del self._called[name]


def _names(row: JobRow) -> set[str]:
    """Return the table's names other than the id of its key."""
    return {row.table_uri, row.table_name, *_followed(row)}


def _followed(row: JobRow) -> tuple[str, ...]:
    return () if (followed := row.source_id) == row.key.table_id else (followed,)


# --- rows that go into the book, and what has moved by them -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BookChange:
    """A `BookChange` is what has changed: `rows` as they are now (`drop_at_s` is set where a job was dropped).

    `shards` are those whose set of jobs, or what is wanted of one of them, was decided again; if only progress was
    reported, they are empty. `woken` has the shards of jobs that read a table which one of `rows` has committed to.
    """

    rows: tuple[JobRow, ...] = ()
    shards: tuple[ShardId, ...] = ()
    woken: tuple[ShardId, ...] = ()

    @property
    def decided_shards(self) -> dict[ShardId, bool]:
        """Return the shards of jobs that have changed, and whether they were decided again."""
        return {row.key.shard: False for row in self.rows} | dict.fromkeys(self.shards, True)


def by_shard(rows: Iterable[JobRow]) -> dict[ShardId, tuple[JobRow, ...]]:
    """Return the rows that each shard has to run; dropped ones among `rows` are left out."""
    first: dict[ShardId, tuple[JobRow, ...]] = {}
    more: dict[ShardId, list[JobRow]] = {}  # most tables have one job
    for row in rows:
        if row.drop_at_s is None:
            shard = row.key.shard
            if shard in first:
                more.setdefault(shard, []).append(row)
            else:
                first[shard] = (row,)
    return first | {shard: (*first[shard], *others) for shard, others in more.items()}


# --- requests that were answered --------------------------------------------------------------------------------------

REQUESTS_MAX = 250_000
"""Request ids whose answers are remembered; the oldest are forgotten, and count as new when they are repeated."""

RequestKey = tuple[str, str]
"""The account of the job that a request is about, and the request's id: clients of one account do not know those of
another, and both may call a request `nightly-2026-11-27`."""


class AnsweredRequests:
    """Requests that were answered, oldest first, with the job_ids that they were about.

    A request which is repeated gets the answer that it has missed.
    """

    def __init__(self, known: Mapping[RequestKey, str]) -> None:
        self._job_ids = dict(known)

    def get(self, request: RequestKey) -> str | None:
        return self._job_ids.get(request)

    def add(self, answered: Mapping[RequestKey, str]) -> None:
        self._job_ids |= answered
        for request in list(islice(self._job_ids, max(0, len(self._job_ids) - REQUESTS_MAX))):
            del self._job_ids[request]

    def forget(self, job_ids: Collection[str]) -> None:
        """Forget the requests about registrations that nobody remembers any more."""
        self._job_ids = {request: job_id for request, job_id in self._job_ids.items() if job_id not in job_ids}


# --- counts of jobs ---------------------------------------------------------------------------------------------------

_COUNTED = attrgetter("key.account", "state", "reason")


class JobCounts:
    """Counts of the jobs of each account, and of all, by state and reason.

    A question costs nothing but its answer, whatever the number of jobs.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, JobState, Reason]] = Counter()

    def add(self, row: JobRow, by: int = 1) -> None:
        self._counts[row.key.account, row.state, row.reason] += by
        self._counts["", row.state, row.reason] += by

    def add_all(self, rows: Iterable[JobRow]) -> None:
        for (account, state, reason), jobs in Counter(map(_COUNTED, rows)).items():
            for counted in (account, ""):
                self._counts[counted, state, reason] += jobs

    def count(self, account: str, state: JobState | None, reason: Reason | None) -> int:
        """Return how many jobs an account has (empty: all accounts), in a state and for a reason (None: in any)."""
        states = (state,) if state is not None else tuple(JobState)
        reasons = (reason,) if reason is not None else tuple(Reason)
        return sum(self._counts[account, each, why] for each in states for why in reasons)


# --- ranges of tables -------------------------------------------------------------------------------------------------


class SplitTables:
    """The ranges that the tables of the book's jobs are split into.

    A range of a table counts as often as jobs have a row for it; costs nothing of tables that are not split.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Counter[int]] = {}

    def ranges(self, table_id: str) -> tuple[int, ...]:
        found = self._rows.get(table_id)
        return tuple(sorted(found)) if found else (WHOLE,)

    def add(self, key: JobKey) -> None:
        if key.range_id != WHOLE:
            self._rows.setdefault(key.table_id, Counter())[key.range_id] += 1

    def remove(self, key: JobKey) -> None:
        if key.range_id == WHOLE:
            return
        rows = self._rows[key.table_id]
        rows[key.range_id] -= 1
        if not rows[key.range_id]:
            del rows[key.range_id]
        if not rows:
            del self._rows[key.table_id]


# --- rows that the job log does not have yet --------------------------------------------------------------------------


class UnloggedRows:
    """The rows that the log does not have yet, by their job_ids, in the order in which they first moved.

    A row in which only a watermark has moved need not be written soon: it is due after `flush`.
    """

    def __init__(self) -> None:
        self._due: dict[str, None] = {}
        self._by_watermark: dict[str, None] = {}

    def add(self, job_id: str, *, due: bool) -> None:
        """Add a row; `due` says that more than its watermark has moved."""
        (self._due if due else self._by_watermark)[job_id] = None

    def remove(self, job_ids: Iterable[str]) -> None:
        """Remove rows that the log has, or whose jobs have gone."""
        for job_id in job_ids:
            self._due.pop(job_id, None)
            self._by_watermark.pop(job_id, None)

    def due(self, limit: int) -> Iterator[str]:
        return islice(self._due, limit)

    def flush(self) -> int:
        """Make all rows due from now on, and return how many there are."""
        self._due |= self._by_watermark
        self._by_watermark.clear()
        return len(self._due)


# --- the book ---------------------------------------------------------------------------------------------------------


class JobBook:
    """The current row of every job by its key, and the dropped registrations until they are collected.

    Decisions (see PendingChanges) take effect here once the log has them. Reports of progress move the book at once,
    for the sink is the truth about them, and their rows follow at the log's pace. The book knows no clock, no threads
    and no storage.

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
