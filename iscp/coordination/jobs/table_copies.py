"""Give each copy of a table an id of its own, if copies of a table carry the same id.

A table that was copied keeps the id in its metadata. Placement, probes and reports are by id, so the jobs of one id
have to be on one table: where its first job lies. Each copy of it elsewhere gets an id of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from iscp.core.job.job_row import JobRow, JobStatus
from iscp.core.values.ids import JobKey

_DIGITS = 16


def copy_id(table_id: str, uri: str) -> str:
    """Return the id by which the table at `uri` is known while `table_id` belongs to the jobs of another copy of it."""
    return f"{table_id}@{sha256(uri.encode()).hexdigest()[:_DIGITS]}"


def with_own_table_id(
    row: JobRow, find: Callable[[JobKey], JobRow | None], uri_of: Callable[[str], str | None]
) -> JobRow:
    """Return a job to be registered, under the id of its table among those of the copies.

    `find` gives the row of a key, `uri_of` where the jobs of a table id lie (None: there are none).
    """
    ids = (row.key.table_id, copy_id(row.source_id, row.table_uri))
    for table_id in ids:
        there = find(row.key._replace(table_id=table_id))
        if there is not None and there.table_uri == row.table_uri:
            return of_table(row, table_id)
    return of_table(row, next((each for each in ids if uri_of(each) in (None, row.table_uri)), ids[1]))


def of_table(row: JobRow, table_id: str) -> JobRow:
    """Return a new job known by `table_id`, though the id in its table's metadata is the one that it had so far."""
    if table_id == row.key.table_id:
        return row
    followed = row.source_id
    status = JobStatus(source_id="" if followed == table_id else followed)
    return row._replace(
        key=row.key._replace(table_id=table_id), status_json=status.to_json() if status.source_id else ""
    )
