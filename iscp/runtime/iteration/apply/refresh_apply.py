"""Brings jobs on whose consumers read their tables themselves: each by itself, to one version of each table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from iscp.core.job.iteration import DataType, JobOutcome
from iscp.core.job.logged_jobs import logged_job
from iscp.core.values.errors import PermanentError
from iscp.core.values.exact_watermarks import exact_watermark
from iscp.core.values.watermark import NOTHING_APPLIED, Position, SourceMark, SourceMarks, Watermark, later
from iscp.ports.range_builder import RangeRefreshed
from iscp.ports.refreshing import Refreshed, RefreshOrder
from iscp.ports.sink import Manifest
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.work_timer import count_work, leave_to_spark
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.apply.position_renewal import renew_position
from iscp.runtime.iteration.apply.range_build import RunningBuild, go_on, remove_build, request_build
from iscp.runtime.iteration.job_outcomes import longest_parts, refreshed
from iscp.runtime.iteration.job_run import JobRun, log_rebuild

log = logging.getLogger(__name__)

FIRST_BUILD = "the first build"


def apply_refresh_to_each(run: ApplyRun, works: list[JobRun]) -> list[JobOutcome]:
    """Refresh each of `works`, whose kinds read for themselves; they share nothing."""
    return run.run_each(works, lambda job_run: _apply_refresh(run, job_run))


def _apply_refresh(run: ApplyRun, job_run: JobRun) -> JobOutcome:
    consumer, ports, uri = job_run.consumer, run.ports, run.uri
    assert consumer.refresh is not None  # the run is here by it
    if (ranged := consumer.range_refreshed) is not None and job_run.data_type is DataType.SNAPSHOT:
        published = go_on(run, job_run, partial(_publish, run, job_run, ranged))
        if published is not None:
            return published
    span = _find_version(run, job_run)
    exact_watermark(span.to)  # a commit may say any time of itself
    full = (
        FIRST_BUILD
        if job_run.data_type is DataType.SNAPSHOT
        else job_run.position.void or _find_replaced(run, job_run, span)
    )
    rebuilt_for = log_rebuild(job_run, uri)
    with ports.engine.session() as session:
        ports.failpoints.reach("read.before")
        run.guard.check()
        if full:
            leave_to_spark(f"all rows are computed ({full})")
        if job_run.position.job_id != job_run.row.job_id:
            # This is so for all rebuilds: what a former registration has under way fails at the sink from here on.
            frame = ports.source.snapshot(session, uri, span.to.version)
            job_run = replace(job_run, position=consumer.claim(ports.context(session, job_run, span, run.guard), frame))
        context, order = (
            ports.context(session, job_run, span, run.guard),
            RefreshOrder(span, run.bounds, full, run.iteration.ends),
        )
        if full == FIRST_BUILD and ranged is not None:
            waits = request_build(run, job_run, span, lambda: ranged.range_terms(context, order))
            if waits is not None:
                return waits
        if full:
            ports.failpoints.reach("snapshot.before")
        done = consumer.refresh(context, order)
    ports.failpoints.reach("report.before")
    outcome = _report(run, job_run, span, done, full, rebuilt_for)
    remove_build(job_run)
    return outcome


def _publish(
    run: ApplyRun, job_run: JobRun, ranged: RangeRefreshed, build: RunningBuild, manifests: Sequence[Manifest]
) -> JobOutcome | None:
    """Publish what is computed from the staged ranges; return None if it does not make up the rows."""
    ports, span = run.ports, build.span
    exact_watermark(span.to)
    if (terms := build.ranges.terms()) is None:
        return None
    with ports.engine.session() as session:
        run.guard.check()
        context, order = ports.context(session, job_run, span, run.guard), RefreshOrder(span, run.bounds, FIRST_BUILD)
        done = ranged.publish_ranges(context, order, manifests, terms)
    if done is None:
        return None
    ports.failpoints.reach("report.before")
    return _report(run, job_run, span, done, FIRST_BUILD, "")


def _report(
    run: ApplyRun, job_run: JobRun, span: SourceRange, done: Refreshed, full: str, rebuilt_for: str
) -> JobOutcome:
    if not done.committed:
        return _unmoved(run, job_run, span, done)
    from_version = job_run.position.watermark.version
    data_type = DataType.SNAPSHOT if full == FIRST_BUILD else DataType.DIFFERENCE if full else DataType.TAIL
    count_work(rows_read=done.rows_in, bytes_read=done.bytes_in)
    warning = read_policy.warning_of_refresh(done, rebuilt_for)
    outcome = run.with_usage(refreshed(job_run.row, done, data_type, from_version, warning))
    about = {"seq": outcome.seq, "strategy": outcome.strategy, "reason": outcome.strategy_reason, "rows": outcome.rows}
    log.info("refresh.done", extra=logged_job(job_run.row, run.uri) | about | longest_parts([outcome]))
    run.on_committed(outcome)
    job_run.consumer.tidy()
    return outcome


def _unmoved(run: ApplyRun, job_run: JobRun, span: SourceRange, done: Refreshed) -> JobOutcome:
    """Return the outcome of a refresh that wrote nothing.

    What the tables have committed since has no rows, and only the marks move, in memory.
    """
    found = refreshed(job_run.row, done, DataType.TAIL, NOTHING_APPLIED, done.warning)
    if found.waits_for:  # it has not come to what is there
        span = replace(span, to=later(job_run.row.watermark, found.watermark))
    marks = {**job_run.position.sources, **found.sources}
    own = SourceMark(span.table_id, later(job_run.position.watermark, span.to))
    position = replace(job_run.position, sources={**marks, run.uri: own})
    outcome = renew_position(run.ports, run.guard, replace(job_run, position=position), span)
    outcome = replace(outcome, due_at_s=found.due_at_s, warning=found.warning)
    return replace(outcome, waits_for=found.waits_for, wait_s=found.wait_s)


def _find_version(run: ApplyRun, job_run: JobRun) -> SourceRange:
    """Return the empty range at the version to which the job is to be brought.

    That is never before what the target shows: a job log that was restored, or is behind, may not know how far that is.
    """
    source, to_version = run.ports.source, run.iteration.to_version
    if to_version is None:
        return source.newest(run.uri)
    if job_run.data_type is not DataType.SNAPSHOT:
        to_version = max(to_version, job_run.position.watermark.version)
    try:
        return source.at(run.uri, to_version)
    except ChangesUnavailableError:
        return source.newest(run.uri)


def _find_replaced(run: ApplyRun, job_run: JobRun, span: SourceRange) -> str:
    """Return why no change says how the rows have become what they are: another table is in the place of one of them.

    Return an empty text if all tables are those that were read. Raises PermanentError if the job is not to follow that.
    """
    for uri, mark in _marks(run, job_run).items():
        now = span if uri == run.uri else run.ports.source.newest(uri)
        at = Position(watermark=mark.watermark, source_id=mark.table_id)
        applied_at_s = _commit_time(run, uri, mark.watermark)
        try:
            read_policy.refuse_rebuild(job_run.row.spec, at, now, lambda at_s=applied_at_s: at_s)  # type: ignore[misc]
        except PermanentError as error:
            if uri == run.uri:
                raise
            raise PermanentError(f"{uri}: {error}", remedy=error.remedy, code=error.code) from error
        lower = now.to.version < mark.watermark.version
        if lower or not read_policy.same_log([at], replace(now, from_at_s=applied_at_s)):
            return f"{uri} was replaced"
    return ""


def _marks(run: ApplyRun, job_run: JobRun) -> SourceMarks:
    """Return the mark of each table that the job reads.

    The position may know more of the job's own table: versions without a row need no commit.
    """
    position = job_run.position
    known = position.sources.get(run.uri)
    own = position.watermark if known is None else later(known.watermark, position.watermark)
    return {**position.sources, run.uri: SourceMark(position.source_id, own)}


def _commit_time(run: ApplyRun, uri: str, mark: Watermark) -> float:
    """Return when the version that was read last was committed, as the log has it now; 0 if it is gone."""
    try:
        return run.ports.source.at(uri, mark.version).to.at_s
    except ChangesUnavailableError:
        return 0.0
