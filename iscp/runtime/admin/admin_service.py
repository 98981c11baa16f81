"""What users ask, answered by the owner (port AdminService): requests are checked, logged, and answered then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from iscp.coordination.jobs.job_requests import Pause, Register, Request, Resume, Resync, Unregister, Update
from iscp.coordination.jobs.reshard import refuse_split
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api_views import CheckedJob, ClusterView, JobView, RegisterResult
from iscp.core.errors import (
    Conflict,
    InvalidRequest,
    IscpError,
    JobFailed,
    JobNotFound,
    PermanentError,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.core.ids import JobKey, ShardId
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobRow
from iscp.core.maintenance_figures import NO_UPKEEP, JobUpkeep, summed
from iscp.core.name_patterns import matcher
from iscp.core.spec import TriggerSpec
from iscp.core.start_rule import run_spec
from iscp.core.verification import VerifyReport, refuse_unverifiable
from iscp.ports.catalog import Catalog
from iscp.ports.consumer import ConsumerKind, PurgeHandler, RefreshHandler
from iscp.ports.system import Clock
from iscp.runtime.admin.job_lookup import JobLookup
from iscp.runtime.admin.pending_requests import answer_of, answers_of
from iscp.runtime.admin.request_validation import RequestValidator
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a waiting caller is still there."""

RESYNC_TRIES_MAX = 3
"""Attempts of a resync whose job changes meanwhile; then it fails with the last attempt's error."""

_REQUESTS: dict[ChangeVerb, type[Unregister] | type[Pause] | type[Resume]] = {
    ChangeVerb.UNREGISTER: Unregister,
    ChangeVerb.PAUSE: Pause,
    ChangeVerb.RESUME: Resume,
}


class OwnerAdmin:
    """All answers come from the owner's book; while there is no owner, as of the end of the last one's term.

    `nodes` reaches whoever runs a shard. `target_fault` looks at a job's target, by its rows: why it does not hold what
    they say. It is asked before a version is said to be applied.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        kinds: Callable[[str], ConsumerKind],
        check_trigger: Callable[[TriggerSpec], None],
        clock: Clock,
        moved: ProgressSignal,
        nodes: NodeClients,
        cluster: Callable[[LogWriter], ClusterView],
        target_fault: Callable[[Sequence[JobRow]], IscpError | None],
    ) -> None:
        self._owner = owner
        self._catalog = catalog
        self._finder = JobLookup(catalog)
        self.intake = RequestValidator(catalog, kinds, check_trigger, clock)
        self._kinds = kinds
        self._clock = clock
        self._moved = moved
        self._nodes = nodes
        self._cluster = cluster
        self._target_fault = target_fault

    # --- changes -----------------------------------------------------------------------------------------------

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        writer = self._owner.current_writer()
        items = []
        for number, request in enumerate(requests):
            try:
                items.append(self.intake.registration(writer, request))
            except InvalidRequest as error:
                if len(requests) > 1:
                    error.field = f"requests[{number}].{error.field}"
                raise
        (future,) = self.intake.submit(writer, [Register(tuple(items))])
        answer: tuple[RegisterResult, ...] = answer_of(future)
        return list(answer)

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        return self.intake.check(self._owner.last_writer(), requests)

    def resync(self, request: ResyncRequest) -> RegisterResult:
        for _ in range(RESYNC_TRIES_MAX - 1):
            try:
                return self._resync_once(request)
            except Conflict:  # the job was decided about while this was checked
                continue
        return self._resync_once(request)

    def _resync_once(self, request: ResyncRequest) -> RegisterResult:
        writer = self._owner.current_writer()
        found = self._resync(writer, request)
        if isinstance(found, RegisterResult):
            return found
        (future,) = self.intake.submit(writer, [found])
        answer: RegisterResult = answer_of(future)
        return answer

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._resolve(writer, change) for change in changes]
        requests = [each for each in found if not isinstance(each, (bool, PermanentError))]
        answers = iter(answers_of(self.intake.submit(writer, requests)))
        return [each if isinstance(each, (bool, PermanentError)) else next(answers) for each in found]

    def _resolve(self, writer: LogWriter, change: JobChange) -> ChangeOutcome | Request:
        """What to ask the writer, or the outcome where it need not be asked."""
        try:
            if change.verb is ChangeVerb.RESYNC:
                found = self._resync(writer, ResyncRequest(change.job, request_id=change.request_id))
                return True if isinstance(found, RegisterResult) else found
            key = self._finder.row(writer, change.job).key
        except (JobNotFound, TableNotFound) as error:
            if change.verb is ChangeVerb.UNREGISTER:
                return self._finder.of_request(writer, change.job, change.request_id) is not None
            return error
        except PermanentError as error:
            return error
        return _REQUESTS[change.verb](key, change.request_id)

    def _resync(self, writer: LogWriter, request: ResyncRequest) -> Resync | RegisterResult:
        """What to ask the writer, or the answer that the same request was given before."""
        first = self._finder.of_request(writer, request.job, request.request_id)
        if first is not None:
            return RegisterResult(created=True, job_id=first.job_id, table_id=first.key.table_id)
        return self.intake.resync(self._finder.row(writer, request.job), request)

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._update(writer, request) for request in requests]
        asked = [each for each in found if isinstance(each, Update)]
        answers = iter(answers_of(writer.submit_all(asked)))
        outcomes = [next(answers) if isinstance(each, Update) else each for each in found]
        for request, update, outcome in zip(requests, found, outcomes, strict=True):
            if request.interrupt and isinstance(update, Update) and isinstance(outcome, bool):
                self._interrupt(writer, update.key)
        return outcomes

    def _update(self, writer: LogWriter, request: UpdateRequest) -> Update | PermanentError:
        try:
            return self.intake.update(self._finder.row(writer, request.job), request)
        except PermanentError as error:
            return error

    def _interrupt(self, writer: LogWriter, key: JobKey) -> None:
        for row in writer.read(lambda book: book.rows_of(key)):
            self._nodes.interrupt(row.key.shard, row.job_id, row.spec_json)

    def notify(self, table: str) -> int:
        writer = self._owner.current_writer()
        tables = self._finder.table_ids(writer, table)
        for shard in _shards(writer, tables):
            self._nodes.notify(shard, True)
        return writer.read(lambda book: len(book.select(tables=tables)))

    # --- questions ---------------------------------------------------------------------------------------------

    def list_jobs(self, wanted: JobFilter) -> list[JobView]:
        return self._views(self._select(wanted))

    def count_jobs(self, wanted: JobFilter) -> int:
        if wanted.table_pattern or wanted.name_pattern:
            return len(self._select(replace(wanted, limit=sys.maxsize)))
        writer = self._owner.last_writer()
        tables = self._find_tables(writer, wanted)
        return writer.read(lambda book: book.count(wanted.account, tables, wanted.state, wanted.reason))

    def status(self, job: JobName) -> JobView:
        row = self._finder.row(self._owner.last_writer(), job)
        return replace(self._views([row])[0], upkeep=self._upkeep(row))

    def _upkeep(self, row: JobRow) -> JobUpkeep:
        """As the nodes that run it say, which are asked only where the job's consumer has any."""
        try:
            kind = self._kinds(row.spec.consumer.kind)
        except InvalidRequest:  # the job's own status tells it
            return NO_UPKEEP
        if not isinstance(kind, (RefreshHandler, PurgeHandler)):
            return NO_UPKEEP
        rows = self._owner.last_writer().read(lambda book: book.rows_of(row.key))
        told = [self._nodes.upkeep(each.key.shard, each.job_id) for each in rows]
        refreshes, purges = [each.refresh for each in told], [each.purge for each in told]
        return JobUpkeep(summed(list(filter(None, refreshes))), summed(list(filter(None, purges))))

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        writer = self._owner.last_writer()
        return writer.history(self._finder.row(writer, job).job_id, limit)

    def wait(self, job: JobName, version: int | None, timeout_s: float, alive: Callable[[], bool]) -> JobView:
        until_s = self._clock.monotonic_s() + timeout_s
        row = self._finder.row(self._owner.last_writer(), job)
        wanted = self._catalog.newest_version(row.table_uri) if version is None else version
        self._notify(row, False)
        fault: IscpError | None = None
        while True:
            seen = self._moved.count()
            current = self._owner.last_writer().job(row.key)
            if current is not None and current.job_id == row.job_id and current.watermark.version >= wanted:
                before, fault = fault, self._target_fault(self._owner.last_writer().rows(row.key))
                if fault is None:
                    return self._views([current])[0]
                if before is None:
                    self._notify(row, True)
            _refuse_hopeless(row, current, fault)
            if self._moved.closed or not alive():
                raise Unavailable("the wait was given up: the node stops, or the caller is gone")
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                at = f"the job is at {current.watermark.version if current else -1}"
                why = str(fault) if fault else at
                raise TimedOut(f"version {wanted} was not applied within {timeout_s:.3g} s; {why}")
            self._moved.wait(seen, min(left_s, ALIVE_LOOK_S))

    def _notify(self, row: JobRow, targets: bool) -> None:
        for shard in _shards(self._owner.last_writer(), [row.key.table_id]):
            self._nodes.notify(shard, targets)

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        writer = self._owner.current_writer()
        row = self._finder.row(writer, job)
        refuse_unverifiable(row, repair)
        refuse_split(row, writer.read(lambda book: book.ranges(row.key.table_id)))
        still = lambda: alive() and not self._moved.closed  # noqa: E731
        return self._nodes.verify(row.key.shard, row.job_id, repair, timeout_s, still)

    def cluster(self) -> ClusterView:
        return self._cluster(self._owner.last_writer())

    def _select(self, wanted: JobFilter) -> list[JobRow]:
        writer = self._owner.last_writer()
        tables = self._find_tables(writer, wanted)
        patterns = wanted.table_pattern or wanted.name_pattern
        limit = None if patterns else wanted.limit
        rows = writer.read(lambda book: book.select(wanted.account, tables, wanted.state, wanted.reason, limit))
        if not patterns:
            return rows
        # Not under the book's lock: it takes a while for many jobs.
        return list(islice(filter(matcher(wanted.table_pattern, wanted.name_pattern), rows), wanted.limit))

    def _find_tables(self, writer: LogWriter, wanted: JobFilter) -> tuple[str, ...]:
        return self._finder.table_ids(writer, wanted.table) if wanted.table else ()

    # --- views -------------------------------------------------------------------------------------------------

    def _views(self, rows: Sequence[JobRow]) -> list[JobView]:
        writer = self._owner.last_writer()
        tables = {row.key.table_id for row in rows}
        shards = writer.read(lambda book: {each: book.ranges(each) for each in tables})

        def look(loop: OwnerLoop) -> dict[str, tuple[str, SourceSeen | None]]:
            return {each: _looked_at(loop, [ShardId(each, n) for n in shards[each]]) for each in tables}

        known = self._owner.ask(look)
        return [self._view(row, len(shards[row.key.table_id]), *known[row.key.table_id]) for row in rows]

    def _view(self, row: JobRow, ranges: int, node_id: str, seen: SourceSeen | None) -> JobView:
        source_version = max(seen.source_version if seen else -1, row.watermark.version)
        lag_s = self._lag_s(row, seen, held=bool(node_id))
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
            source_version=source_version,
            checked_at_s=seen.checked_at_s if seen else 0.0,
            lag_s=lag_s,
            seq=row.seq,
            status=row.status,
            create_at_s=row.create_at_s,
            node_id=node_id,
            late=self._late(row, lag_s),
            ranges=ranges,
        )

    def _late(self, row: JobRow, lag_s: float) -> bool:
        try:
            spec = run_spec(row.spec_json)
        except InvalidRequest:  # damaged in the job log: its iterations say so, and its place in a list is not theirs
            return False
        if spec is None or spec.target_lag_s is None:
            return False
        return (lag_s if row.watermark.version >= 0 else self._clock.now_s() - row.create_at_s) > spec.target_lag_s

    def _lag_s(self, row: JobRow, seen: SourceSeen | None, held: bool) -> float:
        """How stale the job is; a job that is up to date with what was last seen is so as of that look.

        A target in doubt is stale since the doubt. While no node holds the table, nobody looks: then the time since the
        last look counts as lag.
        """
        if seen is None:
            return -1.0
        if doubted_at_s := row.status.doubted_at_s:
            return max(0.001, self._clock.now_s() - doubted_at_s)
        if row.watermark.version >= seen.source_version:
            return 0.0 if held else max(0.0, self._clock.now_s() - seen.checked_at_s)
        # The table's own figure is of its slowest job; no job is staler than that, or than its own watermark.
        table_s = seen.lag_s + (self._clock.now_s() - seen.checked_at_s)
        own_s = self._clock.now_s() - row.watermark.at_s if row.watermark.version >= 0 else table_s
        # A paused job does not count among those of the table: only its own watermark tells how far it has fallen back.
        return max(0.0, own_s if row.paused else min(table_s, own_s))


def _shards(writer: LogWriter, tables: Iterable[str]) -> list[ShardId]:
    return writer.read(lambda book: [ShardId(each, number) for each in tables for number in book.ranges(each)])


def _looked_at(loop: OwnerLoop, shards: Sequence[ShardId]) -> tuple[str, SourceSeen | None]:
    """Who runs a table (of several ranges: all of them; nobody, if one is not held), and what it was seen to be.

    Of several looks it is the one that tells of the greatest lag.
    """
    held = [loop.machine.assignments.get(shard) for shard in shards]
    nodes = [each.holder.node_id if each and each.holder else "" for each in held]
    looks = [seen for shard in shards if (seen := loop.seen.get(shard)) is not None]
    seen = max(looks, key=lambda each: (each.lag_s, -each.checked_at_s), default=None)
    return ",".join(sorted(set(nodes))) if all(nodes) else "", seen if len(looks) == len(shards) else None


def _refuse_hopeless(asked: JobRow, current: JobRow | None, fault: IscpError | None) -> None:
    """Raise JobFailed where waiting cannot help; `fault`: what was found at the target."""
    why, remedy = "", ""
    if current is None or current.job_id != asked.job_id:
        why = "was dropped, or made anew"
    elif current.paused:
        why, remedy = "is paused", "Resume it with `iscp-admin job resume`"
    elif current.failed_for_good:
        why, remedy = f"has failed: {current.status.error_msg}", "Mend it, then `iscp-admin job resume`"
    if why:
        seen = f", and {fault.message}" if fault else ""
        raise JobFailed(f"the job {asked.key.job_name!r} {why}{seen}", remedy=remedy)
