"""An iteration of a job whose first snapshot is built by ranges: it requests the build, and publishes what was staged.

What is staged under the target decides, not what the job's row says: so a build goes on at another node, and under
another owner, and one that was removed, or can never be whole, is replaced by one snapshot of all rows.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.core.build_pieces import depth_for
from iscp.core.build_request import BuildRequest, build_id
from iscp.core.build_tiling import tiling
from iscp.core.errors import StorageError
from iscp.core.iteration import DataType, JobOutcome
from iscp.core.key_ranges import WHOLE
from iscp.core.watermark import NOTHING_APPLIED
from iscp.ports.range_builder import RangeBuiltConsumer
from iscp.ports.sink import BuildEnd, StagedRanges, StagedState
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.apply.change_reader import Snapshot
from iscp.runtime.iteration.job_outcomes import awaiting_build
from iscp.runtime.iteration.job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PIECE_RANGES = 4
"""A file of more bytes than so many ranges are to have is cut by its row groups; a smaller one is read by one task."""


@dataclass(frozen=True, slots=True)
class RunningBuild:
    """What a job has requested, and what is staged of it by now. `span`: the source at that version."""

    request: BuildRequest
    span: SourceRange
    consumer: RangeBuiltConsumer
    ranges: StagedRanges
    state: StagedState

    @property
    def whole(self) -> bool:
        return tiling(self.state.ranges).whole


def find_build(run: ApplyRun, work: JobRun) -> RunningBuild | None:
    """The build that the job has requested; None: there is none, or its version is gone."""
    request = work.row.build
    if request is None or not _by_ranges(work):
        return None
    try:
        span = run.ports.source.at(run.uri, request.version)
    except ChangesUnavailableError:
        return None
    return _open(work, request, span)


def request_build(
    run: ApplyRun, session: SparkSession, work: JobRun, span: SourceRange, rows: Snapshot
) -> JobOutcome | None:
    """Of the claimed sink's first rows; None: they are to come as one snapshot."""
    before, config = find_build(run, work), run.ports.builds
    over = work.row.build is not None and work.row.build.version == span.to.version
    if over or (before is not None and before.state.end is BuildEnd.REFUSED):
        return None
    if rows.small is not None or not config.table_bytes_min or not _by_ranges(work):
        return None
    with suppress(StorageError):  # of a table that only Spark opens nobody knows the size before it is read
        piece_bytes = PIECE_RANGES * config.range_bytes
        size = run.ports.source.size(run.uri, span.to.version, piece_bytes)
        if size.bytes < config.table_bytes_min:
            return None
        request = BuildRequest(span.to.version, piece_bytes, depth_for(size.bytes, config.range_bytes), size)
        build = _open(work, request, span)
        if not build.consumer.takes_ranges(run.ports.context(session, work, span, run.guard), rows.make_frame()):
            return None
        run.guard.check()
        build.ranges.begin()
        return awaiting_build(work.row, work.position, request)
    return None


def publish_build(run: ApplyRun, session: SparkSession, work: JobRun, build: RunningBuild) -> JobOutcome | None:
    """Publish what tiles the whole; None: the job is to be built without."""
    context = run.ports.context(session, work, build.span, run.guard)
    manifests = build.ranges.manifests(tiling(build.state.ranges).chosen)
    consumed = None
    if manifests is not None:
        handed = run.retriever(DataType.SNAPSHOT, work, build.span, NOTHING_APPLIED)
        consumed = build.consumer.publish(context, manifests, handed)
    if consumed is None:
        why = "what is staged does not make up the target" if manifests is not None else "staged files are gone"
        log.warning(
            "build.refused",
            extra={"table": run.uri, "account": work.row.key.account, "job": work.row.key.job_name, "error": why},
        )
        build.ranges.end(BuildEnd.REFUSED)
        return None
    warning = read_policy.warning(work.row.spec, build.span)
    return run.committed(work, consumed, DataType.SNAPSHOT, NOTHING_APPLIED, warning)


def remove_build(work: JobRun) -> None:
    """What marks the job's builds, once it has rows; what cannot be removed now goes when its target is next built."""
    request = work.row.build
    if request is None or not isinstance(work.consumer, RangeBuiltConsumer):
        return
    try:
        work.consumer.ranges(build_id(work.row.job_id, work.row.spec_json, request, "", 0.0)).remove()
    except StorageError as error:
        log.warning("build.left", extra={"job": work.row.key.job_name, "error": str(error)})


def _by_ranges(work: JobRun) -> bool:
    """A target that was built before is repaired, or rebuilt from one snapshot, whose rows are there at once."""
    first = work.row.watermark.version < 0 and work.row.key.range_id == WHOLE
    return first and work.kind.needs.ranges and isinstance(work.consumer, RangeBuiltConsumer)


def _open(work: JobRun, request: BuildRequest, span: SourceRange) -> RunningBuild:
    assert isinstance(work.consumer, RangeBuiltConsumer)
    found = build_id(work.row.job_id, work.row.spec_json, request, span.table_id, span.to.at_s)
    ranges = work.consumer.ranges(found)
    return RunningBuild(request, span, work.consumer, ranges, ranges.state())
