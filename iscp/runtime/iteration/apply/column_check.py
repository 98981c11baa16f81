"""Decides whether a job's columns are those that its sink has.

If one is another column of that name, no change of a row says what it has now (it was dropped and added again, or names
were exchanged).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.core.job.iteration import ChangeDetail
from iscp.core.values.column_identity import other_columns
from iscp.core.values.errors import PermanentError, StorageError
from iscp.ports.source import ChangeSource, ChangesUnavailableError, SourceRange
from iscp.runtime.iteration.job_run import JobRun


def split_by_columns(
    source: ChangeSource,
    uri: str,
    works: Sequence[JobRun],
    span: SourceRange,
    columns: Callable[[], Sequence[str]],
) -> tuple[list[JobRun], list[tuple[JobRun, str]]]:
    """Return the jobs that go on by the changes of `span`, and those that have to compare, each with the reason.

    `columns` finds the columns as of its last version. What a sink does not say, as one that was written before it
    could, the source says as of the watermark.
    """
    same, others = [], []
    for job_run in works:
        known = _look_up_columns(source, uri, job_run, span)
        reason = _reason(known, span, columns)
        if reason:
            others.append((known, reason))
        else:
            same.append(known)
    return same, others


def _look_up_columns(source: ChangeSource, uri: str, job_run: JobRun, span: SourceRange) -> JobRun:
    if job_run.position.column_ids is not None or not span.reshapes:
        return job_run
    try:
        column_ids = source.at(uri, span.from_version).column_ids
    except (ChangesUnavailableError, StorageError):
        return job_run
    return replace(job_run, position=replace(job_run.position, column_ids=column_ids))


def _reason(job_run: JobRun, span: SourceRange, columns: Callable[[], Sequence[str]]) -> str:
    known_ids = job_run.position.column_ids
    if known_ids is None and span.reshapes and span.column_ids:
        return "nobody knows any more which columns the target was written from"
    same = known_ids is None or known_ids == span.column_ids
    if same and not span.retyped and not span.lost:
        return ""
    try:
        names = job_run.kind.columns(job_run.row.spec.consumer, columns())
    except PermanentError:
        return ""  # it is said where they are read
    if others := () if known_ids is None else other_columns(known_ids, span.column_ids, names):
        return f"the column {', '.join(others)} is another than before"
    if retyped := [name for name in names if name in span.retyped]:
        return f"the column {', '.join(retyped)} has another type than before"
    lost = _lost(job_run, span)
    return f"the column {', '.join(lost)} is gone, with what rows held in it" if lost else ""


def _lost(job_run: JobRun, span: SourceRange) -> list[str]:
    """Return what is gone of the columns of a job that takes every change.

    Deletions lack what was in these columns.
    """
    if job_run.kind.needs.changes is not ChangeDetail.ALL:
        return []
    chosen = {name.lower() for name in job_run.row.spec.consumer.columns}
    return [path for path in span.lost if not chosen or path.partition(".")[0].lower() in chosen]
