"""Stages ranges of a build at a node (port RangeBuilder): one read of the source for all jobs of a batch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from iscp.core.build.build_request import BuildRequest, build_id
from iscp.core.build.build_task import BuildPlan, RangeBatch, StagingBatch
from iscp.core.build.build_tiling import is_staged
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_plan
from iscp.core.values.errors import (
    EngineError,
    ErrorCode,
    FileLost,
    InvalidRequest,
    IscpError,
    PermanentError,
    PlanOutdated,
)
from iscp.core.values.ids import JobKey
from iscp.core.values.progress import UNCOUNTED, TableSize
from iscp.ports.consumer import Consumer
from iscp.ports.range_builder import RangeReader
from iscp.ports.rows import Rows
from iscp.ports.sink import BuildEnd, StagedRanges
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.commit_retention import retain_commits
from iscp.runtime.iteration.iteration_ports import IterationPorts

log = logging.getLogger(__name__)


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
