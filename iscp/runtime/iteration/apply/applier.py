"""Applies what has changed: reads the positions of the sinks, reads the source once, lets the consumers commit.

What a job is handed follows from what its sink says, never from what the node believes: a new registration claims
the sink and gets a snapshot, a sink whose rows cannot be trusted gets a difference, any other the changes since
its watermark. A fault of one job is its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp.core.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_jobs
from iscp.core.job.range_lineage import Piece
from iscp.core.job.report_validation import exact_position
from iscp.core.job.several_tables import further_tables
from iscp.core.job.usage import UsagePart
from iscp.core.values.errors import ErrorCode, IscpError
from iscp.core.values.watermark import Position, Watermark, later
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.system import Guard
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.apply.full_apply import apply_full_to_all
from iscp.runtime.iteration.apply.refresh_apply import apply_refresh_to_each
from iscp.runtime.iteration.apply.tail_apply import apply_tail
from iscp.runtime.iteration.iteration_meters import IterationMeter
from iscp.runtime.iteration.iteration_ports import CONFLICT_TRIES_MAX, LOST_TRIES_MAX, IterationPorts
from iscp.runtime.iteration.job_outcomes import longest_parts, record_failure
from iscp.runtime.iteration.job_run import JobRun, reconciled
from iscp.runtime.iteration.keeper_change import may_take_over, take_over
from iscp.runtime.iteration.range_position import RangePosition, read_position

log = logging.getLogger(__name__)


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
