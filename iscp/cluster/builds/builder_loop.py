"""The loops around the two machines of builds: the builder of a node that is the owner, and the build worker of every
node.

The module also has what the builder reads of jobs, nodes and tables, and the access of users to the builder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Protocol, TypeVar, assert_never

from iscp.cluster.builds.builder import Builder, BuildWorker, known_builds
from iscp.cluster.membership.term import PeerPhase
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.model.build.build_progress import KnownBuilds
from iscp.model.build.build_state import (
    AnswerWork,
    BatchEnded,
    BuilderEffect,
    BuilderEvent,
    BuildLimits,
    BuildOver,
    BuildsLoaded,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWanted,
    BuildWorkerEffect,
    BuildWorkerEvent,
    CallNode,
    CancelBatch,
    CancelCall,
    Change,
    CheckBuilds,
    JobsMoved,
    LoadBuilds,
    MergeRange,
    NodesPlaced,
    NotifyBuilt,
    Prioritize,
    RangeAnswered,
    RangeFailed,
    RefuseWork,
    RunBatch,
    ShowFault,
    SplitRange,
    TableSeen,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
    WriteBuilds,
)
from iscp.model.build.build_task import BuildPlan, RangeBatch, StagingBatch
from iscp.model.job.job_row import JobReport, JobRow, JobState, Reason
from iscp.model.job.registration_id import logged_job, logged_plan
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import ErrorCode, InvariantBroken, IscpError, Unavailable, no_owner
from iscp.model.values.ids import BUILDS_WIRE_FORMAT, Leader, NodeRecord, ShardId
from iscp.model.values.progress import UNCOUNTED, TableSize
from iscp.model.values.watermark import NOTHING_APPLIED
from iscp.ports.cluster import BuildAnswer, BuildStore, NodeCalls
from iscp.ports.consumer import RangeBuilder
from iscp.ports.system import Attribute, Clock, Guard, Threads, Tracer
from iscp.schedule.lag import counts
from iscp.system.inbox import Gathered, Inbox, Turns, query_loop
from iscp.system.threads import THREADS

log = logging.getLogger(__name__)

# --- what the rows of jobs say of builds ------------------------------------------------------------------------------

PlanOf = Callable[[JobRow], BuildPlan | None]
"""The build that the job's status requests; None: it requests none, or has not said so yet."""


def plan_of(row: JobRow) -> BuildPlan | None:
    """Return the build that the row requests, as PlanOf does."""
    request, key = row.build, row.key
    if request is None:
        return None
    return BuildPlan(
        row.job_id,
        key.account,
        key.table_id,
        key.job_name,
        row.table_uri,
        request.version,
        row.spec_json,
        request.piece_bytes,
        request.depth,
        request.size,
        request.pin,
    )


def wanted_builds(rows: Iterable[JobRow], plan_of: PlanOf) -> tuple[list[BuildPlan], list[str]]:
    """Return the builds that are wanted, and all jobs that may want one, as they have nothing published."""
    open_rows = [row for row in rows if _may_want(row)]
    plans = [plan for row in open_rows if (plan := plan_of(row)) is not None]
    return plans, [row.job_id for row in open_rows]


def news_of(rows: Iterable[JobRow], known: Collection[str], plan_of: PlanOf) -> list[BuildWanted | BuildOver]:
    """Return the news of a table's jobs as they are now; `known` has those of them that are being built, or wait for
    it.
    """
    wanted, unbuilt = wanted_builds(rows, plan_of)
    over = sorted(set(known).difference(unbuilt))
    return [*map(BuildOver, over), *map(BuildWanted, wanted)]


def fault_report(row: JobRow, shown: ShowFault) -> JobReport | None:
    """Return the report of a build that does not go on, or does again; None if the job waits for none.

    A permanent fault would end the job: its own iteration finds out whether its rows can be built at all.
    """
    if not _may_want(row) or row.build is None:
        return None
    code = ErrorCode(shown.code) if ErrorCode(shown.code).temporary else ErrorCode.INTERNAL
    if shown.code == ErrorCode.OK:
        state, reason, code = JobState.PENDING, Reason.BUILDING, ErrorCode.OK
    else:
        state, reason = JobState.ERROR, Reason.RETRYING
    status = replace(row.status, error_code=code, error_msg=shown.fault)
    return JobReport(row.key, row.job_id, row.watermark, row.seq, state, reason, status)


def _may_want(row: JobRow) -> bool:
    """Return whether the job may want a build. One that is paused or has failed for good wants none: when it is resumed
    it requests it again, and what is staged is there.
    """
    stopped = row.paused or row.failed_for_good or row.drop_at_s is not None
    return row.watermark.version == NOTHING_APPLIED and not stopped


# --- nodes and tables, as the owner knows them ------------------------------------------------------------------------
# The nodes are those that may build. The tables are those that are built, or whose commits are retained or are to be.


@dataclass(slots=True)
class BuildNodes:
    """The nodes of builds. `placed` is None until it is known."""

    records: Mapping[str, NodeRecord] = field(default_factory=dict)
    placed: NodesPlaced | None = None


@dataclass(frozen=True, slots=True)
class FoundNodes:
    records: Mapping[str, NodeRecord]
    placed: NodesPlaced


def read_nodes(loop: OwnerLoop) -> FoundNodes | None:
    """Return the nodes, on the owner's loop; None while nothing is placed, as members are changing or the ring is being
    made, or while there is a node of a release that builds no ranges.
    """
    term = loop.machine.term
    if term is None or term.placement.ring is None or not term.placing:
        return None
    if any(peer.record.wire_format < BUILDS_WIRE_FORMAT for peer in term.peers.values()):
        return None
    there = {node_id: peer.record for node_id, peer in term.peers.items() if peer.phase is not PeerPhase.REVOKED}
    draining = term.placement.overrides.draining
    staying = {node_id for node_id, record in there.items() if not record.leaving and node_id not in draining}
    return FoundNodes(there, NodesPlaced(term.placement, frozenset(staying) | term.placement.eligible))


def read_table_news(loop: OwnerLoop, table_ids: Collection[str]) -> list[TableSeen]:
    """Return, on the owner's loop, the news of these tables, and of those with a repair that some job has not applied;
    none between terms.
    """
    found: list[TableSeen] = []
    if (writer := loop.writer) is None:
        return found
    for table_id in sorted({*table_ids, *(shard.table_id for shard in loop.sources.repaired)}):
        rows = writer.read(lambda book, table_id=table_id: book.jobs_on(table_id))  # type: ignore[misc]
        probed = [loop.sources.seen[shard] for shard in {row.key.shard for row in rows} if shard in loop.sources.seen]
        found.append(table_seen(table_id, rows, probed))
    return found


def table_seen(table_id: str, rows: Sequence[JobRow], probed: Sequence[SourceSeen]) -> TableSeen:
    """Return the news of a table from its jobs' `rows`. Nobody knows when a job that is paused, or has failed for good,
    goes on: nothing is retained for it.
    """
    tailing = [row for row in rows if row.drop_at_s is None and counts(row)]
    slowest = min(tailing, key=lambda row: row.watermark.version, default=None)
    return TableSeen(
        table_id,
        max((each.source_version for each in probed), default=-1),
        None if slowest is None else slowest.watermark.version,
        max((each.repair_version for each in probed), default=0),
        "" if slowest is None else slowest.table_uri,
    )


# --- the builder's loop -----------------------------------------------------------------------------------------------

T = TypeVar("T")

FOLLOW_S = 1.0
"""Pause between two reads of the nodes that may build, and of the term: a node that has gone is noticed by then."""

BUILD_QUERY_S = 5.0
"""Seconds that a query waits for the builder; then the call is refused with UNAVAILABLE."""

RequestOfBuild = SplitRange | MergeRange | Prioritize
Action = Callable[[], None]


class BuilderLoop:
    """The builder of a node that is the owner, on a thread of its own: between terms it waits.

    The builder reads the rows of jobs whenever they have changed, and again and again if tasks may be placed. One
    thread carries all that goes to etcd and comes from it, in order; calls to nodes wait on nobody's thread. The loop
    runs beside the owner's loop. `plan_of` says what a job's row requests.
    """

    _builder_of: type[Builder] = Builder

    def __init__(
        self,
        owner: OwnerLoop,
        store: BuildStore,
        calls_of: Callable[[NodeRecord], NodeCalls],
        notify: Callable[[ShardId], None],
        plan_of: PlanOf,
        clock: Clock,
        on_broken: Callable[[Exception], None],
        limits: BuildLimits,
        threads: Threads = THREADS,
    ) -> None:
        self._owner = owner
        self._store = store
        self._calls_of = calls_of
        self._notify = notify
        self._plan_of = plan_of
        self._clock = clock
        self._on_broken = on_broken
        self._limits = limits
        self._writer: LogWriter | None = None
        self._leader: Leader | None = None
        self._builder: Builder | None = None
        self._nodes = BuildNodes()
        self._cancels: dict[int, Action] = {}
        self._changed_tables: Gathered[dict[str, None]] = Gathered(lambda before, now: before | now)
        self._follow_at_s = clock.monotonic_s()
        self._threads = threads
        self._etcd = threads.pool("iscp-builds-etcd")
        turns: Turns[Action] = Turns(lambda action: action(), self._tick, self._next_due_s)
        self._inbox: Inbox[Action] = Inbox("iscp-builder", clock, turns, on_broken, threads=threads)

    def start(self) -> None:
        self._inbox.start()

    def close(self) -> None:
        self._inbox.post(self._end_term)
        self._inbox.close()
        self._etcd.shutdown(wait=False, cancel_futures=True)

    def on_tables(self, table_ids: Iterable[str]) -> None:
        """Note that jobs on these changed, or a term has begun or ended. Runs on the owner's loop; never blocks."""
        if self._changed_tables.add(dict.fromkeys(table_ids)):
            self._inbox.post(self._take_changed_tables)

    def request(self, event: RequestOfBuild) -> None:
        """Raises InvalidRequest, where nothing was changed; Unavailable, NotOwner."""
        self.query(lambda builder: self._step(builder, event))

    def query(self, read: Callable[[Builder], T]) -> T:
        """Return what `read` finds, on the loop's own thread. Raises NotOwner between terms, and Unavailable."""

        def read_builder() -> T:
            if self._builder is None:
                raise no_owner()
            return read(self._builder)

        try:
            return query_loop(self._inbox.put, read_builder, BUILD_QUERY_S, self._threads)
        except TimeoutError as error:
            raise Unavailable("the builder is under load", remedy="Try again in a moment") from error

    # --- the loop's thread -------------------------------------------------------------------------------------

    def _next_due_s(self) -> float | None:
        due_s = self._builder.next_due_s() if self._builder is not None else None
        if self._owner.writer is None and self._builder is None:
            return None  # until a term begins, which `on_tables` says
        return self._follow_at_s if due_s is None else min(due_s, self._follow_at_s)

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._follow_at_s:
            self._follow_at_s = now_s + FOLLOW_S
            self._try(self._follow_owner)
        builder = self._builder
        if builder is not None and (due_s := builder.next_due_s()) is not None and due_s <= now_s:
            self._step(builder, BuildTick())

    def _try(self, action: Action) -> None:
        """The owner's loop may be under load, or end the term: it is read again soon."""
        try:
            action()
        except IscpError as error:
            log.info("builds.owner_not_read", extra={"error": str(error)})

    def _follow_owner(self) -> None:
        if self._owner.writer is not self._writer:
            self._end_term()
            self._begin_term()
        if (builder := self._builder) is not None:
            tables = builder.followed_tables()
            found, news = self._owner.query(lambda loop: (read_nodes(loop), read_table_news(loop, tables)))
            if found is not None:
                self._nodes.records = found.records
                if found.placed != self._nodes.placed:
                    self._nodes.placed = found.placed
                    self._step(builder, found.placed)
            for each in news:  # what nodes have found at sources, and how far jobs have come there
                self._step(builder, each)

    def _begin_term(self) -> None:
        writer, leader, owner_rev = self._owner.query(lambda loop: (loop.writer, loop.leader, loop.machine.owner_rev))
        if writer is None or leader is None:
            return  # the term has ended meanwhile
        wanted, unbuilt = wanted_builds(writer.read(lambda book: book.rows()), self._plan_of)
        self._writer, self._leader = writer, leader
        self._builder = self._builder_of(owner_rev, self._limits, wanted, unbuilt, self._clock.monotonic_s())
        self._step(self._builder, BuildTick())

    def _end_term(self) -> None:
        self._writer = self._leader = self._builder = None
        self._nodes = BuildNodes()
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()

    def _take_changed_tables(self) -> None:
        table_ids = self._changed_tables.take()
        if self._owner.writer is not self._writer:
            self._try(self._follow_owner)  # which reads all rows
        elif self._writer is not None:
            for table_id in table_ids:
                rows = self._writer.read(lambda book, table_id=table_id: book.jobs_on(table_id))  # type: ignore[misc]
                builder = self._builder
                if builder is not None:
                    known = builder.jobs_on(table_id, [row.job_id for row in rows])
                    for event in news_of(rows, known, self._plan_of):
                        self._step(builder, event)
                    if builder.retains(table_id):
                        self._step(builder, JobsMoved(table_id))

    def _step(self, builder: Builder, event: BuilderEvent) -> None:
        """Step the builder; what comes for the builder of a term that has ended is dropped."""
        if builder is self._builder:
            for effect in builder.step(event, self._clock.monotonic_s()):
                self._carry_out(builder, effect)

    def _carry_out(self, builder: Builder, effect: BuilderEffect) -> None:
        match effect:
            case LoadBuilds(number):
                self._etcd.submit(self._load, builder, number)
            case WriteBuilds():
                self._etcd.submit(self._write, builder, effect, self._leader)
            case CheckBuilds(number):
                self._etcd.submit(self._check, builder, number)
            case CallNode():
                self._call(builder, effect)
            case CancelCall(number):
                if (cancel := self._cancels.pop(number, None)) is not None:
                    cancel()
            case NotifyBuilt(plan):
                log.info("build.done", extra={**logged_plan(plan), "version": plan.version})
                self._notify_job(plan)
            case ShowFault():
                self._show(effect)
            case _:
                assert_never(effect)

    def _show(self, shown: ShowFault) -> None:
        """Show the fault in the job's row: its own node only waits for the build, and knows of no fault."""
        row = self._writer.read(lambda book: book.by_id(shown.job_id)) if self._writer is not None else None
        if self._writer is not None and row is not None and (report := fault_report(row, shown)) is not None:
            log.warning("build.fault", extra={**logged_job(row), "error": shown.fault})
            self._writer.report([report])

    def _notify_job(self, plan: BuildPlan) -> None:
        row = self._writer.read(lambda book: book.by_id(plan.job_id)) if self._writer is not None else None
        if row is not None:
            self._notify(row.key.shard)

    def _call(self, builder: Builder, call: CallNode) -> None:
        def take(answer: BuildAnswer) -> None:
            self._inbox.post(partial(self._take_answer, builder, call.number, answer))

        record = self._nodes.records.get(call.place.node_id)
        try:
            if record is None:
                raise Unavailable(f"{call.place.node_id} is no member")
            calls = self._calls_of(record)
        except IscpError as error:
            take(error)
            return
        self._cancels[call.number] = calls.work_on_build_tasks(call.owner_rev, call.place.range_id, call.task_ids, take)

    def _take_answer(self, builder: Builder, number: int, answer: BuildAnswer) -> None:
        if builder is self._builder:
            self._cancels.pop(number, None)
            if isinstance(answer, IscpError):
                call = builder.calls.by_number.get(number)
                about = {"table": call.place.table_id, "range": call.place.range_id} if call is not None else {}
                log.warning("build.range_failed", extra={**about, "error": str(answer)})
                self._step(builder, RangeFailed(number, str(answer), answer.code))
            else:
                self._step(builder, RangeAnswered(number, answer))

    # --- the thread that may wait for etcd ---------------------------------------------------------------------

    def _load(self, builder: Builder, number: int) -> None:
        self._say(builder, number, lambda: BuildsLoaded(number, self._store.load()))

    def _write(self, builder: Builder, effect: WriteBuilds, leader: Leader | None) -> None:
        def write() -> BuildsWritten:
            if leader is None:
                raise no_owner()
            self._store.write(leader, effect.changes)
            return BuildsWritten(effect.number)

        self._say(builder, effect.number, write)

    def _check(self, builder: Builder, number: int) -> None:
        def check() -> BuildsWritten | BuildsUnknown:
            if self._store.is_current():
                return BuildsWritten(number)
            log.warning("builds.changed_in_etcd")
            return BuildsUnknown(number)

        self._say(builder, number, check)

    def _say(self, builder: Builder, number: int, act: Callable[[], BuilderEvent]) -> None:
        try:
            event = act()
        except IscpError as error:
            log.warning("builds.etcd_failed", extra={"error": str(error)})
            event = BuildsUnknown(number)
        except Exception as error:
            log.exception("builds.broken")
            self._on_broken(error)
            return
        self._inbox.post(lambda: self._step(builder, event))


# --- access of users to the builder -----------------------------------------------------------------------------------


class BuilderAccess:
    """The protocol `TermBuilds`: access to the builder of the owner's term, from any thread. `clock` is the loop's."""

    def __init__(self, loop: BuilderLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock

    def known(self) -> KnownBuilds:
        clock_at_s = self._clock.now_s() - self._clock.monotonic_s()
        return self._loop.query(partial(known_builds, clock_at_s=clock_at_s))

    def split(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(SplitRange(table_id, each))

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        for each in ranges:
            self._loop.request(MergeRange(table_id, each))

    def prioritize(self, table_id: str, priority: int) -> None:
        self._loop.request(Prioritize(table_id, priority))


# --- the build worker's loop ------------------------------------------------------------------------------------------


class BatchGuard(Guard, Protocol):
    """Refuses every write once it is cancelled."""

    def cancel(self) -> None: ...


class BuildWorkerLoop:
    """The loop of a node's build worker, on a thread of its own; batches run on others.

    `guard` gives one for a batch that begins now. Each batch has a thread: the machine runs only so many at once.
    """

    _worker_of: type[BuildWorker] = BuildWorker

    def __init__(
        self,
        node_id: str,
        store: BuildStore,
        builder: RangeBuilder,
        guard: Callable[[], BatchGuard],
        clock: Clock,
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
    ) -> None:
        self._store = store
        self._builder = builder
        self._guard = guard
        self._threads = threads
        self._machine = self._worker_of(node_id)
        self._numbers = count(1)
        self._callers: dict[int, Callable[[BuildAnswer], None]] = {}
        self._guards: dict[int, BatchGuard] = {}
        self._unwatch: Callable[[], None] = lambda: None
        turns: Turns[BuildWorkerEvent] = Turns(self._take, lambda: None, lambda: None)
        self._inbox: Inbox[BuildWorkerEvent] = Inbox("iscp-build-worker", clock, turns, on_broken, threads=threads)

    def start(self) -> None:
        self._inbox.start()
        self._unwatch = self._store.watch(self._read, self._follow)

    def close(self) -> None:
        """Cancel what is being built, which ends soon; nobody is answered any more."""
        self._unwatch()
        self._inbox.close()
        for guard in list(self._guards.values()):
            self._cancel(guard)

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        """Work on tasks as `NodeCalls.work_on_build_tasks` does, without an end to the wait."""
        number = next(self._numbers)
        self._callers[number] = answered
        self._inbox.post(WorkRequested(number, owner_rev, range_id, tuple(task_ids)))
        return partial(self._inbox.post, WaitEnded(number))

    def _read(self, changes: Sequence[Change]) -> None:
        self._inbox.post(TasksRead(changes))

    def _follow(self, changes: Sequence[Change]) -> None:
        self._inbox.post(TasksChanged(changes))

    # --- the loop's thread -------------------------------------------------------------------------------------

    def _take(self, event: BuildWorkerEvent) -> None:
        if isinstance(event, BatchEnded):
            self._guards.pop(event.number, None)
        for effect in self._machine.step(event):
            self._carry_out(effect)
        if isinstance(event, WaitEnded):
            self._callers.pop(event.number, None)

    def _carry_out(self, effect: BuildWorkerEffect) -> None:
        match effect:
            case RunBatch(number, batch):
                guard = self._guards[number] = self._guard()
                self._threads.thread("iscp-build", partial(self._run, number, batch, guard)).start()
            case CancelBatch(number):
                self._cancel(self._guards[number])
            case AnswerWork(number, finished):
                self._callers.pop(number)(finished)
            case RefuseWork(number, fault):
                self._callers.pop(number)(fault)
            case _:
                assert_never(effect)

    def _cancel(self, guard: BatchGuard) -> None:
        """The engine's work is stopped on a thread of its own: a JVM that hangs must not hang the node's builds."""
        guard.cancel()
        self._threads.thread("iscp-build-cancel", partial(self._stop_work, guard)).start()

    def _stop_work(self, guard: BatchGuard) -> None:
        try:
            self._builder.cancel(guard)
        except Exception:
            log.exception("build.cancel_failed")

    def _run(self, number: int, batch: RangeBatch | StagingBatch, guard: BatchGuard) -> None:
        """Build the batch, on its own thread."""
        fault: IscpError | None = None
        size = UNCOUNTED
        try:
            guard.check()
            size = self._builder.build(batch, guard)
        except IscpError as error:
            log.info("build.batch_failed", extra={**_about(batch), "error": str(error)})
            fault = error
        except Exception as error:
            log.exception("build.batch_broken", extra=_about(batch))
            fault = InvariantBroken(f"unforeseen {type(error).__name__}: {error}")
        self._inbox.post(BatchEnded(number, fault, size))


def _about(batch: RangeBatch | StagingBatch) -> dict[str, object]:
    if isinstance(batch, RangeBatch):
        return {"range": batch.range_id}
    return {"table": batch.task.table_uri, "after": batch.task.after, "until": batch.task.until}


# --- traces -----------------------------------------------------------------------------------------------------------
# What a node builds is recorded: each range of a table that it stages, and the commits that it retains meanwhile.


class TracedRangeBuilder:
    """Port RangeBuilder, around another one. A build outlives every iteration: each task has a trace of its own."""

    def __init__(self, builder: RangeBuilder, tracer: Tracer) -> None:
        self._builder = builder
        self._tracer = tracer

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        name = "iscp.build.range" if isinstance(batch, RangeBatch) else "iscp.build.retain"
        with self._tracer.span(name, _attributes(batch), parent="") as span:
            size = self._builder.build(batch, guard)
            span.note({"iscp.rows": size.rows, "iscp.bytes": size.bytes})
            return size

    def cancel(self, guard: Guard) -> None:
        self._builder.cancel(guard)


def _attributes(batch: RangeBatch | StagingBatch) -> Mapping[str, Attribute]:
    jobs: dict[str, Attribute] = {"iscp.jobs": len(batch.plans)}
    if isinstance(batch, StagingBatch):
        task = batch.task
        return {"iscp.table": task.table_uri, "iscp.version.from": task.after, "iscp.version": task.until, **jobs}
    plan = batch.plans[0]
    read: dict[str, Attribute] = {"iscp.table": plan.table_uri, "iscp.version": plan.version}
    return {**read, "iscp.range": batch.range_id, "iscp.account": plan.account, "iscp.job": plan.job_name, **jobs}
