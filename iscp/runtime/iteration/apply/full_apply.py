"""Brings jobs to a version of the source by all of its rows: as a snapshot, or by what differs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from iscp.core.build.build_terms import NO_TERMS, BuildTerms
from iscp.core.job.iteration import DataType, JobOutcome
from iscp.core.job.logged_jobs import logged_job
from iscp.core.values.errors import IscpError
from iscp.core.values.watermark import NOTHING_APPLIED
from iscp.ports.range_builder import RangeBuilt
from iscp.ports.rows import LateFrame
from iscp.ports.sink import Manifest
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.work_timer import count_work, leave_to_spark
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.apply.change_reader import Snapshot
from iscp.runtime.iteration.apply.range_build import RunningBuild, go_on, remove_build, request_build
from iscp.runtime.iteration.job_run import JobRun, log_rebuild
from iscp.runtime.iteration.job_spans import read_attributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


def apply_full_to_all(run: ApplyRun, works: list[JobRun], reason: str = "") -> list[JobOutcome]:
    return run.run_each(works, lambda job_run: apply_full(run, job_run, reason))


def apply_full(run: ApplyRun, job_run: JobRun, reason: str = "") -> JobOutcome:
    """Apply a snapshot or a difference: all rows of the source at one version. `reason`: why changes do not do."""
    source, uri = run.ports.source, run.uri
    if (built := job_run.consumer.range_built) is not None and job_run.data_type is DataType.SNAPSHOT:
        done = go_on(run, job_run, partial(_publish, run, job_run, built))
        if done is not None:
            return done
    span = _span(run, job_run)
    goes_on = job_run.data_type is not DataType.SNAPSHOT
    if goes_on:
        read_policy.refuse_rebuild(job_run.row.spec, job_run.position, span, lambda: _applied_at_s(run, job_run))
    if job_run.row.spec.enable_cdf and not span.cdf_on:
        span = _enable_source_cdf(run, span)
    if goes_on:
        read_policy.refuse_cdf_off(job_run.row.spec, span)
    job_run.kind.columns(job_run.row.spec.consumer, source.columns(uri, span.to.version))  # refuses what is gone
    read_policy.refuse_collated(job_run.row.spec, span)
    with run.ports.engine.session() as session:
        return _rebuild(run, session, job_run, span, reason)


def _publish(
    run: ApplyRun, job_run: JobRun, built: RangeBuilt, build: RunningBuild, manifests: Sequence[Manifest]
) -> JobOutcome | None:
    with run.ports.engine.session() as session:
        context = run.ports.context(session, job_run, build.span, run.guard)
        retriever = run.retriever(DataType.SNAPSHOT, job_run, build.span, NOTHING_APPLIED)
        consumed = built.publish(context, manifests, retriever)
        if consumed is None:
            return None
        warning = read_policy.warning(job_run.row.spec, build.span)
        return run.committed(job_run, consumed, DataType.SNAPSHOT, NOTHING_APPLIED, warning)


def _span(run: ApplyRun, job_run: JobRun) -> SourceRange:
    """Return the empty range at the version to which the job is to be brought."""
    source, uri, to_version = run.ports.source, run.uri, None
    if job_run.data_type is DataType.SNAPSHOT:
        to_version = run.iteration.to_version
    try:
        return source.newest(uri) if to_version is None else source.at(uri, to_version)
    except ChangesUnavailableError:
        return source.newest(uri)


def _rebuild(run: ApplyRun, session: SparkSession, job_run: JobRun, span: SourceRange, reason: str) -> JobOutcome:
    """Claim the sink where it is not the job's, and hand it all rows of `span`'s last version."""
    uri, rebuilt_for = run.uri, log_rebuild(job_run, run.uri)
    from_nothing = job_run.data_type is DataType.SNAPSHOT or not job_run.kind.needs.compares
    if from_nothing and len(run.meter.iteration.jobs) == 1 and not job_run.row.conditions:
        run.meter.note_snapshot(partial(run.ports.source.size, uri, span.to.version))
    with run.ports.tracer.span("iscp.read", read_attributes(uri, span, "snapshot")):
        rows = _open_snapshot(run, session, job_run, span)
    if job_run.position.job_id != job_run.row.job_id:
        # Before anything is written: what a former registration has under way fails at the sink from here on.
        job_run = replace(
            job_run,
            position=job_run.consumer.claim(run.ports.context(session, job_run, span, run.guard), _columns(rows)),
        )
    if from_nothing and (waits := _request_build(run, session, job_run, span, rows)) is not None:
        return waits
    data_type = DataType.SNAPSHOT if from_nothing else DataType.DIFFERENCE
    from_version = NOTHING_APPLIED if from_nothing else job_run.position.watermark.version
    retriever = run.retriever(data_type, job_run, span, from_version, rows=rows)
    run.ports.failpoints.reach("snapshot.before")
    reason = "" if job_run.data_type is DataType.SNAPSHOT else reason or job_run.position.void
    if reason:
        log.warning("changes.unavailable", extra=logged_job(job_run.row, uri) | {"reason": reason})
    warning = read_policy.warning(job_run.row.spec, span, reason, rebuilt_for)
    _count_read(run, span, rows)
    done = run.consume(session, job_run, retriever, span, warning, reason or rebuilt_for)
    remove_build(job_run)
    return done


def _request_build(
    run: ApplyRun, session: SparkSession, job_run: JobRun, span: SourceRange, rows: Snapshot
) -> JobOutcome | None:
    """Request a build if the consumer takes ranges, as `request_build` does."""
    if (built := job_run.consumer.range_built) is None or rows.small is not None:
        return None

    def agree() -> BuildTerms | None:
        context = run.ports.context(session, job_run, span, run.guard)
        return NO_TERMS if built.takes_ranges(context, rows.make_frame()) else None

    return request_build(run, job_run, span, agree)


def _open_snapshot(run: ApplyRun, session: SparkSession, job_run: JobRun, span: SourceRange) -> Snapshot:
    """Open the rows at the range's last version.

    They are in memory if they are few and the consumer takes them; Spark then opens nothing.
    """
    source, uri, version = run.ports.source, run.uri, span.to.version
    small = source.small_snapshot(uri, version) if job_run.kind.needs.small_snapshots else None
    if small is not None:
        return Snapshot(partial(source.snapshot, session, uri, version), small)
    leave_to_spark(f"all rows of {uri} are read by Spark", unless_known=True)
    frame = source.snapshot(session, uri, version)
    return Snapshot(lambda: frame)


def _count_read(run: ApplyRun, span: SourceRange, rows: Snapshot) -> None:
    """Count the rows of a snapshot, which Spark reads only while they are written."""
    if rows.small is not None:
        count_work(rows_read=len(rows.small.rows), bytes_read=rows.small.bytes)
        return
    with suppress(IscpError):  # of a table that only Spark opens nobody knows the size
        size = run.ports.source.size(run.uri, span.to.version)
        count_work(rows_read=size.rows, bytes_read=size.bytes)


def _columns(rows: Snapshot) -> DataFrame:
    """Return a frame of the rows' columns, which are known of few rows without it."""
    return rows.make_frame() if rows.small is None else LateFrame(rows.small.schema, rows.make_frame).as_frame()


def _enable_source_cdf(run: ApplyRun, span: SourceRange) -> SourceRange:
    """Switch the source's change data feed on, and go on from there: what comes next can be read from it."""
    source, uri = run.ports.source, run.uri
    newest = source.newest(uri)  # a range in the past, of a time before the feed was on, stays as it is
    if newest.cdf_on:
        return span
    # This commits to the source itself, which no seq protects.
    run.guard.check()
    with run.ports.engine.session() as session:
        source.enable_feed(session, uri)
    log.info("feed.enabled", extra={"table": uri})
    return source.newest(uri)


def _applied_at_s(run: ApplyRun, job_run: JobRun) -> float:
    """Return when the last version that was applied was committed, as the log has it now; 0 if it is gone."""
    try:
        return run.ports.source.at(run.uri, job_run.position.watermark.version).to.at_s
    except ChangesUnavailableError:
        return 0.0
