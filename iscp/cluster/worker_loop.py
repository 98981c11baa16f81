"""The worker's side of a node: the loop that drives the worker machine, between the owner and the scheduler, and the
answers to the owner's calls.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, assert_never

from iscp.cluster.builds.builder_loop import BuildWorkerLoop
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.api.api_requests import EventView, LogPage, LogQuery
from iscp.model.job.iteration import JobMaintenance, exact_entry, exact_report
from iscp.model.job.start_rule import VerifyReport, VerifyRequest
from iscp.model.protocol.events import (
    CheckElection,
    ElectionChecked,
    FromOwner,
    HoldIterations,
    LeaseEnded,
    LeaseRegained,
    Reports,
    Seen,
    SendToOwner,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
    WorkerEffect,
    WorkerEvent,
)
from iscp.model.protocol.messages import NodeMessage, OwnerMessage, exact_seen
from iscp.model.values.errors import IscpError, TimedOut, Unavailable
from iscp.model.values.ids import ShardId
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import error_text, shown
from iscp.ports.cluster import BuildAnswer, Election
from iscp.ports.engine import NodeLog
from iscp.ports.system import Clock
from iscp.schedule.maintenance import Maintenance
from iscp.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn, WorkerNews
from iscp.schedule.scheduler import Scheduler
from iscp.system.inbox import Inbox, Subscriptions, Turns

# --- the loop ---------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Await:
    """Set `done` as soon as `true` holds for the machine."""

    true: Callable[[WorkerMachine], bool]
    done: threading.Event


@dataclass(frozen=True, slots=True)
class _OwnerHeard:
    """An `_OwnerHeard` is what the owner sent together."""

    messages: Sequence[OwnerMessage]


class WorkerLoop:
    """One thread for the machine, one more for the check of the election key, which may take etcd's time-out.

    `orders`: who carries out what the machine wants done with shards.
    """

    def __init__(
        self,
        new_machine: Callable[[int], WorkerMachine],
        election: Election,
        clock: Clock,
        send: Callable[[str, NodeMessage], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._new_machine = new_machine
        self._machine: WorkerMachine | None = None
        self.orders = Subscriptions()
        self._election = election
        self._clock = clock
        self._send = send
        self.quarantined = 0
        """Reports, entries of the history and probes of sources that were dead-lettered."""
        self._checks = ThreadPoolExecutor(1, "iscp-election-check")
        self._awaited: list[_Await] = []
        turns: Turns[WorkerEvent | _Await | _OwnerHeard] = Turns(
            self._take, lambda: self._take(Tick()), self._next_due_s
        )
        self._inbox = Inbox("iscp-worker", clock, turns, on_broken)

    @property
    def owner_id(self) -> str:
        """Return the owner that is obeyed; empty before there is one."""
        return self._machine.owner_id if self._machine else ""

    def start(self, epoch: int) -> None:
        """Start the loop; `epoch` is the registration's, and nothing that came before counts."""
        self._machine = self._new_machine(epoch)
        self._inbox.start()

    def wait_synced(self, wait_s: float) -> bool:
        """Wait until an owner knows what this node runs; False if none does in time."""
        return self._wait(lambda machine: machine.synced, wait_s)

    def wait_handed_over(self, wait_s: float) -> bool:
        """Wait until this node runs nothing any more; False if it still does then."""
        return self._wait(lambda machine: not machine.shards, wait_s)

    def flush(self, wait_s: float) -> bool:
        """Wait until the owner has recorded all that was reported; False if it does not in time."""
        return self._wait(lambda machine: not (machine.outbox.gathered or machine.outbox.chunks), wait_s)

    def _wait(self, true: Callable[[WorkerMachine], bool], wait_s: float) -> bool:
        awaited = _Await(true, threading.Event())
        self._inbox.post(awaited)
        # Given up, it stays listed until it holds; only the start and the stop of a node wait here.
        return awaited.done.wait(wait_s)

    def close(self) -> None:
        self._inbox.close()
        self._checks.shutdown(wait=False, cancel_futures=True)

    def receive(self, messages: Sequence[OwnerMessage]) -> None:
        """Raises QueueFull where the loop does not keep up: the owner repeats what was not confirmed."""
        self._inbox.put(_OwnerHeard(messages))

    def report(self, news: WorkerNews) -> None:
        """Take what the schedule reports.

        Reports that cannot be believed are dead-lettered: no checkpoint could carry them, nor what is behind them.
        """
        match news:
            case Reports(shard, reports, history):
                exact = self._exact(exact_report, reports), self._exact(exact_entry, history)
                self._inbox.post(Reports(shard, *exact))
            case Seen(seen):
                for each in self._exact(exact_seen, [seen]):
                    self._inbox.post(Seen(each))
            case _:
                self._inbox.post(news)

    def _exact(self, check: Callable[[V], V], items: Sequence[V]) -> tuple[V, ...]:
        found: list[V] = []
        for item in items:
            try:
                found.append(check(item))
            except ValueError as error:
                self.quarantined += 1
                log.error("report.quarantined", extra={"item": shown(item), "error": error_text(error)})
        return tuple(found)

    def on_lease_lost(self) -> None:
        self._inbox.post(LeaseEnded())

    def on_lease_regained(self, epoch: int) -> None:
        self._inbox.post(LeaseRegained(epoch))

    def _next_due_s(self) -> float | None:
        return self._machine.next_due_s() if self._machine else None

    def _take(self, event: WorkerEvent | _Await | _OwnerHeard) -> None:
        machine = self._machine
        if machine is None:
            return
        match event:
            case _Await():
                self._awaited.append(event)
            case _OwnerHeard(messages):
                for message in messages:
                    self._step(machine, FromOwner(message))
            case _:
                self._step(machine, event)
        for awaited in [each for each in self._awaited if each.true(machine)]:
            self._awaited.remove(awaited)
            awaited.done.set()

    def _step(self, machine: WorkerMachine, event: WorkerEvent) -> None:
        for effect in machine.step(event, self._clock.monotonic_s()):
            self._carry_out(effect)

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case SendToOwner(owner_id, message):
                self._send(owner_id, message)
            case CheckElection():
                self._checks.submit(self._check_election)
            case StartShard() | UpdateShard() | StopShard() | StopAllShards() | HoldIterations():
                self.orders.publish(effect)
            case _:
                assert_never(effect)

    def _check_election(self) -> None:
        try:
            leader = self._election.leader()
        except IscpError as error:
            log.warning("election.unreadable", extra={"error": str(error)})
            leader = None
        self._inbox.post(ElectionChecked(leader))


# --- comparisons ------------------------------------------------------------------------------------------------------

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether the caller of a comparison is still there."""


class VerifyDesk:
    """Has callers wait who have requested a comparison, until the node that runs the table has answered.

    `send` brings an event to the scheduler of the node that runs the shard, and never waits; what that answers comes
    back through `answer`, on any thread.
    """

    def __init__(self, send: Callable[[VerifyRequested | VerifyWithdrawn], None], clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._waiting: dict[str, Future[VerifyReport]] = {}
        self._lock = threading.Lock()

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        """Wait for the answer; given up, and the work with it, after `timeout_s` or when `alive` says so.

        Raises TimedOut, Unavailable, and what the comparison has raised.
        """
        request = VerifyRequest(uuid.uuid4().hex, shard, job_id, repair)
        future: Future[VerifyReport] = Future()
        with self._lock:
            self._waiting[request.verify_id] = future
        try:
            self._send(VerifyRequested(request))
            return self._wait_for(future, timeout_s, alive)
        finally:
            with self._lock:
                del self._waiting[request.verify_id]
            if not future.done():
                self._send(VerifyWithdrawn(shard, request.verify_id))

    def answer(self, answer: VerifyAnswered) -> None:
        with self._lock:
            future = self._waiting.get(answer.verify_id)
        if future is None or future.done():
            return
        if isinstance(answer.answer, VerifyReport):
            future.set_result(answer.answer)
        else:
            future.set_exception(answer.answer)

    def _wait_for(self, future: Future[VerifyReport], timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            left_s = until_s - self._clock.monotonic_s()
            try:
                return future.result(max(0.0, min(left_s, ALIVE_LOOK_S)))
            except TimeoutError:
                # The answer came in the very moment in which the wait ended.
                if future.done():
                    continue
            if left_s <= 0:
                raise TimedOut(
                    f"the comparison did not end within {timeout_s:.3g} s, and was given up",
                    remedy="Allow more time. Whether a repair was committed says `iscp-admin job history`",
                )
            if not alive():
                raise Unavailable("the comparison was given up: the node stops, or the caller is gone")


# --- the owner's calls ------------------------------------------------------------------------------------------------


class LocalCalls:
    """The port `NodeCalls` on this node's scheduler: the owner's calls to a node, answered by this one.

    `former_events` gives what it retains of all terms but the given ones, `counts` what the node's parts count.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        desk: VerifyDesk,
        maintenance: Maintenance,
        progress: Callable[[str], RunProgress | None],
        node_log: NodeLog,
        build_worker: BuildWorkerLoop,
        former_events: Callable[[Sequence[int]], list[EventView]],
        counts: Callable[[], dict[str, int]],
    ) -> None:
        self._scheduler = scheduler
        self._desk = desk
        self._maintenance = maintenance
        self._progress = progress
        self._node_log = node_log
        self._build_worker = build_worker
        self._former_events = former_events
        self._counts = counts

    def notify(self, shard: ShardId, targets: bool) -> None:
        self._scheduler.notify(shard, targets)

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        self._scheduler.interrupt(shard, job_id, spec_json)

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        return self._desk.verify(shard, job_id, repair, timeout_s, alive)

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        return self._build_worker.work_on_build_tasks(owner_rev, range_id, task_ids, answered)

    def maintenance(self, job_id: str) -> JobMaintenance:
        return self._maintenance.figures(job_id)

    def progress(self, job_id: str) -> RunProgress | None:
        return self._progress(job_id)

    def counters(self) -> dict[str, int]:
        return self._counts()

    def events(self, known: Sequence[int]) -> list[EventView]:
        return self._former_events(known)

    def logs(self, query: LogQuery) -> LogPage:
        return self._node_log.read(query)
