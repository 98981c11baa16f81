"""The loop around the schedule: one thread, one inbox, asleep until something happens or is due; and what wakes it when
somebody has committed to a table.

Everything that happens becomes an event of the pure machine, one at a time; its effects are carried out here. This
thread is that of all tables, so it touches no storage: tables are probed on the threads of a pool, which it watches.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import assert_never

from iscp.model.job.iteration import Iteration, Purpose
from iscp.model.job.job_row import JobRow, further_tables
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import (
    Reports,
    Seen,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
)
from iscp.model.values.errors import Canceled, InvariantBroken, QueueFull
from iscp.model.values.ids import ShardId
from iscp.ports.source import CommitProbe, LogNotices, TargetProbe
from iscp.ports.system import Attribute, Clock, Tracer, current_trace
from iscp.schedule.executor import Executor
from iscp.schedule.probe_pool import ProbePool, Prober
from iscp.schedule.schedule_events import (
    CancelIteration,
    Interrupted,
    IterationEnded,
    IterationRejected,
    Notified,
    Probe,
    ProbeAnswered,
    ScheduleEffect,
    ScheduleEvent,
    Submit,
    VerifyAnswered,
    VerifyRequested,
    VerifyWithdrawn,
)
from iscp.schedule.schedule_machine import Schedule
from iscp.system.inbox import Notifier, Subscriptions
from iscp.system.recent_values import RecentValues

log = logging.getLogger(__name__)

# --- traces that begin at a node --------------------------------------------------------------------------------------
# A trace begins with a source's commit that was noticed, or with the call that has notified the node of the commit.

CALLERS_MAX = 10_000
"""Shards of which a node remembers who has notified it last; beyond them the oldest is forgotten, and a trace begins
without its caller.
"""

CALLER_S = 60.0
"""Seconds for which a call that notifies a node is taken for the reason of what a probe then finds."""


@dataclass(slots=True)
class _SeenTable:
    """The newest version of a table that was seen, and the trace of what woke its jobs last; empty: nothing has.

    `further`: that was another table that they read, and no iteration was queued since.
    """

    version: int
    trace: str = ""
    further: bool = False


class NoticedCommits:
    """The scheduler's thread calls it, but for `note_caller`, which any thread may call."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._tables: dict[ShardId, dict[str, _SeenTable]] = {}
        self._callers: RecentValues[ShardId, tuple[str, float]] = RecentValues(CALLERS_MAX)

    def note_caller(self, shard: ShardId) -> None:
        """Remember the current context as that of who has notified the shard."""
        if trace := current_trace():
            self._callers.put(shard, (trace, self._clock.monotonic_s()))

    def note_answer(self, event: ProbeAnswered) -> None:
        """Record a notice of each table that has moved: the shard's own, and further ones that its jobs read."""
        for uri, state in _states(event):
            trace = self._note_state(event.shard, uri, state)
            if uri != event.uri and trace and (own := self._tables[event.shard].get(event.uri)) is not None:
                own.trace, own.further = trace, True

    def _note_state(self, shard: ShardId, uri: str, state: ProbeState) -> str:
        """Return the trace of a notice; empty if the table is as it was, or was not seen before."""
        tables = self._tables.setdefault(shard, {})
        if (known := tables.get(uri)) is None:
            # It may have moved before it was seen here, as whoever has called says.
            tables[uri] = _SeenTable(state.version, self._caller(shard, forget=True))
            return ""
        if state.version == known.version:
            return ""
        attributes: dict[str, Attribute] = {
            "iscp.table": uri,
            "iscp.version.from": known.version,
            "iscp.version": state.version,
        }
        now_s = self._clock.now_s()
        # The notice lasts from the commit on, as far as the clocks of node and storage agree.
        start_s = state.since_s if 0 < state.since_s < now_s else now_s
        caller = self._caller(shard, forget=True)
        with self._tracer.span("iscp.notice", attributes, parent=caller, start_s=start_s) as span:
            known.version, known.trace = state.version, span.trace
            return span.trace

    def traced(self, iteration: Iteration) -> Iteration:
        """Return the iteration that is queued now, as a part of what led to it, if that is known."""
        shard, trace = iteration.jobs[0].key.shard, ""
        known = self._tables.get(shard, {}).get(iteration.table_uri)
        if known is not None and iteration.purpose is Purpose.APPLY:
            # Others are repeated, or due by time: the last commit is no reason for them.
            if known.further or any(row.watermark.version < known.version for row in iteration.jobs):
                trace = known.trace
            known.further = False
        if not trace and iteration.purpose is Purpose.APPLY:
            trace = self._caller(shard, forget=False)  # who has jobs checked at once does not wait for a probe
        return replace(iteration, trace=trace, submitted_at_s=self._clock.now_s())

    def forget(self, shard: ShardId) -> None:
        """Forget a shard that has stopped here."""
        self._tables.pop(shard, None)
        self._callers.take(shard)

    def _caller(self, shard: ShardId, *, forget: bool) -> str:
        found = self._callers.take(shard) if forget else self._callers.get(shard)
        trace, at_s = found or ("", 0.0)
        return trace if trace and self._clock.monotonic_s() - at_s <= CALLER_S else ""


def _states(event: ProbeAnswered) -> Iterator[tuple[str, ProbeState]]:
    if event.state is not None:
        yield event.uri, event.state
    for further in event.further:
        if further.state is not None:
            yield further.uri, further.state


# --- the loop ---------------------------------------------------------------------------------------------------------

INBOX_MAX = 1_000_000
"""Events that wait for the schedule, more than orders for all shards that a node could hold and ends of all that its
queue could; then requests from elsewhere are refused. The node's own events are always taken.
"""

EVENTS_AT_ONCE_MAX = 1_000
"""Events taken between two checks of due tables."""


class Scheduler:
    """`reports`: who gets the schedule's reports, the worker machine and who requested a comparison. They
    may wait for the worker, for `post` never waits.

    `on_broken` is called once, from the loop's thread, when an invariant broke: the node has to stop.
    """

    def __init__(
        self,
        schedule: Schedule,
        probe: CommitProbe,
        targets: TargetProbe,
        clock: Clock,
        on_broken: Callable[[Exception], None],
        inbox_max: int = INBOX_MAX,
        noticed: NoticedCommits | None = None,
    ) -> None:
        """If `noticed` is None, nothing is traced."""
        self._schedule = schedule
        self._noticed = noticed
        self._clock = clock
        self.reports = Subscriptions()
        self._on_broken = on_broken
        self._inbox: deque[ScheduleEvent] = deque()
        self._notified: dict[ShardId, bool] = {}
        self._inbox_max = inbox_max
        # For what other threads hand in; the schedule belongs to the loop's thread alone.
        self._lock = threading.Lock()
        self._wake = Notifier()
        self._probes: list[Probe] = []
        self.pool = ProbePool(Prober(probe, targets), schedule.probe_timeout_s, clock, self._post_all, on_broken)
        self._closed = False
        self._executor: Executor | None = None
        self._thread = threading.Thread(target=self._loop, name="iscp-scheduler", daemon=True)

    def start(self, executor: Executor) -> None:
        """Start the thread; `executor` has to be made with `post` as its `emit`."""
        self._executor = executor
        self._thread.start()

    def request(self, event: Interrupted | VerifyRequested | VerifyWithdrawn) -> None:
        """Submit a request, from any thread, without waiting; after `close` it is dropped.

        Raises QueueFull; never for what is withdrawn.
        """
        with self._lock:
            full = len(self._inbox) >= self._inbox_max and not self._closed
            if full and not isinstance(event, VerifyWithdrawn):
                raise QueueFull("the scheduler's inbox does not keep up", remedy="Try again later")
        self.post(event)

    def post(self, event: ScheduleEvent) -> None:
        """Submit the node's own event, as `request` does, but never refused.

        The event is submitted once: a table whose probe's answer got lost would never be probed again, nor a job run
        whose iteration's end did. So its givers bound it: to an order, a probe and an iteration for each shard.
        """
        self._post_all((event,))

    def _post_all(self, events: Sequence[ScheduleEvent]) -> None:
        with self._lock:
            if self._closed:
                return
            self._inbox.extend(events)
        self._wake.notify()

    def notify(self, shard: ShardId, targets: bool) -> None:
        """Note that the shard's source may have changed, or its `targets` too; never waits, and many at once count as
        one.
        """
        if self._noticed is not None:
            self._noticed.note_caller(shard)
        with self._lock:
            self._notified[shard] = targets or self._notified.get(shard, False)
        self._wake.notify()

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        """End what runs of this job by another spec, now or as soon as this one is here. Raises QueueFull."""
        self.request(Interrupted(shard, job_id, spec_json))

    def close(self, wait_s: float) -> bool:
        """Take what is there already, then end the loop; what runs is the executor's to close, before.

        True if it has ended.
        """
        with self._lock:
            self._closed = True
        self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._closed:
                self._wake.wait(self._sleep_s())
                self.turn()
            while events := self._take():  # how the last iterations ended
                for event in events:
                    self._step(event)
            self.pool.close()
        except Exception as error:
            log.exception("scheduler.broken")
            self._on_broken(error)

    def turn(self) -> None:
        """Do all that is to be done now, bounded: some events, and what is due."""
        for event in self._take():
            self._step(event)
        due_s = self._schedule.next_due_s()
        # No tick while many tables are being probed: it would only add to them. Their answers wake the loop.
        if due_s is not None and due_s <= self._clock.monotonic_s() and not self.pool.busy:
            self._step(Tick())
        if self._probes:
            self.pool.offer(self._probes)
            self._probes = []
        if self.pool.next_due_s() <= self._clock.monotonic_s():
            self.pool.watch()

    def _sleep_s(self) -> float | None:
        with self._lock:
            if self._inbox or self._notified:
                return 0.0
        due_s = None if self.pool.busy else self._schedule.next_due_s()
        due_s = min(inf if due_s is None else due_s, self.pool.next_due_s())
        return None if due_s == inf else max(0.0, due_s - self._clock.monotonic_s())

    def _take(self) -> list[ScheduleEvent]:
        with self._lock:
            notified: list[ScheduleEvent] = [Notified(*each) for each in self._notified.items()]
            self._notified.clear()
            events = [self._inbox.popleft() for _ in range(min(len(self._inbox), EVENTS_AT_ONCE_MAX))]
        return notified + events

    def _step(self, event: ScheduleEvent) -> None:
        """Carry out what the event leads to, and what that leads to at once, in order."""
        if self._noticed is not None and isinstance(event, ProbeAnswered):
            self._noticed.note_answer(event)
        effects = self._schedule.step(event, self._clock.monotonic_s(), self._clock.now_s())
        if not effects:
            return
        following: deque[ScheduleEvent] = deque()
        while effects or following:
            for effect in effects:
                if (then := self._carry_out(effect)) is not None:
                    following.append(then)
            effects = []
            if following:
                effects = self._schedule.step(following.popleft(), self._clock.monotonic_s(), self._clock.now_s())

    def _carry_out(self, effect: ScheduleEffect) -> ScheduleEvent | None:
        match effect:
            case Probe():
                self._probes.append(effect)
            case Submit(iteration):
                if self._noticed is not None:
                    iteration = self._noticed.traced(iteration)
                turned_away = self._running.submit(iteration)
                return IterationRejected(turned_away.number) if turned_away else None
            case CancelIteration(number):
                over = self._running.cancel(number)
                return IterationEnded(number, error=Canceled("cancelled before it ran")) if over else None
            case ShardStarted() | ShardStopped() | Reports() | Seen() | VerifyAnswered():
                if self._noticed is not None and isinstance(effect, ShardStopped):
                    self._noticed.forget(effect.shard)
                self.reports.publish(effect)
            case _:
                assert_never(effect)
        return None

    @property
    def _running(self) -> Executor:
        if self._executor is None:
            raise InvariantBroken("the scheduler was not started")
        return self._executor


# --- notices of commits -----------------------------------------------------------------------------------------------
# The shards whose jobs read a table are woken as soon as somebody has committed to it and the storage says so. A notice
# is a hint, as a user's notify is: the schedule probes the table, and a probe finds what no notice came of.

NewNotices = Callable[[Callable[[str], None]], LogNotices]
"""Makes notices; they call the function with the URI of a table that may have changed."""

NoticeOrder = StartShard | UpdateShard | StopShard | StopAllShards


class TableNotices:
    """Follows the tables of the shards that run here, and no others. `notify` never waits.

    Orders come on one thread, notices on another one. Invariant: a table is followed as long as a shard reads it.
    """

    def __init__(self, new_notices: NewNotices, notify: Callable[[ShardId], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._tables: dict[ShardId, frozenset[str]] = {}
        self._shards: dict[str, set[ShardId]] = {}
        self._notices = new_notices(self._hear)

    def give(self, order: NoticeOrder) -> None:
        """Take an order of shards; never waits."""
        match order:
            case StartShard(shard, _, jobs) | UpdateShard(shard, _, jobs):
                self._take(shard, frozenset(_tables_of(jobs)))
            case StopShard(shard):
                self._take(shard, frozenset())
            case StopAllShards():
                for shard in list(self._tables):
                    self._take(shard, frozenset())

    def counters(self) -> Mapping[str, int]:
        """Tables that are noticed at once, and those that could be and are not."""
        return self._notices.counters()

    def close(self) -> None:
        self._notices.close()

    def _take(self, shard: ShardId, tables: frozenset[str]) -> None:
        before = self._tables.pop(shard, frozenset())
        if tables:
            self._tables[shard] = tables
        with self._lock:
            added = [uri for uri in tables - before if not self._shards.get(uri)]
            for uri in tables - before:
                self._shards.setdefault(uri, set()).add(shard)
            for uri in before - tables:
                self._shards[uri].discard(shard)
            gone = [uri for uri in before - tables if not self._shards[uri]]
            for uri in gone:
                del self._shards[uri]
        for uri in added:
            self._notices.follow(uri)
        for uri in gone:
            self._notices.leave(uri)

    def _hear(self, uri: str) -> None:
        with self._lock:
            shards = tuple(self._shards.get(uri, ()))
        for shard in shards:
            self._notify(shard)


def _tables_of(jobs: Iterable[JobRow]) -> Iterable[str]:
    for row in jobs:
        if row.drop_at_s is None:
            yield row.table_uri
            yield from further_tables(row)
