"""Visiting a table: what starts, whether its source is probed, and when it is visited next."""

from __future__ import annotations

from math import inf

from iscp.coordination.schedule.iteration_outcomes import apply_triggers
from iscp.coordination.schedule.schedule_events import (
    Submit,
)
from iscp.coordination.schedule.schedule_state import ScheduleState
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.tracked_job import TrackedJob
from iscp.core.job.iteration import Purpose
from iscp.core.job.start_rule import decide


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
