"""A node's engine: the real schedule over a Spark that takes its time, hangs, fails, and commits when it should not.

Stands for `iscp/schedule/scheduler.py`, `executor.py` and `runner.py`. A run reads the sink's position
and the source, checks the guard and commits. What has passed the guard lands some time later, whatever becomes of its
process: that is the zombie which the sink's compare-and-set is for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from iscp.engine.iteration_ports import applied, record_failure, unchanged
from iscp.model.job.iteration import DataType, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import Reports, Seen, ShardStarted, ShardStopped, StartShard, StopAllShards, Tick
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.model.values.ids import ShardId
from iscp.model.values.watermark import Position, SourceMark, Watermark
from iscp.ports.consumer import Consumed
from iscp.ports.source import SourceRange
from iscp.schedule.iteration_outcomes import ScheduleTimes
from iscp.schedule.lag import FurtherAnswer
from iscp.schedule.schedule_events import (
    CancelIteration,
    IterationEnded,
    IterationStarted,
    JobCommitted,
    Notified,
    Probe,
    ProbeAnswered,
    ScheduleEvent,
    Submit,
    VerifyAnswered,
)
from iscp.schedule.schedule_machine import Schedule
from tests.simulation import poison
from tests.simulation.sources import Commit, Kind
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process

PROBE = ProbeConfig(interval_min_s=4.0, interval_max_s=6.0, timeout_s=5.0)
BACKOFF = BackoffConfig(base_s=0.5, cap_s=4.0, quarantine_after=50, quarantine_s=5.0)
TIMES = ScheduleTimes(seen_every_s=10_000.0, seen_per_lag=0.001)
"""In most runs idle sources are not reported, as that would be all that is sent in the end."""

TALKATIVE = ScheduleTimes(seen_every_s=3.0)

TIMEOUT_S = 8.0
LANDS_LATE_S = 15.0
BUSY_S = 12.0
"""Longer than a lease may be away and come back."""

LOOK_LATE_S = 3.0
WOKEN_S = 0.1
HANGS_S = 2.5 * PROBE.timeout_s
CONFLICT_TRIES_MAX = 3


class Engine:
    """`shards` are those taken in and not yet stopped; `condemned`: what they begin must never be committed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        times = TALKATIVE if process.world.trouble_drawn.talkative else TIMES
        self.schedule = Schedule(process.node_id, PROBE, BACKOFF, process.world.random.random, times)
        self.shards: set[ShardId] = set()
        self.condemned: set[ShardId] = set()
        self._epochs: dict[ShardId, int] = {}
        self._orders: deque[ScheduleEvent] = deque()
        self._runs: dict[int, Run] = {}
        self._waiting: deque[ScheduleEvent] = deque()
        self._busy = False
        self._tick_at_s = float("inf")
        # Of each shard: when it was probed last, and whether it is said that it cannot be.
        self._probed_s: dict[ShardId, float] = {}
        self._unreached: set[ShardId] = set()

    def notify(self, table: str) -> None:
        for shard in sorted(each for each in self.shards if each.table_id == table):
            self.give(Notified(shard))

    @property
    def has_orders(self) -> bool:
        return bool(self._orders)

    @property
    def writable(self) -> set[ShardId]:
        """What is taken in under the node's present epoch, and may commit while its lease is confirmed."""
        epoch = self._process.registration.record.epoch
        return {shard for shard in self.shards - self.condemned if self._epochs.get(shard) == epoch}

    def order(self, event: ScheduleEvent) -> None:
        """What the worker wants, in its order, and in some runs late: the scheduler has much to do."""
        self._orders.append(event)
        if len(self._orders) > 1:
            return
        if self._world.happens(self._world.trouble.busy):
            self._process.after(self._world.aside.random() * BUSY_S, self._take_orders)
        else:
            self._take_orders()

    def _take_orders(self) -> None:
        while self._orders:
            event = self._orders[0]
            if isinstance(event, StartShard):
                self._epochs[event.shard] = event.epoch
            self.give(event)
            self._orders.popleft()

    def give(self, event: ScheduleEvent) -> None:
        self._waiting.append(event)
        if self._busy:
            return
        self._busy = True
        while self._waiting:
            self._step(self._waiting.popleft())
        self._busy = False
        self._arrange_tick()

    def ended(self, run: Run, event: IterationEnded) -> None:
        del self._runs[run.iteration.number]
        self.give(event)

    def _step(self, event: ScheduleEvent) -> None:
        if isinstance(event, StopAllShards):
            self.condemned |= self.shards
        for effect in self.schedule.step(event, self._process.now_s, self._process.wall_s):
            match effect:
                case Probe(shard, uri, seen):
                    state, further = self._look(shard.table_id, seen), self.further(effect)
                    self._answer(ProbeAnswered(shard, uri, state, further=further))
                case Submit(iteration):
                    self._runs[iteration.number] = run = self._world.run_of(self._process, iteration)
                    self._waiting.append(IterationStarted(iteration.number))
                    run.begin()
                case CancelIteration(number):
                    self._runs[number].cancel()
                case ShardStarted(shard):
                    self.shards.add(shard)
                    self._process.worker.put(effect)
                case ShardStopped(shard):
                    self.shards.discard(shard)
                    self._unreached.discard(shard)
                    self.condemned.discard(shard)
                    self._process.worker.put(effect)
                case Reports():
                    self._process.worker.put(effect)
                case Seen(seen):
                    (self._unreached.add if seen.unreached else self._unreached.discard)(seen.shard)
                    self._process.worker.put(effect)
                case VerifyAnswered():
                    pass
                case _:
                    assert_never(effect)

    def _answer(self, answer: ProbeAnswered) -> None:
        """At once, when the source may have moved since, or when the storage hangs no more."""
        self._probed_s[answer.shard] = self._process.now_s
        if self._world.happens(self._world.trouble.unanswered):
            self._hang(answer, self._process.now_s, self._world.aside.random() * HANGS_S)
        elif self._world.happens(self._world.trouble.busy):
            self._process.after(self._world.aside.random() * LOOK_LATE_S, lambda: self.give(answer))
        else:
            self._waiting.append(answer)

    def _hang(self, answer: ProbeAnswered, since_s: float, left_s: float) -> None:
        """What a table says of itself while it is not probed is checked as the answer comes."""
        if left_s > 0.0 and not self._world.calm:
            self._process.after(1.0, lambda: self._hang(answer, since_s, left_s - 1.0))
            return
        # What was due while the process stood still comes in any order: this may be before the tick that says so.
        woken = self._process.world.agenda.now_s - self._process.went_on_s < WOKEN_S
        late = (
            not woken
            and self._process.now_s - since_s > PROBE.timeout_s + 1.0
            and self._probed_s[answer.shard] == since_s
        )
        expect(
            not late or answer.shard not in self.shards or answer.shard in self._unreached,
            "{} was not probed for long, and nobody said so",
            answer.shard,
        )
        self.give(answer)

    def further(self, probe: Probe) -> tuple[FurtherAnswer, ...]:
        """Of those that have moved."""
        found = [FurtherAnswer(each.uri, self._look(each.uri.removeprefix("/"), each.seen)) for each in probe.further]
        return tuple(
            answer for query, answer in zip(probe.further, found, strict=True) if answer.state is not query.seen
        )

    def _look(self, table: str, seen: ProbeState | None) -> ProbeState:
        version = self._world.sources[table]
        if seen is not None and seen.version == version and seen.stamp:
            return seen
        repair = self._world.newest_repair(seen.version, version) or seen.repair if seen is not None else 0
        made_at_s = self._world.made_at_s(table, seen.version + 1) if seen is not None else 0.0
        return ProbeState(version, b"%d" % version, made_at_s, repair)

    def _arrange_tick(self) -> None:
        due_s = self.schedule.next_due_s()
        if due_s is not None and due_s < self._tick_at_s:
            self._tick_at_s = due_s
            self._process.after(max(0.0, due_s - self._process.now_s) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._tick_at_s = float("inf")
        due_s = self.schedule.next_due_s()
        if due_s is not None and due_s <= self._process.now_s:
            self.give(Tick())
        else:
            self._arrange_tick()


class Run:
    """One iteration: its jobs one after the other. A run ends once, and when it was ordered to end it commits no more.

    The guard stands for `RunGuard`: what it lets through may land much later.
    """

    def __init__(self, process: Process, iteration: Iteration) -> None:
        self._process = process
        self._world = process.world
        self._random = process.world.random
        self.iteration = iteration
        self._left = deque(iteration.jobs)
        self._outcomes: list[JobOutcome] = []
        self._tries = 0
        self._step_number = 0
        self._landing = self._canceled = self._over = False
        self._due_s = process.now_s + TIMEOUT_S

    def begin(self) -> None:
        self._wait(self._random.random() * 0.05, self._next)

    def cancel(self) -> None:
        """The run's end was ordered: it ends when its thread does."""
        if self._over:
            return
        self._canceled = True
        if not self._landing:
            self._wait(0.01 + self._random.random() * 0.5, lambda: self._fail(ErrorCode.CANCELED))
        elif self._random.random() < self._world.trouble.zombie:
            # Spark says that the job was cancelled, and commits it all the same.
            self._wait(self._random.random() * 0.2, lambda: self._fail(ErrorCode.CANCELED))

    def _wait(self, delay_s: float, action: Callable[[], None]) -> None:
        """Go on with `action`, unless something else was decided before."""
        self._step_number += 1
        number = self._step_number

        def go_on() -> None:
            if number == self._step_number and not self._over:
                action()

        self._process.after(delay_s, go_on)

    def _next(self) -> None:
        if not self._left:
            self._end()
            return
        self.on_row(self._left[0])

    def on_row(self, row: JobRow) -> None:
        world, position = self._world, self.stand(row)
        if position.job_id > row.job_id:
            self._settle(failed(row, position, ErrorCode.SUPERSEDED))
        elif self._random.random() < world.trouble.fail:
            self._settle(failed(row, position, ErrorCode.STORAGE))
        elif world.happens(world.trouble.ruin):
            self._settle(failed(row, position, ErrorCode.SCHEMA_CHANGED))
        elif world.happens(world.trouble.poison):
            self._settle(record_failure(row, position, poison.error(world.aside)))
        elif position.job_id != row.job_id:
            claim = Commit(position.seq + 1, row.job_id, -1, -1, Kind.CLAIM, self._process.node_id)
            self._work(lambda: self.claim(row, claim))
        else:
            self._apply(row, position)

    def stand(self, row: JobRow) -> Position:
        """Where the sink says that it stands: neither memory nor the dispatch is believed."""
        return self._world.sink(row.key).position()

    def _apply(self, row: JobRow, position: Position) -> None:
        if self._world.further(row.key):
            self._refresh(row, position)
            return
        newest = self._world.sources[row.key.table_id]
        since, to = position.watermark.version, self.iteration.to_version
        to = newest if to is None else min(to, newest)
        if to <= since:
            self._settle(unchanged(row, position, SourceRange(since, position.watermark, row.key.table_id)))
            return
        kind = Kind.SNAPSHOT if since < 0 else Kind.TAIL
        commit = Commit(position.seq + 1, row.job_id, since, to, kind, self._process.node_id)
        self._work(lambda: self.commit(row, commit))

    def _refresh(self, row: JobRow, position: Position) -> None:
        """As `refresh_apply.py`: to one version of each table; where no row has changed only the marks move."""
        own, since = row.key.table_id, position.watermark.version
        tables = (own, *self._world.further(row.key))
        newest = {table: self._world.sources[table] for table in tables}
        if self.iteration.to_version is not None:
            newest[own] = max(since, min(newest[own], self.iteration.to_version))
        marks = {f"/{table}": SourceMark(table, self._mark(table, version)) for table, version in newest.items()}
        held = {table: mark.watermark.version for table in tables if (mark := position.sources.get(f"/{table}"))}
        if since >= 0 and all(self._world.covers(table, held.get(table, -1), newest[table]) for table in tables):
            there = replace(position, sources=marks)
            self._settle(unchanged(row, there, SourceRange(since, self._mark(own, newest[own]), own)))
            return
        kind = Kind.SNAPSHOT if since < 0 else Kind.TAIL
        writer = self._process.node_id
        commit = Commit(position.seq + 1, row.job_id, since, newest[own], kind, writer, position.sources, marks)
        self._work(lambda: self.commit(row, commit))

    def _mark(self, table: str, version: int) -> Watermark:
        return Watermark(version, self._world.committed_s(table, version))

    def _work(self, then: Callable[[], None]) -> None:
        """Spark computes, and sometimes never ends."""
        if self._random.random() < self._world.trouble.hang:
            self._wait(self._due_s - self._process.now_s, lambda: self._fail(ErrorCode.TIMEOUT))
        else:
            self._wait(0.02 + self._random.random() ** 3 * 1.5, then)

    def guard(self) -> ErrorCode:
        """What is checked right before a commit."""
        if self._canceled:
            return ErrorCode.CANCELED
        if self._process.now_s >= self._due_s:
            return ErrorCode.TIMEOUT
        return ErrorCode.OK if self._process.registration.confirms(self.iteration.epoch) else ErrorCode.LEASE_LOST

    def claim(self, row: JobRow, commit: Commit) -> None:
        """An empty commit under the new registration: what is under way for a former one has a used seq then."""
        sink = self._world.sink(row.key)

        def landed(taken: bool) -> None:
            if taken:
                self._next()
            else:
                self.conflict(row)

        def land() -> bool:
            if taken := sink.land(commit):
                sink.begun = max(sink.begun, row.job_id)
            return taken

        self.commit_by(row, sink.name, land, landed)

    def commit(self, row: JobRow, commit: Commit) -> None:
        sink = self._world.sink(row.key)

        def landed(taken: bool) -> None:
            if taken:
                self._settle(self._applied(row, commit), self.committed)
            else:
                self.conflict(row)

        self.commit_by(row, sink.name, lambda: sink.land(commit), landed)

    def commit_by(self, row: JobRow, name: str, land: Callable[[], bool], landed: Callable[[bool], None]) -> None:
        """Through the guard; `land` is then called some time later, and `landed` gets what it answered."""
        refused = self.guard()
        if refused:
            self._fail(refused)
            return
        process, world = self._process, self._world
        expect(process.registration.confirmed, "{} begins a commit to {} without a lease", process.node_id, name)
        over = self.iteration.epoch != process.registration.record.epoch
        expect(not over, "{} begins a commit to {} under an epoch that is over", process.node_id, name)
        expect(not self._canceled, "{} begins a commit to {} that was to end", process.node_id, name)
        self._landing = True
        self._step_number += 1
        number = self._step_number

        def answered(was_taken: bool) -> None:
            if number == self._step_number and not self._over:
                self._landing = False
                if self._canceled and not was_taken:
                    self._fail(ErrorCode.CANCELED)
                else:
                    landed(was_taken)

        def land_now() -> None:
            was_taken = land()
            world.note(process.node_id, f"lands in {name} for {row.job_id}: {was_taken}")
            process.after(0.0, lambda: answered(was_taken))

        process.after_in_spark(self._lag_s(), land_now)

    def _lag_s(self) -> float:
        if self._random.random() < self._world.trouble.zombie:
            return self._random.random() * LANDS_LATE_S
        return 0.002 + self._random.random() * 0.05

    def conflict(self, row: JobRow) -> None:
        self._tries += 1
        if self._tries < CONFLICT_TRIES_MAX:
            self._next()
        else:
            self._settle(failed(row, self.stand(row), ErrorCode.CONFLICT))

    def _applied(self, row: JobRow, commit: Commit) -> JobOutcome:
        """As the runner takes what a consumer answers, which may be one of others'."""
        world, position = self._world, self._world.sink(row.key).position()
        poisoned = world.happens(world.trouble.poison)
        consumed = poison.consumed(world.aside, position) if poisoned else Consumed(position, 1, 100)
        data_type = DataType.SNAPSHOT if commit.kind is Kind.SNAPSHOT else DataType.TAIL
        try:
            return self.outcome(row, consumed, data_type, commit.since)
        except Exception as error:  # noqa: BLE001  (as in `side_by_side.py`)
            expect(poisoned, "what was applied to {} cannot be known: {}", row.key, error)
            return record_failure(row, None, error)

    committed = JobCommitted

    def outcome(self, row: JobRow, consumed: Consumed, data_type: DataType, since: int) -> JobOutcome:
        return applied(row, consumed, data_type, since, "")

    def _settle(self, outcome: JobOutcome, told: Callable[[JobOutcome], ScheduleEvent] | None = None) -> None:
        """This job's part is over; on to the next."""
        self._left.popleft()
        self._tries = 0
        self._outcomes.append(outcome)
        if told is not None:
            self._process.engine.give(told(outcome))
        if not self._over:
            self._next()

    def _fail(self, code: ErrorCode) -> None:
        """What was not done is not done."""
        for row in self._left:
            self._outcomes.append(failed(row, None, code))
        self._left.clear()
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._process.engine.ended(self, IterationEnded(self.iteration.number, tuple(self._outcomes)))


def failed(row: JobRow, position: Position | None, code: ErrorCode) -> JobOutcome:
    return record_failure(row, position, IscpError(code.name.lower(), code=code))
