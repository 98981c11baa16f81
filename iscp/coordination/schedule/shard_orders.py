"""Carry out what the worker machine orders of shards: start, update, stop, and postpone iterations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from iscp.coordination.protocol.effects import HoldIterations, StartShard, StopAllShards, StopShard, UpdateShard
from iscp.coordination.protocol.events import ShardStarted, ShardStopped
from iscp.coordination.schedule import table_visits
from iscp.coordination.schedule.schedule_state import ScheduleState
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.tracked_job import TrackedJob
from iscp.core.job.job_row import JobReport, JobRow
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.ids import ShardId


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
    table_visits.bring_back(state, table)


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
