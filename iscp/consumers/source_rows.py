"""Rows of a source as kinds of consumers want them: those that pass the filter, and which of them share a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import Sharing, key_columns, sharing_rows
from iscp.adapters.delta.rows.plain_condition import is_plain, passing_rows
from iscp.adapters.delta.spark.arrow_frame import rows_of_table
from iscp.adapters.delta.spark.spark_errors import reading_changes
from iscp.consumers.shared_keys import ROWS_MAX, SHOWN, find_shared_keys
from iscp.consumers.validation import CONSUMER_PATH
from iscp.core.spec.spec import JobSpec, OnDuplicate
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.ports.rows import Rows
from iscp.ports.work_timer import leave_to_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_passing(rows: Rows, where: str) -> Rows:
    """Return the rows for which a job's filter holds (empty: all)."""
    if not where:
        return rows
    of_table = (lambda table: passing_rows(table, where)) if is_plain(where) else None
    if of_table is None:
        leave_to_spark(f"a filter is computed by Spark: {where}", unless_known=True)
    return rows.transformed(lambda frame: frame.where(where), of_table)


@dataclass(frozen=True, slots=True)
class KeySplit:
    """Rows of a source by whether others have their keys: `own` have keys of their own, `shared` of them share theirs.

    These are `letters`; None: there are none.
    """

    own: Rows
    letters: Rows | None = None
    shared: int = 0


@contextmanager
def split_by_key(session: SparkSession, rows: Rows, spec: JobSpec) -> Iterator[KeySplit]:
    """Split rows by whether they share a key, without Spark where Arrow can decide it.

    Raises PermanentError if rows share a key and the job is to stop then, or if they are more than ROWS_MAX.
    """
    key = spec.consumer.key
    if not key:
        yield KeySplit(rows)
        return
    if (table := rows.table) is not None:
        if (sharing := sharing_rows(table, key)) is not None:
            yield _split_table(session, table, sharing, spec) if sharing.any() else KeySplit(rows)
            return
        leave_to_spark("rows may share a key, which only Spark can compare")
    with reading_changes("search rows that share a key"):
        shared = find_shared_keys(rows.frame, key)
    if shared is None:
        yield KeySplit(rows)
        return
    try:
        refuse_shared(shared.rows, shared.examples, spec)
        own, letters = shared.split(rows.frame, key)
        yield KeySplit(Rows(lambda: own), Rows(lambda: letters), shared.rows)
    finally:
        shared.release()


def _split_table(session: SparkSession, table: pa.Table, sharing: Sharing, spec: JobSpec) -> KeySplit:
    own, letters = table.filter(pa.array(~sharing)), table.filter(pa.array(sharing))
    examples = key_columns(letters.slice(0, SHOWN), spec.consumer.key).to_pylist()
    refuse_shared(len(letters), "; ".join(map(str, examples)), spec)
    return KeySplit(rows_of_table(session, own), rows_of_table(session, letters), len(letters))


def refuse_shared(count: int, examples: str, spec: JobSpec) -> None:
    """Raise PermanentError if the job does not dead-letter so many rows that share a key."""
    stops = spec.on_duplicate is OnDuplicate.STOP
    if not count or (not stops and count <= ROWS_MAX):
        return
    raise PermanentError(
        f"{count} rows of the source share a key, as {examples}"
        + ("" if stops else f"; at most {ROWS_MAX} are dead-lettered"),
        about=f"{CONSUMER_PATH}.key",
        remedy="Choose a key that is unique, or repair the source",
        code=ErrorCode.DUPLICATE_KEY,
    )
