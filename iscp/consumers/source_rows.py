"""Rows of a source as kinds of consumers want them: those that pass the filter, and which of them share a key."""

from __future__ import annotations

from iscp.adapters.delta.rows.net_changes import has_own_keys
from iscp.adapters.delta.rows.plain_condition import is_plain, passing_rows
from iscp.consumers.shared_keys import ROWS_MAX, Shared, find_shared_keys
from iscp.consumers.validation import CONSUMER_PATH
from iscp.core.spec.spec import JobSpec, OnDuplicate
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.ports.rows import Rows
from iscp.ports.work_timer import leave_to_spark


def rows_passing(rows: Rows, where: str) -> Rows:
    """Return the rows for which a job's filter holds (empty: all)."""
    if not where:
        return rows
    of_table = (lambda table: passing_rows(table, where)) if is_plain(where) else None
    if of_table is None:
        leave_to_spark(f"a filter is computed by Spark: {where}", unless_known=True)
    return rows.transformed(lambda frame: frame.where(where), of_table)


def find_dead_letters(rows: Rows, spec: JobSpec) -> Shared | None:
    """Return the keys that rows share, if they are to be dead-lettered.

    Raises PermanentError where the job is to stop.
    """
    key = spec.consumer.key
    if not key or (rows.table is not None and has_own_keys(rows.table, key)):
        return None
    if rows.table is not None:
        leave_to_spark("rows may share a key, or lack one")
    shared = find_shared_keys(rows.frame, key)
    stops = spec.on_duplicate is OnDuplicate.STOP
    if shared is None or (not stops and shared.rows <= ROWS_MAX):
        return shared
    shared.release()
    raise PermanentError(
        f"{shared.rows} rows of the source share a key, as {shared.examples}"
        + ("" if stops else f"; at most {ROWS_MAX} are dead-lettered"),
        about=f"{CONSUMER_PATH}.key",
        remedy="Choose a key that is unique, or repair the source",
        code=ErrorCode.DUPLICATE_KEY,
    )
