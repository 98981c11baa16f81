"""Brings jobs of one watermark on by the changes since, read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from iscp.core.job.iteration import DataType, JobOutcome
from iscp.core.values.errors import PermanentError
from iscp.core.values.exact_watermarks import exact_watermark
from iscp.core.values.watermark import Watermark
from iscp.ports.range_builder import TablePlace
from iscp.ports.source import ChangeSet, ChangesUnavailableError, SourceRange
from iscp.ports.work_timer import count_work
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.apply.apply_run import ApplyRun
from iscp.runtime.iteration.apply.column_check import split_by_columns
from iscp.runtime.iteration.apply.full_apply import apply_full, apply_full_to_all
from iscp.runtime.iteration.apply.position_renewal import renew_position
from iscp.runtime.iteration.job_outcomes import record_failure
from iscp.runtime.iteration.job_run import JobRun, Netted, netted
from iscp.runtime.iteration.job_spans import read_attributes
from iscp.runtime.iteration.read_policy import Reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    if not read_policy.same_log((job_run.position for job_run in group), span):
        raise ChangesUnavailableError("the source was replaced")


def _apply_range(run: ApplyRun, group: list[JobRun], span: SourceRange, changes: _Changes) -> list[JobOutcome]:
    if not span.changes_data:
        return run.run_each(group, lambda job_run: renew_position(run.ports, run.guard, job_run, span))
    group, others = split_by_columns(run.ports.source, run.uri, group, span, changes.columns)
    outcomes = [each for job_run, reason in others for each in apply_full_to_all(run, [job_run], reason)]
    for way in Reading:
        works = [job_run for job_run in group if read_policy.reading(job_run.row.spec, span) is way]
        if way is Reading.COMPARE:
            outcomes += run.run_each(
                works, lambda job_run: apply_full(run, job_run, read_policy.unread(job_run.row.spec))
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
            read_policy.refuse_collated(job_run.row.spec, span)
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
            return run.consume(session, job_run, retriever, span, read_policy.warning(job_run.row.spec, span))
    except ChangesUnavailableError as unfit:
        (outcome,) = changes.without([job_run], str(unfit))
        return outcome
