"""Jobs as users see them, and what users need beside: figures of targets, rows that are left out, the jobs and tables
that users name, and waits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import refuse_split
from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_maker import versions_wanted
from iscp.engine.account_turns import ANYWHERE, AccountTurns, PlaceGuard, TargetReads, TurnBounds, at_work_for
from iscp.model.api.api_requests import JobName, JobView, LeftOutRow, LeftOutRows
from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance, summed
from iscp.model.job.job_row import JobRow, JobState, further_tables
from iscp.model.job.start_rule import VerifyReport, refuse_unverifiable, run_spec
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import (
    InvalidRequest,
    IscpError,
    JobFailed,
    JobNotFound,
    TableNotFound,
    TimedOut,
    Unavailable,
    no_jobs_on,
)
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.progress import RunProgress, combined_progress
from iscp.model.values.untrusted_values import json_value
from iscp.ports.admin import still_wanted
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.source import Catalog
from iscp.ports.system import Clock
from iscp.schedule.lag import lag_of

# --- figures of targets -----------------------------------------------------------------------------------------------
# The figures are read within a time, and never fail an answer.

FIGURES_READ_S = 2.0
"""Seconds that reading the figures of a target may take; they are left out of an answer that would take longer."""


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """The figures by their names, or why there are none in `fault`."""

    values: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


NO_FIGURES = TargetFigures()


class FigureReader:
    """Reads figures, of READERS_MAX targets at a time; while so many hang, they are left out of answers."""

    def __init__(
        self, kinds: Callable[[str], ConsumerKind], places: PlaceGuard = ANYWHERE, read_s: float = FIGURES_READ_S
    ) -> None:
        self._kinds = kinds
        self._reads = TargetReads(places, read_s, "iscp-figures", "read of the figures")

    def read(self, row: JobRow) -> TargetFigures:
        """Return the figures of a job's target; none where its kind has no such thing. Raises nothing."""
        try:
            figures = self._kinds(row.spec.consumer.kind).figures
        except InvalidRequest:  # the job's own status says it
            return NO_FIGURES
        if figures is None:
            return NO_FIGURES
        try:
            return TargetFigures(self._reads.run(row, lambda: _numbers(figures(row))))
        except IscpError as error:
            return TargetFigures(fault=error.message)


def _numbers(figures: Mapping[str, float]) -> Mapping[str, float]:
    return {str(name): _number(value) for name, value in figures.items()}


def _number(value: float) -> float:
    """Return a figure as the wire and JSON have it. Raises ValueError for what is no finite number."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a figure is {number}")
    return number


# --- views of jobs ----------------------------------------------------------------------------------------------------


class JobViews:
    """The views of jobs: the owner's rows, with what its loop knows of their sources.

    Between terms they are as of the end of the last one. `figures` reads those of a job's target, and `retained_s` says
    for how long its sources retain what was removed.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        nodes: NodeClients,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        figures: Callable[[JobRow], TargetFigures] = lambda row: NO_FIGURES,
        retained_s: Callable[[JobRow], float] = lambda row: 0.0,
    ) -> None:
        self._owner = owner
        self._nodes = nodes
        self._kinds = kinds
        self._clock = clock
        self._figures = figures
        self._retained_s = retained_s

    def in_full(self, row: JobRow) -> JobView:
        """Return the job's view with what only the nodes that run it know, and with the figures of its target."""
        figures = self._figures(row)
        return replace(
            self.of([row])[0],
            upkeep=self._maintenance(row),
            progress=self._progress(row),
            figures=figures.values,
            figures_fault=figures.fault,
        )

    def of(self, rows: Sequence[JobRow]) -> list[JobView]:
        """Return the views of jobs as the last reports have them: no later view shows less than an earlier one."""
        writer = self._owner.current_writer()
        rows = [writer.job(row.key) or row for row in rows]
        tables = {row.key.table_id for row in rows}
        shards = writer.read(lambda book: {each: book.ranges(each) for each in tables})

        def read(loop: OwnerLoop) -> dict[str, tuple[str, SourceSeen | None]]:
            return {each: _probed(loop, [ShardId(each, n) for n in shards[each]]) for each in tables}

        known = self._owner.query(read)
        return [self._view(row, len(shards[row.key.table_id]), *known[row.key.table_id]) for row in rows]

    def _view(self, row: JobRow, ranges: int, node_id: str, seen: SourceSeen | None) -> JobView:
        view = view_of(row, seen, node_id, self._clock.now_s())
        return replace(view, ranges=ranges, retained_s=self._retained_s(row))

    def _progress(self, row: JobRow) -> RunProgress | None:
        """Queried of nodes only where an iteration was reported to run, which takes a while, or a comparison."""
        rows = self._owner.current_writer().read(lambda book: book.rows_of(row.key))
        running = [each for each in rows if each.state is JobState.RUNNING or self._nodes.verifying(each.job_id)]
        found = self._nodes.of_each(lambda each: self._nodes.progress(each.key.shard, each.job_id), running)
        return combined_progress(list(filter(None, found)))

    def _maintenance(self, row: JobRow) -> JobMaintenance:
        """Return what the nodes that run it report; they are queried only if the job's consumer has any maintenance."""
        try:
            kind = self._kinds(row.spec.consumer.kind)
        except InvalidRequest:  # the job's own status says it
            return NO_MAINTENANCE
        if kind.refresh is None and kind.purge is None:
            return NO_MAINTENANCE
        rows = self._owner.current_writer().read(lambda book: book.rows_of(row.key))
        reported = self._nodes.of_each(lambda each: self._nodes.maintenance(each.key.shard, each.job_id), rows)
        refreshes, purges = [each.refresh for each in reported], [each.purge for each in reported]
        return JobMaintenance(summed(list(filter(None, refreshes))), summed(list(filter(None, purges))))


def view_of(row: JobRow, seen: SourceSeen | None, node_id: str, now_s: float) -> JobView:
    """Return the view of a job whose table `node_id` runs (empty: no node), and was `seen` to be so."""
    lag = lag_of(row, seen, now_s)
    return JobView(
        account=row.key.account,
        table_id=row.key.table_id,
        table=row.table_name,
        name=row.key.job_name,
        job_id=row.job_id,
        spec_json=row.spec_json,
        state=row.state,
        reason=row.reason,
        applied_version=row.watermark.version,
        applied_at_s=row.watermark.at_s,
        source_version=max(seen.source_version if seen else -1, row.watermark.version),
        checked_at_s=seen.checked_at_s if seen else 0.0,
        lag_s=lag.most_s,
        lag_least_s=lag.least_s,
        seq=row.seq,
        status=row.status,
        create_at_s=row.create_at_s,
        node_id=node_id,
        late=is_late(row, lag.most_s),
    )


def is_late(row: JobRow, lag_s: float) -> bool:
    """Return whether a job that lags by `lag_s` at most may lag by more than its target lag."""
    try:
        spec = run_spec(row.spec_json)
    except InvalidRequest:  # damaged in the job log: its iterations say so, and its place in a list is not theirs
        return False
    return spec is not None and spec.target_lag_s is not None and lag_s > spec.target_lag_s


def _probed(loop: OwnerLoop, shards: Sequence[ShardId]) -> tuple[str, SourceSeen | None]:
    """Return who runs a table (all nodes of several ranges; nobody, if one has no node), and what the table was seen to
    be.

    If there are several probes, the one that leaves most open counts.
    """
    assignments = [loop.machine.assignments.get(shard) for shard in shards]
    nodes = [each.holder.node_id if each and each.holder else "" for each in assignments]
    probes = [seen for shard in shards if (seen := loop.sources.dated(shard)) is not None]
    seen = max(probes, key=lambda at: (at.lag_s > 0 or at.unreached, at.lag_s - at.checked_at_s), default=None)
    return ",".join(sorted(set(nodes))) if all(nodes) else "", seen if len(probes) == len(shards) else None


# --- rows that a job leaves out ---------------------------------------------------------------------------------------
# The rows that are shown are few, cut to a length, and read within a time.

DEAD_LETTERS_READ_S = 10.0
"""Seconds that reading these rows may take; then the call fails, and can be repeated."""

COLUMNS_MAX = 100
"""Columns of a row that are shown; further ones are left out."""

VALUE_CHARS_MAX = 1_000
"""Characters of a value, or of a reason, that are shown; the rest is cut off."""

ANSWER_CHARS_MAX = 1_000_000
"""Characters of all rows of an answer together; those that would be beyond are left out."""

_CUT = "…"


class DeadLetterReader:
    """Reads the rows of any job. Safe for threads."""

    def __init__(
        self,
        kinds: Callable[[str], ConsumerKind],
        places: PlaceGuard = ANYWHERE,
        read_s: float = DEAD_LETTERS_READ_S,
        deaths: JobDeaths = NO_DEATHS,
    ) -> None:
        self._kinds = kinds
        self._deaths = deaths
        self._reads = TargetReads(places, read_s, "iscp-dead-letters", "read of the rows left out")

    def read(self, row: JobRow, limit: int) -> LeftOutRows:
        """Return up to `limit` rows; none of a kind of consumer that leaves out none.

        Raises InvalidRequest for a kind that is not here, and for a target outside of the account's roots; QueueFull,
        TimedOut, StorageError, PermanentError, and NodeKilled where this node's process died of the job too often.
        """
        dead_letters = self._kinds(row.spec.consumer.kind).dead_letters
        if dead_letters is None:
            return LeftOutRows()

        def read() -> LeftOutRows:
            with at_work_for(row, self._deaths):
                return _shortened(dead_letters(row, limit), limit)

        return self._reads.run(row, read)


def _shortened(found: LeftOutRows, limit: int) -> LeftOutRows:
    return replace(found, rows=tuple(_fitting(map(_short_row, found.rows[:limit]))))


def _fitting(rows: Iterable[LeftOutRow]) -> Iterator[LeftOutRow]:
    left = ANSWER_CHARS_MAX
    for row in rows:
        left -= len(json.dumps(row.columns)) + len(row.reason)
        if left < 0:
            return
        yield row


def _short_row(row: LeftOutRow) -> LeftOutRow:
    columns = list(row.columns.items())[:COLUMNS_MAX]
    return LeftOutRow({_short_text(str(name)): _short(value) for name, value in columns}, _short_text(row.reason))


def _short(value: Any) -> Any:
    """Return the value as JSON has it: a text or whatever has parts is cut to VALUE_CHARS_MAX, the latter as a text."""
    if isinstance(value, (str, bytes)):
        value = value[: VALUE_CHARS_MAX + 1]
    found = json_value(value)
    if isinstance(found, (dict, list)) and len(text := json.dumps(found, ensure_ascii=False)) > VALUE_CHARS_MAX:
        return _short_text(text)
    return _short_text(found) if isinstance(found, str) else found


def _short_text(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + _CUT


# --- jobs and tables that users name ----------------------------------------------------------------------------------

LOOKUPS = TurnBounds(node_max=64, account_max=16, timeout_s=30.0, waits=False)
"""Bounds of the lookups of tables by their places, whose links are followed."""


@dataclass(frozen=True, slots=True)
class TouchedTables:
    """Ids of tables that a change of one concerns: `on` as `table_ids` has it, `reading` those of jobs that read
    it besides their own. `jobs`: how many jobs these are, together.
    """

    on: tuple[str, ...]
    reading: tuple[str, ...]
    jobs: int


class JobLookup:
    """Finds the jobs and tables that users name, in the owner's book."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._turns = AccountTurns(LOOKUPS, "iscp-lookup", "lookup of the table", "Name the table as its jobs do")

    def table_ids(self, writer: LogWriter, table: str, account: str = "") -> tuple[str, ...]:
        """Return a table that has jobs, by id, name, or path; several, the newest first, where it was dropped and
        recreated.

        Raises TableNotFound where it has no jobs, be it that others than this account have some (empty: any account).
        """

        def find(book: JobBook, name: str) -> tuple[str, ...]:
            found = (*([name] if book.has_jobs_on(name) else ()), *book.tables_called(name))
            return tuple(each for each in found if not account or _is_used(book, each, account))

        found = writer.read(lambda book: find(book, table))
        if not found:
            path = self._normalized(table, account)
            found = writer.read(lambda book: find(book, path))
        if not found:
            raise no_jobs_on(table)
        return found

    def _normalized(self, table: str, account: str) -> str:
        """Return a table's place, whose links are followed: that may hang."""
        return self._turns.run(account, lambda: self._catalog.normalize(table), still_wanted)

    def of_account(self, writer: LogWriter, account: str) -> dict[str, str]:
        """Return the tables that have jobs of the account: by id, the name under which its first job registered it."""

        def find(book: JobBook) -> dict[str, str]:
            rows = (row for each in book.tables() for row in reversed(book.jobs_on(each)))
            return {row.key.table_id: row.table_name for row in rows if row.key.account == account}

        return writer.read(find)

    def touched_by(self, writer: LogWriter, table: str, account: str = "") -> TouchedTables:
        """Return the tables that jobs of the account (empty: any) touch. Raises TableNotFound if none of them reads
        it.
        """
        try:
            on = self.table_ids(writer, table, account)
        except TableNotFound:
            path = self._normalized(table, account)
            reading = writer.read(lambda book: _reading(book, [path], account))
            if not reading:
                raise
            return TouchedTables((), tuple(dict.fromkeys(reading.values())), len(reading))

        def find(book: JobBook) -> TouchedTables:
            uris = {row.table_uri for each in on for row in book.jobs_on(each)}
            reading = _reading(book, uris, account)
            others = tuple(each for each in dict.fromkeys(reading.values()) if each not in on)
            return TouchedTables(on, others, len(book.select(account, on)) + len(reading))

        return writer.read(find)

    def row(self, writer: LogWriter, job: JobName) -> JobRow:
        """Raises JobNotFound, TableNotFound."""
        for table_id in self.table_ids(writer, job.table, job.account):
            key = JobKey(job.account, table_id, job.name)
            row: JobRow | None = writer.read(lambda book, key=key: book.job(key))  # type: ignore[misc]
            if row is not None:
                return row
        raise JobNotFound(
            f"there is no job {job.name!r} on {job.table}", about="job", remedy="See `iscp-admin job list`"
        )

    def of_request(self, writer: LogWriter, job: JobName, request_id: str) -> JobRow | None:
        """Return the registration, dropped or not, that an earlier request of this id made or ended: its answer was
        lost.
        """

        row = writer.read(lambda book: book.request(job.account, request_id)) if request_id else None
        return row if row is not None and row.key.job_name == job.name else None


def _is_used(book: JobBook, table_id: str, account: str) -> bool:
    return any(row.key.account == account for row in book.jobs_on(table_id))


def _reading(book: JobBook, uris: Iterable[str], account: str) -> dict[str, str]:
    """Return the ids of jobs of the account (empty: any) that read one of these besides their own, with that of their
    own.
    """
    found = {job_id: each for uri in uris for job_id, each in book.jobs_reading(uri).items()}
    if not account:
        return found
    rows = {job_id: book.by_id(job_id) for job_id in found}
    return {job_id: each for job_id, each in found.items() if (row := rows[job_id]) and row.key.account == account}


# --- waits ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a waiting caller is still there."""

READS = TurnBounds(node_max=64, account_max=16, timeout_s=30.0)
"""Bounds of what waits read of tables and targets; a wait itself holds no turn."""


class JobWaiter:
    """Waits, for users, until a job has applied versions, or until its target has been compared.

    `target_fault` probes a job's target, by its rows, and returns why it does not hold what they say. The probe comes
    before a version is reported as applied.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        nodes: NodeClients,
        catalog: Catalog,
        views: JobViews,
        clock: Clock,
        progress: ProgressSignal,
        target_fault: Callable[[Sequence[JobRow]], IscpError | None],
    ) -> None:
        self._owner = owner
        self._nodes = nodes
        self._catalog = catalog
        self._views = views
        self._clock = clock
        self._progress = progress
        self._target_fault = target_fault
        self._turns = AccountTurns(READS, "iscp-wait-read", "read for the wait", "Retry", clock.monotonic_s)

    def wait(
        self,
        row: JobRow,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        """Wait until the job has applied the newest version of each table that it reads, or `version` of its own, or
        those in `versions`, by name or URI. Raises InvalidRequest, JobFailed, TimedOut, Unavailable.
        """
        until_s = self._clock.monotonic_s() + timeout_s
        named = versions_wanted(row, version, versions or {})
        further = {uri: named.get(uri, -1) for uri in (row.table_uri, *further_tables(row))}
        further = self._of_storage(row, lambda: self._newest(further), alive)
        wanted = further.pop(row.table_uri)
        self._notify(row, False)
        fault: IscpError | None = None
        while True:
            # Before the job is read: whatever moves after that ends the wait below.
            seen = self._progress.count()
            current = self._owner.current_writer().job(row.key)
            reached = current is not None and current.job_id == row.job_id and current.watermark.version >= wanted
            if current is not None and reached and not _behind(current, further):
                rows, before = self._owner.current_writer().rows(row.key), fault
                fault = self._of_storage(row, partial(self._target_fault, rows), alive)
                if fault is None:
                    return self._views.of([current])[0]
                if before is None:
                    self._notify(row, True)
            _refuse_hopeless(row, current, fault)
            if self._progress.closed or not alive():
                raise Unavailable("the wait was given up: the node stops, or the caller is gone")
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                why = str(fault) if fault else _where_it_is(self._views.of([current])[0] if current else None)
                which = "".join(f", version {each} of {uri}" for uri, each in further.items())
                raise TimedOut(
                    f"version {wanted}{which} was not applied within {timeout_s:.3g} s; {why}",
                    remedy="See `iscp-admin job status`, and the node's log",
                )
            self._progress.wait(seen, min(left_s, ALIVE_LOOK_S))

    def _of_storage(self, row: JobRow, read: Callable[[], T], alive: Callable[[], bool]) -> T:
        """Return what `read` returns of the storage of the job's account, which may hang."""
        return self._turns.run(row.key.account, read, alive)

    def _newest(self, versions: Mapping[str, int]) -> dict[str, int]:
        return {uri: self._catalog.newest_version(uri) if each < 0 else each for uri, each in versions.items()}

    def verify(self, row: JobRow, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        writer = self._owner.current_writer()
        refuse_unverifiable(row, repair)
        refuse_split(row, writer.read(lambda book: book.ranges(row.key.table_id)))
        still = lambda: alive() and not self._progress.closed  # noqa: E731
        return self._nodes.verify(row.key.shard, row.job_id, repair, timeout_s, still)

    def _notify(self, row: JobRow, targets: bool) -> None:
        for shard in shards_of(self._owner.current_writer(), [row.key.table_id]):
            self._nodes.notify(shard, targets)


def _behind(row: JobRow, further: Mapping[str, int]) -> bool:
    """Return whether one of these tables was not read up to the version that is wanted."""
    marks = row.sources if further else {}
    return any(uri not in marks or marks[uri].watermark.version < version for uri, version in further.items())


def shards_of(writer: LogWriter, tables: Iterable[str]) -> list[ShardId]:
    """Return the shards of all ranges of these tables."""
    return writer.read(lambda book: [ShardId(each, number) for each in tables for number in book.ranges(each)])


def _where_it_is(job: JobView | None) -> str:
    if job is None:
        return "the job was dropped"
    at = "has applied nothing yet" if job.applied_version < 0 else f"is at version {job.applied_version}"
    place = f"on {job.node_id}" if job.node_id else "on no node"
    status = job.status
    error = f"; its last error: {status.error_code} {status.error_msg}" if status.error_code else ""
    return f"the job {at}, {job.condition} {place}{error}"


def _refuse_hopeless(wanted: JobRow, current: JobRow | None, fault: IscpError | None) -> None:
    """Raise JobFailed where waiting cannot help; `fault`: what was found at the target."""
    why, remedy = "", ""
    if current is None or current.job_id != wanted.job_id:
        why, remedy = "was dropped, or replaced by a resync", "See `iscp-admin job list`"
    elif current.paused:
        why, remedy = "is paused", "Resume it with `iscp-admin job resume`"
    elif current.failed_for_good:
        why, remedy = f"has failed: {current.status.error_msg}", "Repair it, then `iscp-admin job resume`"
    if why:
        seen = f", and {fault.message}" if fault else ""
        raise JobFailed(f"the job {wanted.key.job_name!r} {why}{seen}", about="job", remedy=remedy)
