"""The loop around the schedule: one thread, one inbox, asleep until something happens or is due.

Everything that happens becomes an event of the pure machine, one at a time; its effects are carried out here. This
thread is that of all tables, so it touches no storage: tables are probed on the threads of a pool, which it watches.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import assert_never

from iscp.coordination.protocol.events import Reports, Seen, ShardStarted, ShardStopped, Tick
from iscp.coordination.schedule.schedule_events import (
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
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.core.values.errors import Canceled, InvariantBroken, QueueFull
from iscp.core.values.ids import ShardId
from iscp.ports.catalog import CommitProbe, TargetProbe
from iscp.ports.system import Clock
from iscp.runtime.loop.notifier import Notifier
from iscp.runtime.loop.subscriptions import Subscriptions
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.noticed_commits import NoticedCommits
from iscp.runtime.worker.probe_pool import ProbePool
from iscp.runtime.worker.table_prober import Prober

log = logging.getLogger(__name__)

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
