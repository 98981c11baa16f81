"""When what runs on this node: which sources are asked, which iterations start, when a shard has really stopped.

A pure machine: events in, effects out, time and random numbers passed in. `now_s` is monotonic, and everything that
is due goes by it; `at_s` is Unix time, and is only reported. What starts is decided by `core.trigger`; when it is
asked is decided here. Cost: a step touches one table, a Tick only tables that are due, and at most `due_max` of them.

- A source is asked every `interval_min_s`, and ever more rarely while it is idle; a change, a notify or a change of
  its jobs brings it back. After an iteration it is asked at once.
- `pending` and `running` are reported only of iterations that are not over after `announce_s`: most are, and the
  log would otherwise take three rows for one.
- A shard has stopped when its last iteration has ended and its outcome is reported, not when that was ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import assert_never

from iscp.coordination.protocol.effects import HoldIterations, StartShard, StopAllShards, StopShard, UpdateShard
from iscp.coordination.protocol.events import Reports, Seen, ShardStarted, ShardStopped, Tick
from iscp.coordination.schedule.due_tables import DueTables
from iscp.coordination.schedule.in_flight import InFlightIteration, InFlightIterations, announcement
from iscp.coordination.schedule.iteration_outcomes import Settlement, apply_triggers
from iscp.coordination.schedule.schedule_events import (
    CancelIteration,
    Interrupted,
    IterationEnded,
    IterationRejected,
    IterationStarted,
    JobCommitted,
    Notified,
    ProbeAnswered,
    ScheduleEffect,
    ScheduleEvent,
    Submit,
    VerifyAsked,
    VerifyWithdrawn,
)
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.tracked_job import TrackedJob
from iscp.coordination.schedule.trigger_timing import AskTrigger, no_triggers
from iscp.coordination.schedule.verify_queue import VerifyAsks, not_here
from iscp.core.config import BackoffConfig, ProbeConfig
from iscp.core.errors import ErrorCode, InvariantBroken, IscpError
from iscp.core.ids import ShardId
from iscp.core.iteration import HistoryEntry, JobOutcome, Purpose
from iscp.core.job_row import JobReport, JobRow
from iscp.core.start_rule import ProbeState, decide
from iscp.core.verification import VerifyAsk


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """How often the schedule reports, and how much one of its steps does."""

    announce_s: float = 1.0
    """Time after which an iteration is reported as pending or running; most are over before."""

    seen_every_s: float = 60.0
    """Least time between two reports that a source has not moved."""

    due_max: int = 1_000
    """Due tables that one Tick looks at; the next one goes on with the others."""


class Schedule:
    """Invariants: a job is in one flight at most; every table that has jobs and no Probe out has a due time.

    `draw` gives random numbers, uniform in [0, 1); `ask_trigger` has to answer at once.
    """

    def __init__(
        self,
        node_id: str,
        probe: ProbeConfig,
        backoff: BackoffConfig,
        draw: Callable[[], float],
        times: ScheduleTimes | None = None,
        ask_trigger: AskTrigger = no_triggers,
    ) -> None:
        self._node_id = node_id
        self._probe = probe
        self._backoff = backoff
        self._draw = draw
        self._ask_trigger = ask_trigger
        self._times = times or ScheduleTimes()
        self._shards: dict[ShardId, list[TrackedTable]] = {}
        self._due = DueTables()
        self._stopping: set[ShardId] = set()
        self._flights = InFlightIterations(self._times.announce_s)
        self._asks = VerifyAsks()
        self._held: dict[TrackedTable, None] | None = None
        self._now_s = 0.0
        self._at_s = 0.0
        self._out: list[ScheduleEffect] = []

    def step(self, event: ScheduleEvent, now_s: float, at_s: float) -> list[ScheduleEffect]:
        """What to do about `event`, in this order. Raises InvariantBroken."""
        self._now_s, self._at_s, self._out = max(now_s, self._now_s), at_s, []
        match event:
            case ProbeAnswered():
                self._take_answer(event)
            case Tick():
                self._tick()
            case Notified(shard, targets):
                self._notify_shard(shard, targets)
            case Interrupted(shard, job_id, spec_json):
                self._interrupt_job(shard, job_id, spec_json)
            case VerifyAsked(ask):
                self._verify(ask)
            case VerifyWithdrawn(_, ask_id):
                self._cancel(self._asks.withdraw(ask_id))
            case IterationStarted(number):
                self._flights.note_started(number, self._now_s, self._at_s)
            case JobCommitted(outcome):
                self._record_commit(outcome)
            case IterationEnded(number, outcomes, error):
                self._end_iteration(number, outcomes, error)
            case IterationRejected(number):
                self._end_iteration(number, (), IscpError("the queue is full", code=ErrorCode.QUEUE_FULL))
            case _:
                self._order(event)
        return self._out

    def next_due_s(self) -> float | None:
        """When the next Tick is due; None while nothing is."""
        announce_s = self._flights.next_due_s()
        return min((due_s for due_s in (self._due.next_due_s(), announce_s) if due_s is not None), default=None)

    # --- orders of the worker ----------------------------------------------------------------------------------

    def _order(self, event: StartShard | UpdateShard | StopShard | StopAllShards | HoldIterations) -> None:
        match event:
            case StartShard(shard, _, jobs, epoch):
                if shard in self._stopping:
                    raise InvariantBroken(f"shard {shard} is started while it is stopping")
                self._flights.epoch = epoch  # what was started under a former one is stopping by now
                self._take_jobs(shard, jobs)
                self._out.append(ShardStarted(shard))
            case UpdateShard(shard, _, jobs):
                if shard in self._shards and shard not in self._stopping:
                    self._take_jobs(shard, jobs)
            case StopShard(shard):
                self._stop(shard)
            case StopAllShards():
                for shard in list(self._shards):
                    self._stop(shard)
            case HoldIterations(hold):
                self._hold(hold)
            case _:
                assert_never(event)

    def _hold(self, hold: bool) -> None:
        held, self._held = self._held, (self._held or {}) if hold else None
        for table in held if held and not hold else ():
            if table.jobs and table.shard not in self._stopping:
                self._due.set(table, self._now_s, self._now_s)

    def _take_jobs(self, shard: ShardId, rows: Iterable[JobRow]) -> None:
        """Exactly `rows` are the shard's jobs from now on; a copy of a table has its id, but another URI."""
        by_uri: dict[str, list[JobRow]] = {}
        for row in rows:
            if row.drop_at_s is None:
                by_uri.setdefault(row.table_uri, []).append(row)
        tables = self._shards.setdefault(shard, [])
        for table in tables:
            self._replace_jobs(table, by_uri.pop(table.uri, []))
        for uri, added in by_uri.items():
            table = TrackedTable(shard, uri)
            tables.append(table)
            self._replace_jobs(table, added)
        self._forget_empty(shard)

    def _replace_jobs(self, table: TrackedTable, rows: list[JobRow]) -> None:
        before = {job.row.key: job for job in table.jobs}
        table.jobs = []
        corrections: list[JobReport] = []
        for row in rows:
            job = before.get(row.key)
            if job is not None and job.row.job_id == row.job_id:
                del before[row.key]
                changed = row.spec_json != job.row.spec_json
                corrections += [report for report in [job.take(row, self._backoff)] if report]
                self._cancel(self._flights.take_outdated(job))
            else:
                changed, job = True, TrackedJob(row, self._backoff)
                # A job made anew waits until its former registration's iteration has really ended.
                job.flight = self._flights.of_job(table, row.key)
                corrections += [report for report in [job.correction()] if report]
            if changed:
                job.go_by_spec(self._now_s, self._at_s)
            table.jobs.append(job)
        for gone in before.values():
            self._cancel(gone.flight)
            self._out += self._asks.give_up(gone.row.job_id)
        table.update_target_lag()
        self._report(table, corrections)
        if table.jobs and table.seen is None and table.top >= 0:
            table.seen = ProbeState(table.top)
        self._bring_back(table)

    def _stop(self, shard: ShardId) -> None:
        if shard in self._stopping:
            return
        self._stopping.add(shard)
        tables = self._shards.get(shard, [])
        for job in (job for table in tables for job in table.jobs):
            self._out += self._asks.give_up(job.row.job_id)
        for table in tables:
            self._due.clear(table)
            if self._held:
                self._held.pop(table, None)
        # The last first: what still waits must not run in a slot that one before it leaves.
        for number in sorted({job.flight for table in tables for job in table.jobs}, reverse=True):
            self._cancel(number)
        self._finish_stop(shard)

    def _finish_stop(self, shard: ShardId) -> None:
        if not any(table.flights for table in self._shards.get(shard, ())):
            self._shards.pop(shard, None)
            self._stopping.discard(shard)
            self._out.append(ShardStopped(shard))

    def _forget_empty(self, shard: ShardId) -> None:
        self._shards[shard] = [table for table in self._shards[shard] if table.jobs or table.flights]

    def _cancel(self, number: int) -> None:
        flight = self._flights.get(number)
        if flight is not None and not flight.canceled:
            flight.canceled = True
            self._out.append(CancelIteration(number))

    def _interrupt_job(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        for job in (job for table in self._shards.get(shard, ()) for job in table.jobs if job.row.job_id == job_id):
            job.awaited_spec = spec_json
            self._cancel(self._flights.take_outdated(job))

    def _report(self, table: TrackedTable, reports: Sequence[JobReport], history: Sequence[HistoryEntry] = ()) -> None:
        if reports or history:
            self._out.append(Reports(table.shard, tuple(reports), tuple(history)))

    # --- noticing ----------------------------------------------------------------------------------------------

    def _notify_shard(self, shard: ShardId, targets: bool) -> None:
        for table in self._shards.get(shard, ()):
            if targets:
                table.doubt_targets()
            self._bring_back(table)

    def _bring_back(self, table: TrackedTable) -> None:
        table.bring_back(self._probe, self._now_s)
        self._visit(table)

    def _take_answer(self, event: ProbeAnswered) -> None:
        for table in self._shards.get(event.shard, ()):
            if table.uri == event.uri:
                break
        else:
            return
        if not table.asked or (self._stopping and event.shard in self._stopping):
            return
        table.asked = False
        if event.state is not None:
            table.note_probe_time()
        if event.targets:
            self._report(table, table.take_looks(event.targets, self._at_s))
        if event.state is None:
            message = str(event.error or "no answer")
            table.note_unreachable(self._backoff, self._now_s, self._draw())
            self._report(table, table.fault_reports(message, self._at_s))
        elif event.state is table.seen and not table.fault and not table.again:
            # All that an idle table costs beside the look itself.
            table.rest(self._probe, self._now_s, self._draw())
            self._visit(table)
            told = table.reported
            if told is None or not 0 <= self._at_s - told.checked_at_s < self._times.seen_every_s:
                self._report_seen(table)
            return
        else:
            table.take_state(event.state, self._probe, self._now_s, self._draw())
            table.heed_move(self._backoff, self._now_s)
            self._report(table, table.recovery_reports())
        self._visit(table)
        self._report_seen(table)

    def _report_seen(self, table: TrackedTable) -> None:
        news = table.report_seen(self._at_s, self._times.seen_every_s)
        if news is not None:
            self._out.append(Seen(news))

    # --- due times ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for _ in range(self._times.due_max):
            table = self._due.pop(self._now_s)
            if table is None:
                break
            self._visit(table)
        for _ in range(self._times.due_max):
            flight = self._flights.pop_due(self._now_s)
            if flight is None:
                break
            self._report(flight.table, announcement(flight))

    def _visit(self, table: TrackedTable) -> None:
        """Start what can start, ask what is to be asked, and set when to look again."""
        if not table.jobs or (self._stopping and table.shard in self._stopping):
            self._due.clear(table)
            return
        retry_at_s = table.retry_at_s()
        if table.wake or retry_at_s <= self._now_s:
            self._start_iterations(table)
            retry_at_s = table.retry_at_s()
        if not table.asked and table.probe_at_s <= self._now_s:
            self._out.append(table.ask(self._at_s))
        due_s = retry_at_s if table.asked else min(table.probe_at_s, retry_at_s)
        if table.asked and due_s == inf:
            self._due.clear(table)
        else:
            self._due.set(table, due_s, self._now_s)

    # --- running -----------------------------------------------------------------------------------------------

    def _start_iterations(self, table: TrackedTable) -> None:
        news = apply_triggers(table, self._ask_trigger, self._backoff, self._now_s, self._at_s, self._draw)
        self._report(table, news)
        table.wake = self._held is not None
        if self._held is not None:
            self._held[table] = None
            return
        self._start_verifying(table, served=False)
        jobs = [job for job in table.jobs if job.runnable and not self._flights.verifying(job)]
        candidates = [job.candidate(self._now_s) for job in jobs]
        for start in decide(candidates, table.newest):
            self._submit(table, [jobs[index] for index in start.jobs], start.to_version)
        self._start_verifying(table, served=True)

    def _start_verifying(self, table: TrackedTable, served: bool) -> None:
        for job in table.jobs if self._asks else ():
            if not job.flight and self._asks.is_awaited(job.row.job_id, served):
                purpose = self._asks.begin(job.row.job_id, self._flights.next_number())
                self._submit(table, [job], None, purpose)

    def _submit(
        self, table: TrackedTable, jobs: list[TrackedJob], to_version: int | None, purpose: Purpose = Purpose.APPLY
    ) -> None:
        if purpose is Purpose.APPLY:
            self._asks.note_applied(job.row.job_id for job in jobs)
        deadline_s = table.deadline_s(jobs, self._at_s)
        iteration = self._flights.begin(table, jobs, to_version, deadline_s, self._now_s, purpose)
        self._out.append(Submit(iteration))

    def _verify(self, ask: VerifyAsk) -> None:
        for table in self._shards.get(ask.shard, ()) if ask.shard not in self._stopping else ():
            if any(job.row.job_id == ask.job_id for job in table.jobs):
                self._asks.put(ask)
                table.wake = True
                self._visit(table)
                return
        self._out.append(not_here(ask))

    def _record_commit(self, outcome: JobOutcome) -> None:
        """Tell of it at once: whoever waits for the job need not wait for the others of its iteration."""
        for table in self._shards.get(outcome.row.key.shard, ()):
            for job in table.jobs:
                flight = self._flights.get(job.flight) if job.row.job_id == outcome.row.job_id else None
                if flight is not None:
                    settlement = Settlement(self._node_id, self._backoff, flight, self._now_s, self._at_s)
                    settlement.settle(job, outcome, self._draw())
                    flight.settled.add(job.row.job_id)
                    self._report(table, settlement.reports, settlement.history)

    def _end_iteration(self, number: int, outcomes: tuple[JobOutcome, ...], error: IscpError | None) -> None:
        flight = self._flights.end(number)
        if flight is None:
            return
        table = flight.table
        self._settle(flight, {outcome.row.job_id: outcome for outcome in outcomes}, error)
        self._out += self._asks.answers(number, outcomes, error)
        if table.shard in self._stopping:
            self._finish_stop(table.shard)
            return
        self._bring_back(table)
        self._report_seen(table)
        self._forget_empty(table.shard)

    def _settle(self, flight: InFlightIteration, outcomes: dict[str, JobOutcome], error: IscpError | None) -> None:
        settlement = Settlement(self._node_id, self._backoff, flight, self._now_s, self._at_s)
        settlement.settle_all(outcomes, error, self._draw)
        self._report(flight.table, settlement.reports, settlement.history)
