"""Decide what runs on this node, and when: which sources are probed, which iterations start, when a shard has really
stopped.

The machine is pure: events in, effects out, time and random numbers passed in. `now_s` is monotonic, and everything
that is due goes by it; `at_s` is Unix time, and is only reported. The rule `core.start_rule` decides what starts; this
machine decides when the rule is evaluated. Cost: a step touches one table, a Tick only tables that are due, and at most
`due_max` of them.

- A source is probed every `interval_min_s`, and ever more rarely while it is idle; a change, a notify or a change of
  its jobs brings it back. After an iteration it is probed at once.
- `pending` and `running` are reported only of iterations that are not over after `announce_s`: most are, and the
  log would otherwise take three rows for one.
- A shard has stopped when its last iteration has ended and its outcome is reported, not when that was ordered.
"""

from __future__ import annotations

from collections.abc import Callable

from iscp.coordination.protocol.events import Tick
from iscp.coordination.schedule import shard_orders, table_visits
from iscp.coordination.schedule.in_flight import InFlightIteration, InFlightIterations, announcement
from iscp.coordination.schedule.iteration_outcomes import Settlement
from iscp.coordination.schedule.probe_deadlines import ProbeDeadlines
from iscp.coordination.schedule.schedule_events import (
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
    VerifyRequested,
    VerifyWithdrawn,
)
from iscp.coordination.schedule.schedule_state import ScheduleState, ScheduleTimes
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.trigger_timing import EvaluateTrigger, no_triggers
from iscp.coordination.schedule.verify_queue import not_here
from iscp.core.job.iteration import JobOutcome
from iscp.core.job.verification import VerifyRequest
from iscp.core.settings.config import BackoffConfig, ProbeConfig
from iscp.core.values.errors import ErrorCode, IscpError
from iscp.core.values.ids import ShardId


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
                shard_orders.carry_out(state, event)
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
            table_visits.bring_back(state, table)

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
            table_visits.visit(state, table)
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
            table_visits.visit(state, table)
            lately = state.now_s - table.reported_s < state.seen_every_s(table)
            if event.further or not lately or table.reported is None or table.reported.unreached:
                state.report_seen(table)
            return
        else:
            table.take_state(event.state, state.probe, state.now_s, state.draw())
            table.heed_move(state.backoff, state.now_s)
            state.report(table, table.recovery_reports())
        table_visits.visit(state, table)
        state.report_seen(table)

    def _tick(self) -> None:
        state = self._state
        for _ in range(state.pacing.due_max):
            table = state.due.pop(state.now_s)
            if table is None:
                break
            table_visits.visit(state, table)
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
                table_visits.visit(state, table)
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
            shard_orders.finish_stop(state, table.shard)
            return
        table_visits.bring_back(state, table)
        state.report_seen(table)
        shard_orders.forget_empty(state, table.shard)

    def _settle(self, run: InFlightIteration, outcomes: dict[str, JobOutcome], error: IscpError | None) -> None:
        state = self._state
        settlement = Settlement(state.node_id, state.backoff, run, state.now_s, state.at_s)
        settlement.settle_all(outcomes, error, state.draw)
        state.report(run.table, settlement.reports, settlement.history)
