"""Decide what runs on this node, and when: which sources are probed, which iterations start, when a shard has really
stopped.

The machine is pure: events in, effects out, time and random numbers passed in. `now_s` is monotonic, and everything
that is due goes by it; `at_s` is Unix time, and is only reported. The rule `iscp.model.job.start_rule` decides what
starts; this machine decides when the rule is evaluated. Cost: a step touches one table, a Tick only tables that are
due, and at most `due_max` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import assert_never

from iscp.model.job.iteration import JobOutcome, Purpose
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.job.start_rule import ProbeState, VerifyRequest, decide
from iscp.model.protocol.events import (
    HoldIterations,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
)
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.values.errors import ErrorCode, InvariantBroken, IscpError
from iscp.model.values.ids import ShardId
from iscp.schedule.iteration_outcomes import (
    InFlightIteration,
    InFlightIterations,
    ScheduleState,
    ScheduleTimes,
    Settlement,
    announcement,
    apply_triggers,
)
from iscp.schedule.maintenance_turns import not_here
from iscp.schedule.probes import ProbeDeadlines
from iscp.schedule.schedule_events import (
    Interrupted,
    IterationEnded,
    IterationRejected,
    IterationStarted,
    JobCommitted,
    Notified,
    ProbeAnswered,
    ProbeLate,
    ScheduleEffect,
    ScheduleEvent,
    Submit,
    VerifyRequested,
    VerifyWithdrawn,
)
from iscp.schedule.table_state import TrackedTable
from iscp.schedule.tracked_job import EvaluateTrigger, TrackedJob, no_triggers

# --- visits to a table ------------------------------------------------------------------------------------------------
# What starts, whether the table's source is probed, and when the table is visited next.


def bring_back(state: ScheduleState, table: TrackedTable) -> None:
    table.bring_back(state.probe, state.now_s)
    visit(state, table)


def visit(state: ScheduleState, table: TrackedTable) -> None:
    """Start what can start, probe the source if it is due, and set when to visit it next."""
    if not table.jobs or (state.stopping and table.shard in state.stopping):
        state.due.clear(table)
        return
    if table.deletes:
        _start_deleting(state, table)
    if table.unreachable:
        state.report(table, table.fault_reports(state.at_s))
        state.due.clear(table)
        return
    retry_at_s = table.retry_at_s()
    if table.wake or retry_at_s <= state.now_s:
        _start_iterations(state, table)
        retry_at_s = table.retry_at_s()
    if not table.probing and table.probe_at_s <= state.now_s:
        state.out.append(table.begin_probe(state.now_s))
        state.probes_out.note(table, state.now_s)
    due_s = retry_at_s if table.probing else min(table.probe_at_s, retry_at_s)
    if table.probing and due_s == inf:
        state.due.clear(table)
    else:
        state.due.set(table, due_s, state.now_s)


def _start_iterations(state: ScheduleState, table: TrackedTable) -> None:
    news = apply_triggers(table, state.evaluate_trigger, state.backoff, state.now_s, state.at_s, state.draw)
    state.report(table, news)
    table.wake = state.postponed is not None
    if state.postponed is not None:
        state.postponed[table] = None
        return
    _start_verifying(state, table, served=False)
    jobs = [job for job in table.jobs if job.runnable and not state.in_flight.verifying(job)]
    candidates = [job.candidate(state.now_s) for job in jobs]
    for start in decide(candidates, table.newest):
        _submit(state, table, [jobs[index] for index in start.jobs], start.to_version)
    _start_verifying(state, table, served=True)


def _start_deleting(state: ScheduleState, table: TrackedTable) -> None:
    """Have targets deleted whose jobs end, whatever is known of the source; what ran of these jobs ends first."""
    for job in [job for job in table.jobs if job.ends_with_target and not job.in_flight]:
        if job.retry_at_s > state.now_s:
            table.waiting = True
            continue
        job.retry_at_s = 0.0
        if state.postponed is not None:
            state.postponed[table] = None
        else:
            _submit(state, table, [job], None, Purpose.DELETE)


def _start_verifying(state: ScheduleState, table: TrackedTable, served: bool) -> None:
    for job in table.jobs if state.verify_queue else ():
        if not job.in_flight and not job.row.deletion and state.verify_queue.is_awaited(job.row.job_id, served):
            purpose = state.verify_queue.begin(job.row.job_id, state.in_flight.next_number())
            _submit(state, table, [job], None, purpose)


def _submit(
    state: ScheduleState,
    table: TrackedTable,
    jobs: list[TrackedJob],
    to_version: int | None,
    purpose: Purpose = Purpose.APPLY,
) -> None:
    if purpose is Purpose.APPLY:
        state.verify_queue.note_applied(job.row.job_id for job in jobs)
    deadline_s = table.deadline_s(jobs, state.now_s, state.at_s)
    iteration = state.in_flight.begin(table, jobs, to_version, deadline_s, state.now_s, purpose)
    state.out.append(Submit(iteration))


# --- orders of shards -------------------------------------------------------------------------------------------------
# What the worker machine orders is carried out: start, update, stop, and postpone iterations.


def carry_out(
    state: ScheduleState, event: StartShard | UpdateShard | StopShard | StopAllShards | HoldIterations
) -> None:
    match event:
        case StartShard(shard, _, jobs, epoch):
            if shard in state.stopping:
                raise InvariantBroken(f"shard {shard} is started while it is stopping")
            state.in_flight.epoch = epoch  # what was started under a former one is stopping by now
            _take_jobs(state, shard, jobs)
            state.out.append(ShardStarted(shard))
        case UpdateShard(shard, _, jobs):
            if shard in state.shards and shard not in state.stopping:
                _take_jobs(state, shard, jobs)
        case StopShard(shard):
            _stop(state, shard)
        case StopAllShards():
            for shard in list(state.shards):
                _stop(state, shard)
        case HoldIterations(hold):
            _hold(state, hold)
        case _:
            assert_never(event)


def _hold(state: ScheduleState, hold: bool) -> None:
    postponed, state.postponed = state.postponed, (state.postponed or {}) if hold else None
    for table in postponed if postponed and not hold else ():
        if table.jobs and table.shard not in state.stopping:
            state.due.set(table, state.now_s, state.now_s)


def _take_jobs(state: ScheduleState, shard: ShardId, rows: Iterable[JobRow]) -> None:
    """Exactly `rows` are the shard's jobs from now on; a copy of a table has its id, but another URI."""
    by_uri: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.drop_at_s is None:
            by_uri.setdefault(row.table_uri, []).append(row)
    for table in state.shards.setdefault(shard, ()):
        _replace_jobs(state, table, by_uri.pop(table.uri, []))
    for uri, added in by_uri.items():
        table = TrackedTable(shard, uri)
        state.shards[shard] += (table,)
        _replace_jobs(state, table, added)
    forget_empty(state, shard)


def _replace_jobs(state: ScheduleState, table: TrackedTable, rows: list[JobRow]) -> None:
    before = {job.row.key: job for job in table.jobs}
    jobs: list[TrackedJob] = []
    corrections: list[JobReport] = []
    for row in rows:
        job = before.get(row.key)
        if job is not None and job.row.job_id == row.job_id:
            del before[row.key]
            changed = row.spec_json != job.row.spec_json
            corrections += [report for report in [job.take(row, state.backoff)] if report]
            state.cancel(state.in_flight.take_outdated(job))
            if row.deletion:
                state.cancel(state.in_flight.before_deletion(job))
                state.out += state.verify_queue.give_up(row.job_id)
        else:
            changed, job = True, TrackedJob(row, state.backoff)
            # A job that was registered again waits until its former registration's iteration has really ended.
            job.in_flight = state.in_flight.of_job(table, row.key)
            corrections += [report for report in [job.correction()] if report]
        if changed:
            job.go_by_spec(state.now_s, state.at_s)
        jobs.append(job)
    table.jobs = tuple(jobs)
    for gone in before.values():
        state.cancel(gone.in_flight)
        state.out += state.verify_queue.give_up(gone.row.job_id)
    table.update_target_lag()
    state.report(table, corrections)
    if table.jobs and table.seen is None and table.top >= 0:
        table.seen = ProbeState(table.top)
    bring_back(state, table)


def _stop(state: ScheduleState, shard: ShardId) -> None:
    if shard in state.stopping:
        return
    state.stopping.add(shard)
    tables = state.shards.get(shard, ())
    for job in (job for table in tables for job in table.jobs):
        state.out += state.verify_queue.give_up(job.row.job_id)
    for table in tables:
        state.due.clear(table)
        if state.postponed:
            state.postponed.pop(table, None)
    # The last first: what still waits must not run in a slot that one before it leaves.
    for number in sorted({job.in_flight for table in tables for job in table.jobs}, reverse=True):
        state.cancel(number)
    finish_stop(state, shard)


def finish_stop(state: ScheduleState, shard: ShardId) -> None:
    if not any(table.in_flight for table in state.shards.get(shard, ())):
        state.shards.pop(shard, None)
        state.stopping.discard(shard)
        state.out.append(ShardStopped(shard))


def forget_empty(state: ScheduleState, shard: ShardId) -> None:
    state.shards[shard] = tuple([table for table in state.shards[shard] if table.jobs or table.in_flight])


# --- the machine ------------------------------------------------------------------------------------------------------
# Rules of probes, reports and stops:
#
# - A source is probed every `interval_min_s`, and ever more rarely while it is idle; a change, a notify or a change of
#   its jobs brings it back. After an iteration it is probed at once.
# - `pending` and `running` are reported only of iterations that are not over after `announce_s`: most are, and the log
#   would otherwise take three rows for one.
# - A shard has stopped when its last iteration has ended and its outcome is reported, not when that was ordered.


class Schedule:
    """Invariants: a job is in one iteration at most; every table that has jobs and no Probe out has a due time.

    `draw` gives random numbers, uniform in [0, 1); `evaluate_trigger` has to answer at once.
    """

    def __init__(
        self,
        node_id: str,
        probe: ProbeConfig,
        backoff: BackoffConfig,
        draw: Callable[[], float],
        pacing: ScheduleTimes | None = None,
        evaluate_trigger: EvaluateTrigger = no_triggers,
    ) -> None:
        pacing = pacing or ScheduleTimes()
        flights = InFlightIterations(pacing.announce_s)
        out = ProbeDeadlines(probe.timeout_s)
        self._state = ScheduleState(node_id, probe, backoff, draw, pacing, evaluate_trigger, flights, out)

    @property
    def probe_timeout_s(self) -> float:
        return self._state.probe.timeout_s

    def step(self, event: ScheduleEvent, now_s: float, at_s: float) -> list[ScheduleEffect]:
        """Return what to do about `event`, in this order. Raises InvariantBroken."""
        state = self._state
        state.now_s, state.at_s, state.out = max(now_s, state.now_s), at_s, []
        match event:
            case ProbeAnswered():
                self._take_answer(event)
            case ProbeLate(shard, uri, why):
                self._hold_table(shard, uri, why)
            case Tick():
                self._tick()
            case Notified(shard, targets):
                self._notify_shard(shard, targets)
            case Interrupted(shard, job_id, spec_json):
                self._interrupt_job(shard, job_id, spec_json)
            case VerifyRequested(request):
                self._verify(request)
            case VerifyWithdrawn(_, verify_id):
                state.cancel(state.verify_queue.withdraw(verify_id))
            case IterationStarted(number):
                state.in_flight.note_started(number, state.now_s, state.at_s)
            case JobCommitted(outcome):
                self._record_commit(outcome)
            case IterationEnded(number, outcomes, error):
                self._end_iteration(number, outcomes, error)
            case IterationRejected(number):
                self._end_iteration(number, (), IscpError("the queue is full", code=ErrorCode.QUEUE_FULL))
            case _:
                carry_out(state, event)
        return state.out

    def next_due_s(self) -> float | None:
        """Return when the next Tick is due, or None if none is."""
        state = self._state
        due = state.due.next_due_s(), state.in_flight.next_due_s(), state.probes_out.next_due_s()
        return min((due_s for due_s in due if due_s is not None), default=None)

    def _interrupt_job(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        state = self._state
        for job in (job for table in state.shards.get(shard, ()) for job in table.jobs if job.row.job_id == job_id):
            job.awaited_spec = spec_json
            state.cancel(state.in_flight.take_outdated(job))

    def _notify_shard(self, shard: ShardId, targets: bool) -> None:
        state = self._state
        for table in state.shards.get(shard, ()):
            if targets:
                table.doubt_targets()
            for job in table.jobs:
                job.look_for_build()
                job.note_notice(state.now_s)
            bring_back(state, table)

    def _probed_table(self, shard: ShardId, uri: str) -> TrackedTable | None:
        """None: it is not probed now, or on no account any more."""
        state = self._state
        for table in state.shards.get(shard, ()):
            if table.uri == uri:
                return table if table.probing and not (state.stopping and shard in state.stopping) else None
        return None

    def _hold_table(self, shard: ShardId, uri: str, why: str) -> None:
        """Start nothing of the table, and let its lag grow, until the probe is answered."""
        state = self._state
        if (table := self._probed_table(shard, uri)) is not None:
            table.overdue = True
            state.report(table, table.note_fault(why, state.at_s))
            visit(state, table)
            state.report_seen(table)

    def _take_answer(self, event: ProbeAnswered) -> None:
        state = self._state
        if (table := self._probed_table(event.shard, event.uri)) is None:
            return
        table.note_answer(event.state, event.further, state.now_s, state.at_s)
        if event.further:
            table.take_further(event.further, state.probe)
        if event.targets:
            state.report(table, table.take_targets(event.targets, state.at_s))
        if event.state is None:
            message = str(event.error or "no answer")
            table.note_unreachable(state.backoff, state.now_s, state.draw())
            state.report(table, table.note_fault(message, state.at_s))
        elif event.state is table.seen and not table.fault and not table.again:
            # All that an idle table costs besides the probe itself.
            if not table.rested:
                table.note_seen(state.now_s)
            table.rest(state.probe, state.now_s, state.draw())
            visit(state, table)
            lately = state.now_s - table.reported_s < state.seen_every_s(table)
            if event.further or not lately or table.reported is None or table.reported.unreached:
                state.report_seen(table)
            return
        else:
            table.take_state(event.state, state.probe, state.now_s, state.draw())
            table.heed_move(state.backoff, state.now_s)
            state.report(table, table.recovery_reports())
        visit(state, table)
        state.report_seen(table)

    def _tick(self) -> None:
        state = self._state
        for _ in range(state.pacing.due_max):
            table = state.due.pop(state.now_s)
            if table is None:
                break
            visit(state, table)
        for _ in range(state.pacing.due_max):
            run = state.in_flight.pop_due(state.now_s)
            if run is None:
                break
            state.report(run.table, announcement(run))
        for _ in range(state.pacing.due_max):
            late = state.probes_out.pop_late(state.now_s)
            if late is None:
                break
            if self._probed_table(late.shard, late.uri) is late:
                late.overdue = True
                state.report_seen(late)
                state.probes_out.note(late, state.now_s)  # it is said again while that lasts, as owners change

    def _verify(self, request: VerifyRequest) -> None:
        state = self._state
        for table in state.shards.get(request.shard, ()) if request.shard not in state.stopping else ():
            if any(job.row.job_id == request.job_id and not job.row.deletion for job in table.jobs):
                state.verify_queue.put(request)
                table.wake = True
                visit(state, table)
                return
        state.out.append(not_here(request))

    def _record_commit(self, outcome: JobOutcome) -> None:
        """Reported at once: a caller that waits for the job need not wait for the others of its iteration."""
        state = self._state
        for table in state.shards.get(outcome.row.key.shard, ()):
            for job in table.jobs:
                run = state.in_flight.get(job.in_flight) if job.row.job_id == outcome.row.job_id else None
                if run is not None:
                    settlement = Settlement(state.node_id, state.backoff, run, state.now_s, state.at_s)
                    settlement.settle(job, outcome, state.draw())
                    run.settled.add(job.row.job_id)
                    state.report(table, settlement.reports, settlement.history)

    def _end_iteration(self, number: int, outcomes: tuple[JobOutcome, ...], error: IscpError | None) -> None:
        state = self._state
        run = state.in_flight.end(number)
        if run is None:
            return
        table = run.table
        self._settle(run, {outcome.row.job_id: outcome for outcome in outcomes}, error)
        state.out += state.verify_queue.answers(number, outcomes, error)
        if table.shard in state.stopping:
            finish_stop(state, table.shard)
            return
        bring_back(state, table)
        state.report_seen(table)
        forget_empty(state, table.shard)

    def _settle(self, run: InFlightIteration, outcomes: dict[str, JobOutcome], error: IscpError | None) -> None:
        state = self._state
        settlement = Settlement(state.node_id, state.backoff, run, state.now_s, state.at_s)
        settlement.settle_all(outcomes, error, state.draw)
        state.report(run.table, settlement.reports, settlement.history)
