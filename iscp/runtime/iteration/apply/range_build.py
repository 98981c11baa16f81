"""Runs the iterations of a job whose first snapshot is built by ranges: one requests the build, one publishes it.

What is staged under the target decides, not what the job's row says: so a build goes on at another node, and under
another owner, and one that was removed, or can never be whole, is replaced by one snapshot of all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from iscp.core.build.build_pieces import depth_for
from iscp.core.build.build_request import BuildRequest, build_id
from iscp.core.build.build_terms import BuildTerms
from iscp.core.build.build_tiling import tiling
from iscp.core.job.iteration import JobOutcome
from iscp.core.job.logged_jobs import logged_job
from iscp.core.rows.key_ranges import WHOLE
from iscp.core.values.errors import StorageError
from iscp.ports.range_builder import ByRanges
from iscp.ports.sink import BuildEnd, Manifest, StagedRanges, StagedState
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.job_outcomes import awaiting_build
from iscp.runtime.iteration.job_run import JobRun

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
    done = _publish(run, job_run, build, publish)
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


def _publish(run: ApplyRun, job_run: JobRun, build: RunningBuild, publish: Publish) -> JobOutcome | None:
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
