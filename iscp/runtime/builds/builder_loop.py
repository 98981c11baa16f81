"""The builder of a node that is the owner, on a thread of its own: between terms it waits.

The builder reads the rows of jobs whenever they have changed, and again and again if tasks may be placed. One thread
carries all that goes to etcd and comes from it, in order; calls to nodes wait on nobody's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, assert_never

from iscp.coordination.builds.build_limits import BuildLimits
from iscp.coordination.builds.builder import Builder
from iscp.coordination.builds.builder_events import (
    BuilderEffect,
    BuilderEvent,
    BuildsLoaded,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    CallNode,
    CancelCall,
    CheckBuilds,
    JobsMoved,
    LoadBuilds,
    MergeRange,
    NotifyBuilt,
    Prioritize,
    RangeAnswered,
    RangeFailed,
    ShowFault,
    SplitRange,
    WriteBuilds,
)
from iscp.core.build.build_task import BuildPlan
from iscp.core.job.logged_jobs import logged_job, logged_plan
from iscp.core.values.errors import IscpError, Unavailable, no_owner
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Leader, NodeRecord
from iscp.ports.cluster import BuildAnswer, BuildStore, NodeCalls
from iscp.ports.system import Clock, Threads
from iscp.runtime.builds.build_jobs import PlanOf, fault_report, news_of, wanted_builds
from iscp.runtime.builds.build_nodes import BuildNodes, read_nodes
from iscp.runtime.builds.table_news import read_table_news
from iscp.runtime.loop.inbox import Gathered, Inbox, Turns
from iscp.runtime.loop.loop_query import query_loop
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.owner_loop import OwnerLoop

log = logging.getLogger(__name__)
T = TypeVar("T")

FOLLOW_S = 1.0
"""Pause between two reads of the nodes that may build, and of the term: a node that has gone is noticed by then."""

BUILD_QUERY_S = 5.0
"""Seconds that a query waits for the builder; then the call is refused with UNAVAILABLE."""

RequestOfBuild = SplitRange | MergeRange | Prioritize
Action = Callable[[], None]


class BuilderLoop:
    """Runs beside the owner's loop. `plan_of` says what a job's row requests."""

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
