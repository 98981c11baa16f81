"""Ranges of a build at a node: they are staged by one read of the source for all jobs of a batch (port RangeBuilder),
commits are retained meanwhile, and the position of a range is found in a sink that has a watermark for each.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from iscp.engine.iteration_ports import IterationPorts
from iscp.model.build.build_task import BuildPlan, BuildRequest, RangeBatch, StagingBatch, build_id, is_staged
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_plan
from iscp.model.job.watermark_record import Piece, established, parse_record, pieces, record_key
from iscp.model.rows import key_ranges
from iscp.model.values.errors import (
    EngineError,
    ErrorCode,
    FileLost,
    InvalidRequest,
    IscpError,
    PermanentError,
    PlanOutdated,
)
from iscp.model.values.ids import JobKey
from iscp.model.values.progress import NOTHING, UNCOUNTED, TableSize, total_size
from iscp.model.values.watermark import Position, Watermark, later
from iscp.ports.consumer import Consumer, RangedConsumer, RangeReader, TablePlace
from iscp.ports.sink import BuildEnd, StagedRanges
from iscp.ports.source import ChangesUnavailableError, Rows, SourceRange
from iscp.ports.system import Guard

# --- retained commits -------------------------------------------------------------------------------------------------
# The commits that a staging task names are retained (docs/adr/0031-builds-by-ranges.md), while they can be read.

log = logging.getLogger(__name__)


def retain_commits(
    ports: IterationPorts, batch: StagingBatch, guard: Guard, end_build: Callable[[BuildPlan], None]
) -> TableSize:
    """Retain the task's commits, in order of version; return their rows and bytes. `end_build` has a build begun again.

    A commit that is gone is not needed by builds of its version or a later one, nor does it harm who tails: its changes
    are found by comparing. A build that has yet to be published is rather begun again, at a version behind it: all
    nodes share that, and one node would compare. Raises PlanOutdated then.
    """
    task = batch.task
    table = TablePlace(task.table_id, task.table_uri)
    if task.removes:
        guard.check()
        ports.retained.remove(table)
        return NOTHING
    sizes = [
        _retain(ports, batch, table, version, guard, end_build) for version in range(task.after + 1, task.until + 1)
    ]
    return total_size(sizes)


def _retain(
    ports: IterationPorts,
    batch: StagingBatch,
    table: TablePlace,
    version: int,
    guard: Guard,
    end_build: Callable[[BuildPlan], None],
) -> TableSize:
    guard.check()
    ports.failpoints.reach("keep.before")
    try:
        with ports.engine.session() as session:
            return ports.retained.retain(session, table, version, guard)
    except (ChangesUnavailableError, FileLost) as gone:
        guard.check()  # what fails as it is stopped says nothing of the files
        about = {"table": table.uri, "version": version, "error": str(gone)}
        log.warning("build.commit_gone", extra=about)
        if outdated := [plan for plan in batch.plans if plan.version < version]:
            for plan in outdated:
                end_build(plan)
            raise PlanOutdated(f"version {version} of {table.uri} cannot be read: {gone}") from gone
        return NOTHING


# --- ranges of a batch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _JobPart:
    """One job's part in a batch."""

    plan: BuildPlan
    consumer: Consumer
    ranges: StagedRanges

    def wanted(self, rows: Rows) -> Rows:
        if (built := self.consumer.range_built) is not None:
            return built.wanted(rows)
        refreshed, terms = self.consumer.range_refreshed, self.ranges.terms()
        if refreshed is None or terms is None:
            raise PermanentError(f"nobody knows what the build of {self.plan.job_name} is of")
        return Rows(lambda: refreshed.range_rows(rows.frame, terms))


class SnapshotRangeBuilder:
    """Stages ranges, and retains commits (port RangeBuilder). Safe for threads.

    If a job's own part fails for good, that job is built without ranges, and no other waits.
    """

    def __init__(self, ports: IterationPorts, reader: RangeReader) -> None:
        self._ports = ports
        self._reader = reader
        self._labels: dict[Guard, str] = {}

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        label = self._labels[guard] = f"iscp-build-{uuid.uuid4().hex}"
        try:
            self._ports.engine.label(label)
            guard.check()  # whoever cancels it from here on finds the label
            with self._ports.deaths.at_work([row_of(plan) for plan in batch.plans]):
                if isinstance(batch, StagingBatch):
                    return retain_commits(self._ports, batch, guard, self._end_outdated)
                return self._build(batch, guard)
        finally:
            del self._labels[guard]

    def cancel(self, guard: Guard) -> None:
        if (label := self._labels.get(guard)) is not None:
            self._ports.engine.cancel(label)

    def _build(self, batch: RangeBatch, guard: Guard) -> TableSize:
        plan = batch.plans[0]
        try:
            span = self._ports.source.at(plan.table_uri, plan.version)
        except ChangesUnavailableError as error:
            raise PlanOutdated(f"version {plan.version} of {plan.table_uri} is gone: {error}") from error
        parts = list(self._open(batch, span))
        if not parts:
            return self._staged_size(batch)
        self._ports.failpoints.reach("range.before")
        try:
            return self._stage(batch, parts, guard)
        except (ChangesUnavailableError, FileLost) as error:
            for part in parts:
                part.ranges.end(BuildEnd.OUTDATED)
            raise PlanOutdated(f"version {plan.version} of {plan.table_uri} cannot be read: {error}") from error
        except (PermanentError, EngineError) as error:  # of the table itself: no job's part lets it through
            guard.check()
            for part in parts:
                _refuse(part, error)
            return UNCOUNTED

    def _open(self, batch: RangeBatch, span: SourceRange) -> Iterator[_JobPart]:
        """Yield the parts of the jobs that lack the range and whose builds go on.

        Raises PlanOutdated if no build does.
        """
        over = 0
        for plan in batch.plans:
            try:
                part = self._part_of(plan, span)
            except InvalidRequest as error:
                if error.code is not ErrorCode.OUTSIDE_ROOTS:
                    raise
                about = logged_plan(plan) | {"error": str(error)}
                log.warning("build.refused", extra=about)  # its iteration reports it
                continue
            state = part.ranges.state()
            deaths = self._ports.deaths.of(row_of(plan))
            if state.goes_on and deaths.too_many:  # its iteration reports it, and does not run here either
                about = logged_plan(plan) | {"error": f"the node died {deaths.described}"}
                log.warning("build.refused", extra=about)
                part.ranges.end(BuildEnd.REFUSED)
            if deaths.too_many or not state.goes_on:
                over += 1
            elif not is_staged(batch.range_id, state.ranges):
                yield part
        if over == len(batch.plans):
            raise PlanOutdated(f"the build of {batch.plans[0].table_uri} at version {span.to.version} is over")

    def _part_of(self, plan: BuildPlan, span: SourceRange) -> _JobPart:
        row = row_of(plan)
        consumer = self._ports.open(row)
        by_ranges = consumer.by_ranges
        assert by_ranges is not None
        request = BuildRequest(plan.version, plan.piece_bytes, plan.depth, pin=plan.pin)
        build = build_id(plan.job_id, plan.spec_json, request, span.table_id, span.to.at_s)
        return _JobPart(plan, consumer, by_ranges.ranges(build))

    def _end_outdated(self, plan: BuildPlan) -> None:
        """End the build as outdated.

        If its version itself is gone, the job's next iteration finds that out.
        """
        with suppress(ChangesUnavailableError):
            self._part_of(plan, self._ports.source.at(plan.table_uri, plan.version)).ranges.end(BuildEnd.OUTDATED)

    def _staged_size(self, batch: RangeBatch) -> TableSize:
        """Return the size of a staged range, or UNCOUNTED if its version, which it needs no more, is gone."""
        try:
            with self._ports.engine.session() as session:
                return self._reader.size(session, *_where(batch))
        except ChangesUnavailableError:
            return UNCOUNTED

    def _stage(self, batch: RangeBatch, parts: Sequence[_JobPart], guard: Guard) -> TableSize:
        where = _where(batch)
        with self._ports.engine.session() as session, ExitStack() as cached:
            size = self._reader.size(session, *where)
            rows = self._reader.rows(session, *where)
            if rows is not None and len(parts) > 1:
                rows = cached.enter_context(self._reader.read_once(rows))
            for part in parts:
                guard.check()
                with _refusing(part, guard):
                    part.ranges.stage(batch.range_id, None if rows is None else part.wanted(rows))
        return size


@contextmanager
def _refusing(part: _JobPart, guard: Guard) -> Iterator[None]:
    """End the build of a job whose own rows cannot be staged.

    Its iteration reports that, as it reads all of them as one snapshot.
    """
    try:
        yield
    except PlanOutdated:
        log.info("build.over", extra=logged_plan(part.plan))
    except (ChangesUnavailableError, FileLost) as gone:
        if part.consumer.range_built is not None:
            raise  # of the table that all parts read
        guard.check()
        about = logged_plan(part.plan) | {"error": str(gone)}
        log.warning("build.outdated", extra=about)  # it may be of another table: its iteration finds out
        part.ranges.end(BuildEnd.OUTDATED)
    except (PermanentError, EngineError) as error:
        guard.check()  # what fails as it is stopped says nothing of the rows
        _refuse(part, error)


def _refuse(part: _JobPart, error: IscpError) -> None:
    log.warning("build.refused", extra=logged_plan(part.plan) | {"error": str(error)})
    part.ranges.end(BuildEnd.REFUSED)


def _where(batch: RangeBatch) -> tuple[str, int, int, int]:
    plan = batch.plans[0]
    return plan.table_uri, plan.version, batch.range_id, plan.piece_bytes


def row_of(plan: BuildPlan) -> JobRow:
    """Return the job's row, as far as it says what is to be built."""
    key = JobKey(plan.account, plan.table_id, plan.job_name)
    return JobRow(key, plan.job_id, plan.spec_json, plan.table_uri, plan.table_uri)


# --- the position of a range ------------------------------------------------------------------------------------------
# A sink may have a watermark for each range. The range has a record of its own, or goes on from those of other ranges.


@dataclass(frozen=True, slots=True)
class RangePosition:
    """The position of a range, and what its first commit has to take over.

    `takeover` has the records, by their keys, that the first commit has to find as they were, and to fence (None: there
    is none); it is empty once the range has a record of its own. `apart` has the ranges that it consists of and where
    each stands, while that is not the same.
    """

    position: Position
    takeover: Mapping[str, str | None] = field(default_factory=dict)
    apart: tuple[Piece, ...] = ()

    @property
    def goal(self) -> int:
        """Return the version at which all that is apart can be together."""
        marks = [each.record.watermark for each in self.apart]
        return max(mark.version + (mark.step > 0) for mark in marks)

    def lagging(self, tried: Collection[int]) -> Piece | None:
        """Return a piece that is not at the goal, and was not `tried` yet, or None."""
        wait = (each for each in self.apart if _place(each) != (self.goal, 0, 0) and each.range_id not in tried)
        return next(wait, None)


def read_position(row: JobRow, consumer: RangedConsumer, reached: Mapping[int, Watermark]) -> RangePosition:
    """Read the position of the job's range. Raises Superseded.

    `reached` says, by range, how far each is known to be beyond its record, by versions without a row for it.
    """
    target, mine = row.spec.consumer.target, row.key.range_id
    own_key = record_key(row.key, target)
    if (record := established(row, consumer.records([own_key])[own_key])) is not None:
        return RangePosition(record.position)
    keys = {each: record_key(row.key.of_range(each), target) for each in (mine, *key_ranges.overlapping(mine))}
    takeover = consumer.records(list(keys.values()))
    seqs = [parse_record(text).seq for text in takeover.values() if text]
    nothing = Position(max(seqs, default=0))
    parts = tuple(_known(each, reached) for each in pieces(row, {n: takeover[key] for n, key in keys.items()}))
    if not parts:
        return RangePosition(nothing, takeover)
    first, sources = parts[0].record, {each.record.source_id for each in parts}
    if len({_place(each) for each in parts}) > 1:
        return RangePosition(replace(nothing, watermark=min(parts, key=_place).record.watermark), takeover, parts)
    source_id = first.source_id if len(sources) == 1 else ""
    return RangePosition(replace(nothing, watermark=first.watermark, job_id=row.job_id, source_id=source_id), takeover)


def _known(piece: Piece, reached: Mapping[int, Watermark]) -> Piece:
    watermark = later(piece.record.watermark, reached.get(piece.range_id, Watermark()))
    return replace(piece, record=replace(piece.record, watermark=watermark))


def _place(piece: Piece) -> tuple[int, int, int]:
    mark = piece.record.watermark
    return mark.version, mark.step, mark.steps
