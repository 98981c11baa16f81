"""Requests of users, answered by the owner (port AdminService): requests are checked, logged, and answered then.

The owner also answers here what the whole cluster does, which jobs lag most, and what the nodes have logged.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Request, Resume, Resync, Unregister, Update
from iscp.cluster.membership.assignments import Holder
from iscp.cluster.membership.term import Peer, PeerPhase, Term
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.read_services import SourceReleases
from iscp.cluster.requests.job_views import JobLookup, JobViews, JobWaiter, shards_of
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    CheckedJob,
    ClusterView,
    ExplainRequest,
    JobChange,
    JobFilter,
    JobName,
    JobOfLines,
    JobView,
    LeftOutJob,
    LeftOutRows,
    LogPage,
    LogPlace,
    LogQuery,
    NodeView,
    RegisterRequest,
    RegisterResult,
    ResyncRequest,
    ShardView,
    UpdateRequest,
)
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import matcher
from iscp.model.job.start_rule import VerifyReport
from iscp.model.protocol.messages import SourceSeen
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import (
    InvalidRequest,
    IscpError,
    JobNotFound,
    OutcomeUnknown,
    PermanentError,
    TableNotFound,
    no_etcd,
    no_owner,
)
from iscp.model.values.ids import JobKey, NodeRecord, ShardId
from iscp.ports.cluster import Membership
from iscp.ports.source import Catalog
from iscp.ports.system import Clock
from iscp.schedule.lag import counts, lag_of
from iscp.system.threads import retry_conflicts

# --- answers of the job log's writer ----------------------------------------------------------------------------------
# The answers are awaited within bounds.

T = TypeVar("T")

COMMIT_WAIT_S = 30.0
"""Seconds that a caller waits for the log's answer; then the call fails with OUTCOME_UNKNOWN, and is to be repeated
with the same request id.
"""


def _no_answer() -> OutcomeUnknown:
    return OutcomeUnknown("the job log does not answer", remedy="Retry with the same request_id")


def answer_of(future: Future[T]) -> T:
    try:
        return future.result(COMMIT_WAIT_S)
    except TimeoutError as error:
        raise _no_answer() from error


def answers_of(futures: Sequence[Future[Any]]) -> list[ChangeOutcome]:
    """Return an answer for each change, within COMMIT_WAIT_S in all. Raises OutcomeUnknown if some were made, others
    not.
    """
    wait(futures, COMMIT_WAIT_S)
    outcomes: list[ChangeOutcome] = []
    failed: list[BaseException] = []
    for future in futures:
        error = future.exception() if future.done() else _no_answer()
        if error is None:
            outcomes.append(bool(future.result()))
        elif isinstance(error, PermanentError):
            outcomes.append(error)
        else:
            failed.append(error)
    if outcomes and failed:
        text = f"{len(failed)} of {len(futures)} changes failed: {failed[0]}"
        raise OutcomeUnknown(text, remedy="Retry with the same request ids") from failed[0]
    if failed:
        raise failed[0]
    return outcomes


# --- requests of users ------------------------------------------------------------------------------------------------

RESYNC_TRIES_MAX = 3
"""Attempts of a resync whose job changes meanwhile; then it fails with the last attempt's error."""

_REQUESTS: dict[ChangeVerb, type[Unregister] | type[Pause] | type[Resume]] = {
    ChangeVerb.UNREGISTER: Unregister,
    ChangeVerb.PAUSE: Pause,
    ChangeVerb.RESUME: Resume,
}


class OwnerAdmin:
    """All answers come from the owner's book; while there is no owner, as of the end of the last one's term.

    `nodes` reaches whoever runs a shard.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        validator: RequestValidator,
        views: JobViews,
        waiter: JobWaiter,
        nodes: NodeClients,
        cluster: Callable[[LogWriter], ClusterView],
        sources: SourceReleases,
        dead_letters: Callable[[JobRow, int], LeftOutRows],
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._validator = validator
        self._views = views
        self._waiter = waiter
        self._nodes = nodes
        self._cluster = cluster
        self._sources = sources
        self._dead_letters = dead_letters

    # --- changes -----------------------------------------------------------------------------------------------

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        writer = self._owner.current_writer()
        items = []
        for number, request in enumerate(requests):
            try:
                items.append(self._validator.registration(writer, request))
            except InvalidRequest as error:
                if len(requests) > 1:
                    error.field = f"requests[{number}].{error.field}"
                raise
        (future,) = self._validator.submit(writer, [Register(tuple(items))])
        answer: tuple[RegisterResult, ...] = answer_of(future)
        return list(answer)

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        return self._validator.check(self._owner.current_writer(), requests)

    def resync(self, request: ResyncRequest) -> RegisterResult:
        # A conflict: the job was decided about while this was checked.
        return retry_conflicts(lambda: self._resync_once(request), RESYNC_TRIES_MAX)

    def _resync_once(self, request: ResyncRequest) -> RegisterResult:
        writer = self._owner.current_writer()
        found = self._resync(writer, request)
        if isinstance(found, RegisterResult):
            return found
        (future,) = self._validator.submit(writer, [found])
        answer: RegisterResult = answer_of(future)
        self._sources.release(found.seen, found.item.row)
        return answer

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._resolve(writer, change) for change in changes]
        requests = [each for each in found if not isinstance(each, (bool, PermanentError))]
        before = [self._ended_registration(writer, each) for each in requests]
        answers = answers_of(self._validator.submit(writer, requests))
        for rows, outcome in zip(before, answers, strict=True):
            if rows is not None and not isinstance(outcome, PermanentError):
                self._sources.release(*rows)
        in_turn = iter(answers)
        return [each if isinstance(each, (bool, PermanentError)) else next(in_turn) for each in found]

    def _ended_registration(self, writer: LogWriter, request: Request) -> tuple[JobRow, JobRow | None] | None:
        """Return the registration that a request ends, with the one that goes on instead."""
        match request:
            case Resync(seen, item):
                return seen, item.row
            case Unregister(key):
                row = writer.read(lambda book: book.job(key))
                return (row, None) if row is not None else None
        return None

    def _resolve(self, writer: LogWriter, change: JobChange) -> ChangeOutcome | Request:
        """Return what the writer is to decide, or the outcome if it need not."""
        try:
            if change.verb is ChangeVerb.RESYNC:
                found = self._resync(writer, ResyncRequest(change.job, request_id=change.request_id))
                return True if isinstance(found, RegisterResult) else found
            row = self._lookup.row(writer, change.job)
            if change.verb is ChangeVerb.DELETE_TARGET:
                return self._validator.deletion(row, change.request_id)
        except (JobNotFound, TableNotFound) as error:
            if change.verb in (ChangeVerb.UNREGISTER, ChangeVerb.DELETE_TARGET):
                return self._lookup.of_request(writer, change.job, change.request_id) is not None
            return error
        except PermanentError as error:
            return error
        return _REQUESTS[change.verb](row.key, change.request_id)

    def _resync(self, writer: LogWriter, request: ResyncRequest) -> Resync | RegisterResult:
        """Return what the writer is to decide, or the answer that the same request was given before."""
        first = self._lookup.of_request(writer, request.job, request.request_id)
        if first is not None:
            return RegisterResult(created=True, job_id=first.job_id, table_id=first.key.table_id)
        return self._validator.resync(self._lookup.row(writer, request.job), request)

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._update(writer, request) for request in requests]
        updates = [each for each in found if isinstance(each, Update)]
        answers = iter(answers_of(writer.submit_all(updates)))
        outcomes = [next(answers) if isinstance(each, Update) else each for each in found]
        for request, update, outcome in zip(requests, found, outcomes, strict=True):
            if request.interrupt and isinstance(update, Update) and isinstance(outcome, bool):
                self._interrupt(writer, update.key)
        return outcomes

    def _update(self, writer: LogWriter, request: UpdateRequest) -> Update | PermanentError:
        try:
            return self._validator.update(self._lookup.row(writer, request.job), request)
        except PermanentError as error:
            return error

    def _interrupt(self, writer: LogWriter, key: JobKey) -> None:
        for row in writer.read(lambda book: book.rows_of(key)):
            self._nodes.interrupt(row.key.shard, row.job_id, row.spec_json)

    def notify(self, table: str, account: str = "") -> int:
        writer = self._owner.current_writer()
        touched = self._lookup.touched_by(writer, table, account)
        for shard in shards_of(writer, touched.on):
            self._nodes.notify(shard, True)
        for shard in shards_of(writer, touched.reading):
            self._nodes.notify(shard, False)  # whoever reads it besides its own table; no target was touched
        return touched.jobs

    # --- questions ---------------------------------------------------------------------------------------------

    def list_jobs(self, wanted: JobFilter) -> list[JobView]:
        if not wanted.late:
            return self._views.of(self._select(wanted))
        views = self._views.of(self._select(replace(wanted, limit=sys.maxsize)))
        return [view for view in views if view.late][: wanted.limit]

    def count_jobs(self, wanted: JobFilter) -> int:
        if wanted.late:
            return len(self.list_jobs(replace(wanted, limit=sys.maxsize)))
        if wanted.table_pattern or wanted.name_pattern:
            return len(self._select(replace(wanted, limit=sys.maxsize)))
        writer = self._owner.current_writer()
        tables = self._find_tables(writer, wanted)
        return writer.read(lambda book: book.count(wanted.account, tables, wanted.state, wanted.reason))

    def status(self, job: JobName) -> JobView:
        return self._views.in_full(self._lookup.row(self._owner.current_writer(), job))

    def dead_letters(self, job: JobName, limit: int) -> LeftOutRows:
        return self._dead_letters(self._lookup.row(self._owner.current_writer(), job), limit)

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        writer = self._owner.current_writer()
        return writer.history(self._lookup.row(writer, job).job_id, limit)

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        row = self._lookup.row(self._owner.current_writer(), job)
        return self._waiter.wait(row, version, timeout_s, alive, versions)

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        row = self._lookup.row(self._owner.current_writer(), job)
        return self._waiter.verify(row, repair, timeout_s, alive)

    def explain(self, request: ExplainRequest) -> QueryExplanation:
        spec_json = request.spec_json or self._lookup.row(self._owner.current_writer(), request.job).spec_json
        return self._validator.explain(spec_json, request.job.account)

    def cluster(self) -> ClusterView:
        return self._cluster(self._owner.current_writer())

    def _select(self, wanted: JobFilter) -> list[JobRow]:
        writer = self._owner.current_writer()
        tables = self._find_tables(writer, wanted)
        patterns = wanted.table_pattern or wanted.name_pattern
        limit = None if patterns else wanted.limit
        rows = writer.read(lambda book: book.select(wanted.account, tables, wanted.state, wanted.reason, limit))
        if not patterns:
            return rows
        # Not under the book's lock: it takes a while for many jobs.
        return list(islice(filter(matcher(wanted.table_pattern, wanted.name_pattern), rows), wanted.limit))

    def _find_tables(self, writer: LogWriter, wanted: JobFilter) -> tuple[str, ...]:
        return self._lookup.table_ids(writer, wanted.table, wanted.account) if wanted.table else ()


# --- jobs that lag ----------------------------------------------------------------------------------------------------
# The owner finds the jobs that lag, of which a few among very many are worth a closer view.


def lagging_jobs(owner: OwnerLoop, views: JobViews, clock: Clock) -> Callable[[float], Sequence[JobRow]]:
    """Return what finds the jobs that lag by so many seconds at least, those that lag most first.

    It raises NotOwner and Unavailable.
    """

    def found(least_s: float) -> Sequence[JobRow]:
        rows = owner.current_writer().read(_applied_before(clock.now_s() - least_s))
        lags = {view.job_id: view.lag_s for view in views.of(rows) if view.lag_s >= least_s}
        return sorted((row for row in rows if row.job_id in lags), key=lambda row: lags[row.job_id], reverse=True)

    return found


def _applied_before(at_s: float) -> Callable[[JobBook], list[JobRow]]:
    """Return what reads the jobs that may lag since then: no job lags by more than its watermark is old."""

    def read(book: JobBook) -> list[JobRow]:
        rows = (row for row in book.rows() if row.drop_at_s is None)
        return [row for row in rows if row.watermark.version >= 0 and row.watermark.at_s <= at_s]

    return read


# --- the cluster ------------------------------------------------------------------------------------------------------
# The view of the cluster has the owner's view of nodes and shards, and what the nodes report themselves.

LEFT_OUT_SHOWN_MAX = 100
"""Jobs named that the global checkpoint leaves out; of others only their number."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A `_Seen` is what the owner's loop knows at one moment."""

    owner: str
    owner_rev: int
    records: tuple[NodeRecord, ...]
    nodes: tuple[NodeView, ...]
    shards: tuple[ShardView, ...]
    looks: Mapping[ShardId, SourceSeen]
    checkpoint_at_s: float
    catching_up: frozenset[str]
    moving: int


class ClusterViews:
    """The cluster as the owner sees it in its term."""

    def __init__(self, owner: OwnerLoop, membership: Membership, nodes: NodeClients, clock: Clock) -> None:
        self._owner = owner
        self._membership = membership
        self._nodes = nodes
        self._clock = clock

    def view(self, writer: LogWriter) -> ClusterView:
        """Return the view of the cluster; `writer` has the book with the jobs.

        Raises NotOwner where the term has ended meanwhile, Unavailable where etcd does not answer: then nobody knows
        whether what this node has seen is still so.
        """
        seen = self._owner.query(self._read)
        if not seen.owner:
            raise no_owner(self._owner.log_fault())
        counters, ages_s = self._nodes.counters(seen.records), self._lease_ages_s(seen.records)
        nodes = [_completed(node, counters.get(node.node_id), ages_s.get(node.node_id, -1.0)) for node in seen.nodes]
        rows = [row for row in writer.read(lambda book: book.rows()) if row.drop_at_s is None]
        left_out, left_out_count = _left_out(rows, seen.catching_up)
        now_s = self._clock.now_s()
        lags = [lag_of(row, seen.looks.get(row.key.shard), now_s) for row in rows]
        return ClusterView(
            owner=seen.owner,
            owner_rev=seen.owner_rev,
            nodes=tuple(nodes),
            shards=seen.shards,
            jobs=writer.read(lambda book: book.count()),
            lag_max_s=max((lag.most_s for lag in lags), default=-1.0),
            lag_max_least_s=max((lag.least_s for lag in lags), default=-1.0),
            counters=_summed(counters.values()),
            checkpoint_at_s=seen.checkpoint_at_s,
            left_out=left_out,
            left_out_count=left_out_count,
            moving=seen.moving,
        )

    def _lease_ages_s(self, records: tuple[NodeRecord, ...]) -> dict[str, float]:
        try:
            return self._membership.lease_ages_s(records)
        except IscpError as error:
            raise no_etcd(error) from error

    def _read(self, loop: OwnerLoop) -> _Seen:
        term = loop.machine.term
        shards = []
        for assignment in loop.machine.assignments:
            shard, jobs = assignment.shard, assignment.jobs
            holder = assignment.holder.node_id if assignment.holder else ""
            table = jobs[0].table_name if jobs else ""
            shards.append(ShardView(shard.table_id, table, holder, assignment.state.value, len(jobs), shard.range_id))
        return _Seen(
            owner=loop.machine.node_id if loop.writer is not None else "",
            owner_rev=loop.machine.owner_rev,
            records=loop.members,
            nodes=tuple(_node(record, term) for record in loop.members),
            shards=tuple(shards),
            looks=loop.sources.all_dated(),
            checkpoint_at_s=loop.checkpoint.at_s,
            catching_up=loop.checkpoint.catching_up,
            moving=len(term.moving) if term else 0,
        )


def _node(record: NodeRecord, term: Term | None) -> NodeView:
    peer = term.peers.get(record.node_id) if term else None
    assigned = term.assignments.assigned_to(Holder(record.node_id, record.epoch)) if term else ()
    return NodeView(
        node_id=record.node_id,
        pid=record.pid,
        address=record.address,
        epoch=record.epoch,
        version=record.version,
        state=_state(record, peer, term),
        shards=sum(1 for _ in assigned),
        queue_waiting=-1,
        queue_running=-1,
        in_flight=len(peer.in_flight) + len(peer.queue) if peer else 0,
    )


def _state(record: NodeRecord, peer: Peer | None, term: Term | None) -> str:
    if record.leaving:
        return "leaving"
    if peer is None or term is None or peer.phase is PeerPhase.ANNOUNCED:
        return "joining"
    if peer.phase is PeerPhase.REVOKED:
        return "revoked"
    overrides = term.placement.overrides
    if record.node_id in overrides.draining:
        return "draining"
    return "cordoned" if record.node_id in overrides.cordoned else "ready"


def _summed(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums, those that are 0 included: a counter is to be seen before it counts."""
    totals: Counter[str] = Counter()
    for each in counters:
        totals.update(each)
    return dict(totals)


def _completed(node: NodeView, counters: dict[str, int] | None, lease_age_s: float) -> NodeView:
    """Return the view with what only the nodes know."""
    if counters is None:
        return replace(node, lease_age_s=lease_age_s)
    waiting, running = counters.get("waiting", 0), counters.get("running", 0)
    return replace(node, queue_waiting=waiting, queue_running=running, lease_age_s=lease_age_s)


def _left_out(jobs: Iterable[JobRow], catching_up: frozenset[str]) -> tuple[tuple[LeftOutJob, ...], int]:
    """Some of the jobs that the checkpoint does not speak for, and how many there are."""
    rows = list({row.registration: row for row in jobs if not counts(row) or row.job_id in catching_up}.values())
    some = tuple(LeftOutJob(row.table_name, row.key.job_name, _why(row)) for row in islice(rows, LEFT_OUT_SHOWN_MAX))
    return some, len(rows)


def _why(row: JobRow) -> str:
    if row.paused:
        return "paused"
    if row.watermark.version < 0:
        return "building"
    return "failed" if row.failed_for_good else "catching up"


# --- lines of the nodes' logs -----------------------------------------------------------------------------------------


class LogReader:
    """Lines of the nodes' logs for users: of one node, or what all nodes have logged of one job.

    A query's `after` and `job` are set here; the query gives the rest.
    """

    def __init__(self, owner: OwnerLoop, nodes: NodeClients, lookup: JobLookup) -> None:
        self._owner = owner
        self._nodes = nodes
        self._lookup = lookup

    def of_node(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises InvalidRequest where there is no such node, NotOwner."""
        self._owner.current_writer()
        records = [record for record in self._owner.members if record.node_id == node_id]
        if not records:
            there = ", ".join(sorted(record.node_id for record in self._owner.members)) or "none"
            raise InvalidRequest(f"there is no node {node_id!r}", about="node", remedy=f"The nodes are: {there}")
        return self._nodes.logs(records, lambda node_id: replace(query, after=after.get(node_id)))

    def of_job(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises JobNotFound, TableNotFound, NotOwner."""
        row = self._lookup.row(self._owner.current_writer(), job)
        tables = tuple(dict.fromkeys((row.key.table_id, row.table_name, row.table_uri)))
        wanted = replace(query, job=JobOfLines(row.job_id, row.key.job_name, row.key.account, tables))
        return self._nodes.logs(self._owner.members, lambda node_id: replace(wanted, after=after.get(node_id)))
