"""The loop around the schedule: one thread, one inbox, asleep until something happens or is due.

Everything that happens becomes an event of the pure machine, one at a time; its effects are carried out here. Sources
on local storage are probed in this thread, some at a time, so that events never wait for a whole pass; those behind a
network in threads of their own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from iscp.coordination.further_tables import FurtherAnswer, FurtherQuery
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
    TargetAnswer,
    VerifyAnswered,
    VerifyRequested,
    VerifyWithdrawn,
)
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.core.errors import Canceled, InvariantBroken, IscpError, QueueFull
from iscp.core.ids import ShardId
from iscp.core.target_state import TargetQuery
from iscp.ports.catalog import CommitProbe, TargetProbe
from iscp.ports.system import Clock
from iscp.runtime.loop.notifier import Notifier
from iscp.runtime.loop.subscriptions import Subscriptions
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.source_probe import probe_source

log = logging.getLogger(__name__)

INBOX_MAX = 1_000_000
"""Events that wait for the schedule, more than orders for all shards that a node could hold and ends of all that its
queue could; then requests from elsewhere are refused. What the node itself has to say is always taken.
"""

PROBES_AT_ONCE_MAX = 500
"""Sources probed between two reads of the inbox."""

REMOTE_PROBES_MAX = 16
"""Sources behind a network that are probed at a time; the others queue."""

EVENTS_AT_ONCE_MAX = 500
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
    ) -> None:
        self._schedule = schedule
        self._probe = probe
        self._targets = targets
        self._clock = clock
        self.reports = Subscriptions()
        self._on_broken = on_broken
        self._inbox: deque[ScheduleEvent] = deque()
        self._notified: dict[ShardId, bool] = {}
        self._inbox_max = inbox_max
        # For what other threads hand in; the schedule belongs to the loop's thread alone.
        self._lock = threading.Lock()
        self._wake = Notifier()
        self._probes: deque[Probe] = deque()
        self._remote = ThreadPoolExecutor(REMOTE_PROBES_MAX, "iscp-probe")
        self._closed = False
        self._executor: Executor | None = None
        self._thread = threading.Thread(target=self._loop, name="iscp-scheduler", daemon=True)

    def start(self, executor: Executor) -> None:
        """`executor` has to be made with `post` as its `emit`."""
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
        """Submit what the node itself has to say, as `request` does, but never refused.

        It is said once: a table whose probe's answer got lost would never be probed again, nor a job run whose
        iteration's end did. So its givers bound it: to an order, a probe and an iteration for each shard.
        """
        with self._lock:
            if self._closed:
                return
            self._inbox.append(event)
        self._wake.notify()

    def notify(self, shard: ShardId, targets: bool) -> None:
        """The shard's source may have changed, or its `targets` too; never waits, and many at once count as one."""
        with self._lock:
            self._notified[shard] = targets or self._notified.get(shard, False)
        self._wake.notify()

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        """What runs of this job by another spec is to end, now or as soon as this one is here. Raises QueueFull."""
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
            self._remote.shutdown(wait=False, cancel_futures=True)
        except Exception as error:
            log.exception("scheduler.broken")
            self._on_broken(error)

    def turn(self) -> None:
        """All that is to be done now, bounded: some events, what is due, some probes."""
        for event in self._take():
            self._step(event)
        due_s = self._schedule.next_due_s()
        # No tick while many probes wait: it would only add to them.
        if due_s is not None and due_s <= self._clock.monotonic_s() and len(self._probes) < PROBES_AT_ONCE_MAX:
            self._step(Tick())
        for _ in range(min(len(self._probes), PROBES_AT_ONCE_MAX)):
            self._answer_probe(self._probes.popleft())

    def _answer_probe(self, probe: Probe) -> None:
        if self._is_remote(probe):
            self._remote.submit(lambda: self.post(self._answer(probe)))
        else:
            self._step(self._answer(probe))

    def _is_remote(self, probe: Probe) -> bool:
        """Whether the source or any other of its tables lies behind a network."""
        # Loops, as generators would cost as much as the rest of this for each idle table.
        if self._probe.remote(probe.uri):
            return True
        for target in probe.targets:
            if self._targets.remote(target.row, target.seen):
                return True
        for further in probe.further:  # noqa: SIM110
            if self._probe.remote(further.uri):
                return True
        return False

    def _sleep_s(self) -> float | None:
        with self._lock:
            if self._probes or self._inbox or self._notified:
                return 0.0
        due_s = self._schedule.next_due_s()
        return None if due_s is None else max(0.0, due_s - self._clock.monotonic_s())

    def _take(self) -> list[ScheduleEvent]:
        with self._lock:
            notified: list[ScheduleEvent] = [Notified(*each) for each in self._notified.items()]
            self._notified.clear()
            events = [self._inbox.popleft() for _ in range(min(len(self._inbox), EVENTS_AT_ONCE_MAX))]
        return notified + events

    def _step(self, event: ScheduleEvent) -> None:
        """Carry out what the event leads to, and what that leads to at once, in order."""
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
                turned_away = self._running.submit(iteration)
                return IterationRejected(turned_away.number) if turned_away else None
            case CancelIteration(number):
                over = self._running.cancel(number)
                return IterationEnded(number, error=Canceled("cancelled before it ran")) if over else None
            case ShardStarted() | ShardStopped() | Reports() | Seen() | VerifyAnswered():
                self.reports.publish(effect)
            case _:
                assert_never(effect)
        return None

    @property
    def _running(self) -> Executor:
        if self._executor is None:
            raise InvariantBroken("the scheduler was not started")
        return self._executor

    def _answer(self, probe: Probe) -> ProbeAnswered:
        try:
            state = probe_source(self._probe, probe.uri, probe.seen)
            targets = self._probe_targets(probe.targets) if probe.targets else ()
            further = self._probe_further(probe.further) if probe.further else ()
            return ProbeAnswered(probe.shard, probe.uri, state, None, targets, further)
        except IscpError as error:
            return ProbeAnswered(probe.shard, probe.uri, None, error)
        except Exception as error:
            log.exception("probe.broke", extra={"table": probe.uri})
            return ProbeAnswered(probe.shard, probe.uri, None, IscpError(f"{type(error).__name__}: {error}"))

    def _probe_further(self, queries: Sequence[FurtherQuery]) -> tuple[FurtherAnswer, ...]:
        """Of those that have moved, or cannot be reached."""
        answers = []
        for query in queries:
            try:
                seen, prober = query.seen, self._probe
                state = prober.first_probe(query.uri) if seen is None else prober.probe(query.uri, seen)
                if state is not seen:
                    answers.append(FurtherAnswer(query.uri, state))
            except Exception as error:  # noqa: BLE001  (one table's fault is that of its jobs)
                log.warning("further_table.unreachable", extra={"table": query.uri, "error": str(error)})
                answers.append(FurtherAnswer(query.uri, None))
        return tuple(answers)

    def _probe_targets(self, queries: Sequence[TargetQuery]) -> tuple[TargetAnswer, ...]:
        """Of the targets that have moved, or are in doubt."""
        answers = []
        for query in queries:
            try:
                seen = self._targets.probe(query.row, query.seen)
                if seen is not query.seen:
                    answers.append(TargetAnswer(query.row.job_id, seen))
            except Exception as error:  # noqa: BLE001  (one target's fault is its own)
                why = error if isinstance(error, IscpError) else IscpError(f"{type(error).__name__}: {error}")
                about = {"table": query.row.table_name, "job": query.row.key.job_name, "job_id": query.row.job_id}
                log.warning("target.doubted", extra=about | {"error": str(why)})
                answers.append(TargetAnswer(query.row.job_id, None, why))
        return tuple(answers)
