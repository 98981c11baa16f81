"""Say in a sentence what decides when a job's next iteration starts: from its status and its spec alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from typing import assert_never

from iscp.cli.shell import render
from iscp.core.api.api_views import JobView, PlacedShard
from iscp.core.job.job_row import JobState, Reason
from iscp.core.spec.cron_schedule import parse_cron
from iscp.core.spec.spec import JobSpec, TriggerType
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.values.errors import PERMANENT_FROM, InvalidRequest


def next_start(job: JobView, now_s: float) -> str:
    """Return when and why the next iteration starts, in words. `now_s`: Unix seconds."""
    if job.reason is Reason.PAUSED:
        return _why_not(job)
    if job.reason is Reason.BUILDING:
        return "when the ranges of its first snapshot are built, which all nodes do"
    if job.state is JobState.RUNNING:
        return "an iteration is running"
    if job.state is JobState.PENDING:
        return "an iteration is queued, and starts when the node has a free slot"
    if job.state is JobState.ERROR and job.status.error_code >= PERMANENT_FROM:
        return "not before `iscp-admin job resume`, update or resync: the error is permanent"
    if job.reason in (Reason.RETRYING, Reason.QUARANTINED) and job.status.retry_at_s:
        return f"{render.next_retry(job.status, now_s)}; `iscp-admin job resume` retries now"
    if job.reason is Reason.QUARANTINED:
        return "a retry every backoff.quarantine_s, after many failures in a row; `iscp-admin job resume` retries now"
    if job.reason is Reason.RETRYING:
        return "a retry with growing pauses (backoff.*); `iscp-admin job resume` retries now"
    if not job.node_id:
        return "when a node has been given the table"
    if job.applied_version < 0:
        return "at once: the first iteration does not wait for the trigger"
    try:
        return _by_trigger(job, parse_spec(job.spec_json), now_s) + _by_time(job.status.due_at_s, now_s)
    except InvalidRequest as error:
        return f"never: the spec cannot be read: {error.sentence}"


def _why_not(job: JobView) -> str:
    """Return why a job that is paused starts nothing."""
    if not job.status.deletion:
        return "not before `iscp-admin job resume`: the job is paused"
    failed = job.state is JobState.ERROR
    return f"never: its target {'was not deleted, as its error says' if failed else 'is being deleted'}"


def _by_trigger(job: JobView, spec: JobSpec, now_s: float) -> str:
    if job.status.waits_for:
        return f"at {render.moment(job.status.waits_until_s)} at the latest; it waits for {job.status.waits_for}"
    outstanding = job.source_version > job.applied_version or job.lag_least_s > 0
    change = (
        "now, as the source is ahead" if outstanding else f"at the source's next commit after {job.applied_version}"
    )
    match spec.trigger.job_type:
        case TriggerType.DEFAULT if not spec.independent:
            return f"{change}, together with the table's other default jobs (trigger default)"
        case TriggerType.DEFAULT:
            return f"{change}, in an iteration of its own (trigger default, independent)"
        case TriggerType.GREEDY:
            return f"{change}, in an iteration of its own (trigger greedy)"
        case TriggerType.CUSTOM:
            when = "now" if outstanding else "once the source is ahead"
            return f"when the trigger {spec.trigger.name!r} says so; it is called {when}"
        case TriggerType.PERIODIC:
            if spec.trigger.cron:
                return _by_cron(spec, outstanding, now_s)
            return _by_period(spec, job.status.end_at_s, outstanding, now_s)
        case _:
            assert_never(spec.trigger.job_type)


def _by_time(due_at_s: float, now_s: float) -> str:
    if not due_at_s:
        return ""
    when = f"at {render.moment(due_at_s)} " if due_at_s > now_s else ""
    return f"; and {when}as time passes, on which its rows depend"


def _by_cron(spec: JobSpec, outstanding: bool, now_s: float) -> str:
    trigger = spec.trigger
    schedule = parse_cron(trigger.cron, trigger.time_zone)
    when = f"at {render.moment(schedule.next_after(now_s))}" + (
        "" if outstanding else ", if the source is ahead by then"
    )
    return f"{when} (trigger periodic, by cron {trigger.cron!r} in {schedule.time_zone})"


def _by_period(spec: JobSpec, last_s: float, outstanding: bool, now_s: float) -> str:
    interval_s = spec.trigger.interval_s or 0.0
    by_clock = spec.trigger.share and interval_s > 0
    due_s = (floor(last_s / interval_s) + 1) * interval_s if by_clock else last_s + interval_s
    when = "now" if due_s <= now_s else f"at {render.moment(due_s)}"
    if not outstanding:
        when = "at the source's next commit" if due_s <= now_s else f"not before {render.moment(due_s)}"
    shared = ", together with others that share it" if spec.trigger.share else ""
    return f"{when} (trigger periodic, every {render.seconds(interval_s)}{shared})"


def warnings_of(job: JobView, shards: Sequence[PlacedShard]) -> list[str]:
    """Return what of a job needs attention, the gravest first."""
    return list(_warnings(job, shards))


def _warnings(job: JobView, shards: Sequence[PlacedShard]) -> Iterator[str]:
    status = job.status
    if status.error_code:
        yield f"error {status.error_code}: {status.error_msg}"
    if status.doubted_at_s:
        yield f"whether the target holds what was applied to it is not known since {render.moment(status.doubted_at_s)}"
    if job.late:
        yield f"late: it lags by {render.lag_text(job.lag_s, job.lag_least_s)}, more than its target lag"
    if job.may_lose_history:
        retained, lag = render.seconds(job.retained_s), render.lag_text(job.lag_s, job.lag_least_s)
        yield f"its sources retain what was removed for {retained}, and it lags by {lag}: it may have to read all rows"
    if not job.node_id:
        yield "no node holds the table"
    if status.dead_letters:
        yield f"{render.dead_letters(job)}, and are left out of the target (dead-lettered)"
    if status.warning:
        yield status.warning
    for name, figures in (("refresh", job.upkeep.refresh), ("purge", job.upkeep.purge)):
        if figures is not None and figures.error_code:
            yield f"the last {name} failed with error {figures.error_code}: {figures.error_msg}"
    for shard in shards:
        if shard.why:
            yield f"range {shard.range_id} is on {shard.node_id or 'no node'} and not on {shard.target}: {shard.why}"
