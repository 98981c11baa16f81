"""Applies what has changed: reads the positions of the sinks, reads the source once, lets the consumers commit.

What a job is handed follows from what its sink says, never from what the node believes: a new registration claims the
sink and gets a snapshot, a sink whose rows cannot be trusted gets a difference, any other the changes since its
watermark. A fault of one job is its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from iscp.engine import iteration_ports
from iscp.engine.adoption import may_take_over, take_over
from iscp.engine.apply_run import ApplyRun, renew_position
from iscp.engine.iteration_ports import (
    CONFLICT_TRIES_MAX,
    LOST_TRIES_MAX,
    IterationMeter,
    IterationPorts,
    JobRun,
    log_rebuild,
    longest_parts,
    reconciled,
    record_failure,
    refreshed,
)
from iscp.engine.range_staging import RangePosition, read_position
from iscp.engine.tail_apply import (
    RunningBuild,
    apply_full_to_all,
    apply_tail,
    go_on,
    remove_build,
    request_build,
)
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome, UsagePart, exact_position
from iscp.model.job.job_row import JobRow, further_tables
from iscp.model.job.registration_id import logged_job, logged_jobs
from iscp.model.job.watermark_record import Piece
from iscp.model.values.errors import ErrorCode, IscpError, PermanentError
from iscp.model.values.watermark import (
    NOTHING_APPLIED,
    Position,
    SourceMark,
    SourceMarks,
    Watermark,
    exact_watermark,
    later,
)
from iscp.ports.consumer import RangeRefreshed, Refreshed, RefreshOrder
from iscp.ports.engine import count_work, leave_to_spark
from iscp.ports.sink import Manifest
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard

log = logging.getLogger(__name__)

# --- jobs whose consumers read their tables themselves ----------------------------------------------------------------
# Each of these jobs is brought on by itself, to one version of each table.

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
    warning = iteration_ports.warning_of_refresh(done, rebuilt_for)
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
            iteration_ports.refuse_rebuild(job_run.row.spec, at, now, lambda at_s=applied_at_s: at_s)  # type: ignore[misc]
        except PermanentError as error:
            if uri == run.uri:
                raise
            raise PermanentError(f"{uri}: {error}", remedy=error.remedy, code=error.code) from error
        lower = now.to.version < mark.watermark.version
        if lower or not iteration_ports.same_log([at], replace(now, from_at_s=applied_at_s)):
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


# --- iterations -------------------------------------------------------------------------------------------------------


class Applier:
    """Brings the jobs of an iteration to its version. Safe for threads."""

    def __init__(self, ports: IterationPorts, bounds: Bounds, on_committed: Callable[[JobOutcome], None]) -> None:
        self._ports = ports
        self._bounds = bounds
        self._on_committed = on_committed

    def apply(self, iteration: Iteration, guard: Guard, meter: IterationMeter) -> tuple[JobOutcome, ...]:
        """Apply the iteration, and return an outcome for each job.

        A job that lost its seq to another writer starts over from what the sink says.
        """
        engine, clock = self._ports.engine, self._ports.clock
        began_s, (spark_s, direct_s) = clock.monotonic_s(), engine.spent_s()
        run = ApplyRun(self._ports, self._bounds, self._on_committed, iteration, guard, meter)
        found = _attempt_each(run)
        outcomes = tuple(
            each if each.usage is not None else run.with_usage(each)
            for each in (found[row.job_id] for row in iteration.jobs)
        )
        spark_now_s, direct_now_s = engine.spent_s()
        log.info(
            "iteration.done",
            extra={
                "table": iteration.table_uri,
                "account": iteration.account,
                **logged_jobs(iteration.jobs),
                "number": iteration.number,
                "jobs": len(iteration.jobs),
                "failed": sum(not outcome.ok for outcome in outcomes),
                "took_s": round(clock.monotonic_s() - began_s, 4),
                "spark_s": round(spark_now_s - spark_s, 4),
                "direct_s": round(direct_now_s - direct_s, 4),
                **longest_parts(outcomes),
            },
        )
        return outcomes


def _attempt_each(run: ApplyRun) -> dict[str, JobOutcome]:
    """Return the outcomes by job_id, once no job is left that has something to gain from another attempt.

    There is no pause between attempts: who won a seq has committed, and the sink says by now where to go on from; and
    files that are gone are not those of the newest version, where a table is vacuumed while it is written.
    """
    outcomes: dict[str, JobOutcome] = {}
    newest: dict[str, int] = {}
    for number in range(LOST_TRIES_MAX):
        done = _attempt(run)
        outcomes.update({outcome.row.job_id: outcome for outcome in done})
        raced = [each.row for each in done if each.error_code == ErrorCode.CONFLICT and number < CONFLICT_TRIES_MAX - 1]
        lost = [each.row for each in done if each.error_code == ErrorCode.FILE_LOST]
        for each in done:
            run.meter.tally(each.row).conflicts += each.error_code == ErrorCode.CONFLICT
        before, newest = newest, _find_newest(run, lost)
        lost = lost if newest != before else []
        if not raced and not lost:
            break
        run = run.of_jobs([*raced, *lost])
        if lost:  # the version that they were to come to may be the one whose files are gone
            run = replace(run, iteration=replace(run.iteration, to_version=None, ends={}))
    return outcomes


def _find_newest(run: ApplyRun, rows: Sequence[JobRow]) -> dict[str, int]:
    """Return the newest version of each table that these jobs read, as far as it is there."""
    found = {}
    for uri in {uri for row in rows for uri in (run.uri, *further_tables(row))}:
        with suppress(IscpError, ChangesUnavailableError):
            found[uri] = run.ports.source.newest(uri).to.version
    return found


def _attempt(run: ApplyRun) -> list[JobOutcome]:
    outcomes: list[JobOutcome] = []
    tails: dict[Watermark, list[JobRun]] = {}
    others: list[JobRun] = []
    refreshing: list[JobRun] = []
    for row in run.iteration.jobs:
        try:
            with run.working_for([row], UsagePart.READ):
                job_run = _open_run(run, row)
                if isinstance(job_run, JobRun):
                    run.ports.place_holds(job_run, run.guard)
            if isinstance(job_run, JobOutcome):
                outcomes.append(job_run)
            elif job_run.consumer.refresh is not None:
                refreshing.append(job_run)
            elif job_run.data_type is DataType.TAIL:
                tails.setdefault(job_run.position.watermark, []).append(job_run)
            else:
                others.append(job_run)
        except BaseException as error:  # noqa: BLE001  (one job's fault, its consumer's exit too, is its own)
            outcomes.append(record_failure(row, None, error))
    for since, group in tails.items():
        with run.working_for([each.row for each in group], UsagePart.READ):
            outcomes += apply_tail(run, since, group)
    outcomes += apply_full_to_all(run, others)
    return outcomes + apply_refresh_to_each(run, refreshing)


def _open_run(run: ApplyRun, row: JobRow) -> JobRun | JobOutcome:
    """Return the job with its position, once all parts of a merged range are at one version; otherwise an outcome.

    The outcome says how far the parts came. Each part goes on by one iteration at the most, on behalf of its range,
    whose record it writes. Its commit takes over the whole range all the same: what the parts' former writers have on
    its way fails.
    """
    ports = run.ports
    kind = ports.kinds(row.spec.consumer.kind)
    if kind.open_range is None:
        job_run = ports.read_position(row)
        if may_take_over(row, job_run.consumer):
            taken = take_over(ports, run.uri, job_run, run.guard)
            job_run = job_run if taken is None else replace(job_run, position=taken)
        return job_run
    ports.require_places(row)
    consumer = kind.open_range(row, ports.environment)
    if may_take_over(row, consumer):
        take_over(ports, run.uri, JobRun(row, kind, consumer, exact_position(consumer.position(row))), run.guard)
    reached: dict[int, Watermark] = {}
    found = read_position(row, consumer, reached)
    while (part := found.lagging(reached)) is not None:
        outcome = _catch_up_range(run, row, part, found)
        reached[part.range_id] = outcome.watermark if outcome.ok else part.record.watermark
        found = read_position(row, consumer, reached)
        if not outcome.ok or (found.apart and found.lagging(reached) is None):
            return replace(outcome, row=row, watermark=later(row.watermark, found.position.watermark))
    return reconciled(JobRun(row, kind, consumer, found.position, found.takeover))


def _catch_up_range(run: ApplyRun, row: JobRow, part: Piece, found: RangePosition) -> JobOutcome:
    """Bring one part of a merged range up to the version at which all of them can go on together."""
    ports, record = run.ports, part.record
    row = row._replace(key=row.key.of_range(part.range_id))
    position = Position(max(found.position.seq, row.seq), record.watermark, row.job_id, record.source_id)
    kind = ports.kinds(row.spec.consumer.kind)
    job_run = JobRun(row, kind, ports.open(row), position, found.takeover, whole=False)
    to_goal = replace(run, iteration=replace(run.iteration, to_version=found.goal))
    (outcome,) = apply_tail(to_goal, record.watermark, [job_run])
    return outcome
