"""The ways to bring jobs on: by the changes since one watermark, by all rows of a version, or, for the first rows of a
large table, by a build in ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from iscp.engine import iteration_ports
from iscp.engine.apply_run import ApplyRun, Snapshot, renew_position, split_by_columns
from iscp.engine.iteration_ports import (
    JobRun,
    Netted,
    Reading,
    awaiting_build,
    log_rebuild,
    netted,
    read_attributes,
    record_failure,
)
from iscp.model.build.build_task import NO_TERMS, BuildRequest, BuildTerms, build_id, depth_for, tiling
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.registration_id import logged_job
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import IscpError, PermanentError, StorageError
from iscp.model.values.watermark import NOTHING_APPLIED, Watermark, exact_watermark
from iscp.ports.consumer import ByRanges, RangeBuilt, TablePlace
from iscp.ports.engine import count_work, leave_to_spark
from iscp.ports.sink import BuildEnd, Manifest, StagedRanges, StagedState
from iscp.ports.source import ChangeSet, ChangesUnavailableError, LateFrame, SourceRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- first snapshots that are built by ranges -------------------------------------------------------------------------
# One iteration requests the build, one publishes it. What is staged under the target decides, not what the job's row
# says: so a build goes on at another node, and under another owner, and one that was removed, or can never be whole, is
# replaced by one snapshot of all rows.

log = logging.getLogger(__name__)

PIECE_RANGES = 4
"""A file of more bytes than so many ranges are to have is cut by its row groups; a smaller one is read by one task."""


@dataclass(frozen=True, slots=True)
class RunningBuild:
    """A build that a job has requested, and what is staged of it by now. `span`: the source at that version."""

    request: BuildRequest
    span: SourceRange
    ranges: StagedRanges
    state: StagedState

    @property
    def whole(self) -> bool:
        return tiling(self.state.ranges).whole


def find_build(run: ApplyRun, job_run: JobRun) -> RunningBuild | None:
    """Return the build that the job has requested, or None if there is none, or its version is gone."""
    request, by_ranges = job_run.row.build, _by_ranges(job_run)
    if request is None or by_ranges is None:
        return None
    try:
        span = run.ports.source.at(run.uri, request.version)
    except ChangesUnavailableError:
        return None
    return _open(job_run, by_ranges, request, span)


Publish = Callable[[RunningBuild, Sequence[Manifest]], JobOutcome | None]
"""Has the consumer commit what tiles the whole, and returns the outcome.

None says that this does not make up what its sink has.
"""


def go_on(run: ApplyRun, job_run: JobRun, publish: Publish) -> JobOutcome | None:
    """Go on with a build that the job has requested before; return None if there is none that could go on."""
    # What has a watermark for each range of keys is not claimed: its first commit does that.
    claimed = job_run.kind.sharded or job_run.position.job_id == job_run.row.job_id
    build = find_build(run, job_run)
    if build is None or not build.state.goes_on or not claimed:
        return None
    if not build.whole:
        return awaiting_build(job_run.row, job_run.position, build.request)
    done = _publish_build(run, job_run, build, publish)
    if done is not None:
        remove_build(job_run)
    return done


def request_build(
    run: ApplyRun, job_run: JobRun, span: SourceRange, agree: Callable[[], BuildTerms | None]
) -> JobOutcome | None:
    """Request a build of the claimed sink's first rows; return None if they are to come as one snapshot.

    `agree` returns what its ranges are computed from, or None if the consumer does not take them; it is called for a
    table that is large.
    """
    before, config, by_ranges = find_build(run, job_run), run.ports.builds, _by_ranges(job_run)
    if before is not None and before.state.end is BuildEnd.REFUSED:
        return None
    if not config.table_bytes_min or by_ranges is None:
        return None
    with suppress(StorageError):  # of a table that only Spark opens nobody knows the size before it is read
        piece_bytes = PIECE_RANGES * config.range_bytes
        size = run.ports.source.size(run.uri, span.to.version, piece_bytes)
        if size.bytes < config.table_bytes_min or (terms := agree()) is None:
            return None
        depth = depth_for(size.bytes, config.range_bytes)
        request = BuildRequest(span.to.version, piece_bytes, depth, size, terms.pin)
        if job_run.row.build is not None and job_run.row.build.reading == request.reading:
            return None  # it is over, and would not go otherwise again
        run.guard.check()
        _open(job_run, by_ranges, request, span).ranges.begin(terms)
        return awaiting_build(job_run.row, job_run.position, request)
    return None


def _publish_build(run: ApplyRun, job_run: JobRun, build: RunningBuild, publish: Publish) -> JobOutcome | None:
    manifests = build.ranges.manifests(tiling(build.state.ranges).chosen)
    try:
        done = None if manifests is None else publish(build, manifests)
    except ChangesUnavailableError as gone:
        log.warning("build.outdated", extra=logged_job(job_run.row, run.uri) | {"error": str(gone)})
        build.ranges.end(BuildEnd.OUTDATED)
        return None
    if done is None:
        why = "what is staged does not make up the target" if manifests is not None else "staged files are gone"
        log.warning("build.refused", extra=logged_job(job_run.row, run.uri) | {"error": why})
        build.ranges.end(BuildEnd.REFUSED)
    return done


def remove_build(job_run: JobRun) -> None:
    """Remove what marks the job's builds, once it has rows.

    What cannot be removed now goes when its target is next built.
    """
    request, by_ranges = job_run.row.build, job_run.consumer.by_ranges
    if request is None or by_ranges is None:
        return
    try:
        by_ranges.ranges(build_id(job_run.row.job_id, job_run.row.spec_json, request, "", 0.0)).remove()
    except StorageError as error:
        log.warning("build.left", extra=logged_job(job_run.row) | {"error": str(error)})


def _by_ranges(job_run: JobRun) -> ByRanges | None:
    """Return what builds the job's first rows by ranges, or None if they may not be built so.

    A target that was built before is repaired, or rebuilt from one snapshot, whose rows are there at once.
    """
    first = job_run.row.watermark.version < 0 and job_run.row.key.range_id == WHOLE
    return job_run.consumer.by_ranges if first else None


def _open(job_run: JobRun, by_ranges: ByRanges, request: BuildRequest, span: SourceRange) -> RunningBuild:
    found = build_id(job_run.row.job_id, job_run.row.spec_json, request, span.table_id, span.to.at_s)
    ranges = by_ranges.ranges(found)
    return RunningBuild(request, span, ranges, ranges.state())


# --- all rows of a version --------------------------------------------------------------------------------------------
# Jobs are brought to a version of the source by all of its rows: as a snapshot, or by what differs.


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
        iteration_ports.refuse_rebuild(job_run.row.spec, job_run.position, span, lambda: _applied_at_s(run, job_run))
    if job_run.row.spec.enable_cdf and not span.cdf_on:
        span = _enable_source_cdf(run, span)
    if goes_on:
        iteration_ports.refuse_cdf_off(job_run.row.spec, span)
    job_run.kind.columns(job_run.row.spec.consumer, source.columns(uri, span.to.version))  # refuses what is gone
    iteration_ports.refuse_collated(job_run.row.spec, span)
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
        warning = iteration_ports.warning(job_run.row.spec, build.span)
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
    warning = iteration_ports.warning(job_run.row.spec, span, reason, rebuilt_for)
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


# --- changes since a watermark ----------------------------------------------------------------------------------------
# Jobs of one watermark are brought on by the changes since, read once for all of them.


@dataclass(frozen=True, slots=True)
class _Changes:
    """Says where the changes of a range are read.

    `without` brings jobs on if the changes turn out to be gone; its text says why.
    """

    columns: Callable[[], Sequence[str]]
    read: Callable[[Reading, SparkSession, Sequence[str], int], ChangeSet]
    without: Callable[[list[JobRun], str], list[JobOutcome]]


def apply_tail(run: ApplyRun, since: Watermark, group: list[JobRun]) -> list[JobOutcome]:
    """Apply the changes since one watermark to all its jobs, which share one read.

    What cannot be read as changes is taken by difference. Changes that are gone from the source may have been retained;
    these are not searched as long as the source has them.
    """
    source, uri = run.ports.source, run.uri
    without = partial(_apply_retained, run, since)
    try:
        span = source.resolve(uri, since, run.iteration.to_version, run.bounds)
        _check_range(run, since, group, span)
    except ChangesUnavailableError as gone:
        return without(group, str(gone))
    except Exception as error:  # noqa: BLE001  (reported for each job)
        return run.fail_all(group, error)

    def read(way: Reading, session: SparkSession, names: Sequence[str], readers: int) -> ChangeSet:
        open_changes = source.read_cdf if way is Reading.CDF else source.read_appends
        return open_changes(session, uri, span, names, readers)

    return _apply_range(run, group, span, _Changes(partial(source.columns, uri, span.last_version), read, without))


def _apply_retained(run: ApplyRun, since: Watermark, group: list[JobRun], reason: str) -> list[JobOutcome]:
    """Apply the retained commits after `since`, as far as they go; `reason`: why the source's changes cannot be read.

    What is retained has everything by which the table was known then: nothing of its log is needed.
    """
    retained, table = run.ports.retained, TablePlace(group[0].row.key.table_id, run.uri)
    try:
        span = None if since.steps else retained.resolve(table, since.version, run.iteration.to_version, run.bounds)
        if span is not None:
            _check_range(run, since, group, span)
    except ChangesUnavailableError:
        span = None
    except Exception as error:  # noqa: BLE001  (reported for each job)
        return run.fail_all(group, error)
    if span is None:
        return apply_full_to_all(run, group, reason)
    changes = _Changes(
        partial(retained.columns, table, span),
        lambda way, session, names, readers: retained.read(session, table, span, names, readers),
        partial(apply_full_to_all, run),
    )
    return _apply_range(run, group, span, changes)


def _check_range(run: ApplyRun, since: Watermark, group: list[JobRun], span: SourceRange) -> None:
    """Raise ChangesUnavailableError if the source was replaced.

    This is checked before the range's own version counts: a source that was recreated may be at the very same one.
    """
    run.meter.note_range(since, span.bytes)
    exact_watermark(span.to)  # a commit may say any time of itself
    if not iteration_ports.same_log((job_run.position for job_run in group), span):
        raise ChangesUnavailableError("the source was replaced")


def _apply_range(run: ApplyRun, group: list[JobRun], span: SourceRange, changes: _Changes) -> list[JobOutcome]:
    if not span.changes_data:
        return run.run_each(group, lambda job_run: renew_position(run.ports, run.guard, job_run, span))
    group, others = split_by_columns(run.ports.source, run.uri, group, span, changes.columns)
    outcomes = [each for job_run, reason in others for each in apply_full_to_all(run, [job_run], reason)]
    for way in Reading:
        works = [job_run for job_run in group if iteration_ports.reading(job_run.row.spec, span) is way]
        if way is Reading.COMPARE:
            outcomes += run.run_each(
                works, lambda job_run: apply_full(run, job_run, iteration_ports.unread(job_run.row.spec))
            )
        elif works:
            outcomes += _apply_changes(run, works, span, way, changes)
    return outcomes


def _apply_changes(
    run: ApplyRun, group: list[JobRun], span: SourceRange, way: Reading, changes: _Changes
) -> list[JobOutcome]:
    """Hand the changes of `span`, read once, to `group`."""
    feed = None
    with run.ports.engine.session() as session:
        try:
            run.ports.failpoints.reach("read.before")
            # Only avoids a useless read: a run is fenced at its commit.
            run.guard.check()
            with run.ports.tracer.span("iscp.read", read_attributes(run.uri, span, way.name.lower())):
                available = changes.columns()
                wanted, lost = _collect_columns(group, span, available)
                if span.steps and any(not job_run.row.spec.consumer.key for job_run in group):
                    wanted = set(available)  # rows without a key are distinguished by all that they hold
                feed = changes.read(way, session, [name for name in available if name in wanted], len(group))
                count_work(bytes_read=span.bytes)
                able, unnetted = _net_changes(feed, [job_run for job_run in group if job_run.row.job_id not in lost])
            run.ports.failpoints.reach("read.after")
            opened = feed
            done = run.run_each(able, lambda job_run: _consume_tail(run, job_run, span, opened, changes))
            return [*done, *lost.values(), *unnetted]
        except ChangesUnavailableError as gone:
            return changes.without(group, str(gone))
        except Exception as error:  # noqa: BLE001  (reported for each job)
            return run.fail_all(group, error)
        finally:
            if feed is not None:
                feed.release()


def _collect_columns(
    group: list[JobRun], span: SourceRange, available: Sequence[str]
) -> tuple[set[str], dict[str, JobOutcome]]:
    """Return what the jobs want to be read, and the outcomes of those that cannot have their columns, by job_id."""
    wanted: set[str] = set()
    lost: dict[str, JobOutcome] = {}
    for job_run in group:
        try:
            wanted.update(job_run.kind.columns(job_run.row.spec.consumer, available))
            iteration_ports.refuse_collated(job_run.row.spec, span)
        except BaseException as error:  # noqa: BLE001  (one job's fault is its own)
            lost[job_run.row.job_id] = record_failure(job_run.row, job_run.position, error)
    return wanted, lost


def _net_changes(feed: ChangeSet, works: list[JobRun]) -> tuple[list[JobRun], list[JobOutcome]]:
    """Net the changes by every key and filter there is; a fault is that of their jobs alone."""
    faults: dict[Netted | None, PermanentError] = {}
    for way in {way for job_run in works if (way := netted(job_run)) is not None}:
        try:
            feed.net(*way)
        except PermanentError as error:
            faults[way] = error
        except ChangesUnavailableError:
            continue  # each of its consumers will come upon that, and go on without
    found = [(job_run, faults.get(netted(job_run))) for job_run in works]
    able = [job_run for job_run, error in found if error is None]
    return able, [record_failure(job_run.row, job_run.position, error) for job_run, error in found if error is not None]


def _consume_tail(run: ApplyRun, job_run: JobRun, span: SourceRange, feed: ChangeSet, changes: _Changes) -> JobOutcome:
    retriever = run.retriever(DataType.TAIL, job_run, span, span.from_version, feed=feed)
    try:
        with run.ports.engine.session() as session:
            return run.consume(session, job_run, retriever, span, iteration_ports.warning(job_run.row.spec, span))
    except ChangesUnavailableError as unfit:
        (outcome,) = changes.without([job_run], str(unfit))
        return outcome
