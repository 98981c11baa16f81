"""Rows of a source as kinds of consumers want them: those that pass the filter, and which of them share a key. Beside
them is the tag of a Delta target's commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.consumers.validation import CONSUMER_PATH
from iscp.delta.rows.net_changes import Sharing, key_columns, same_values, sharing_rows
from iscp.model.rows.key_ranges import Op
from iscp.model.spec.spec import JobSpec, OnDuplicate
from iscp.model.sql.sql_names import OP, quoted
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.ids import is_sampled
from iscp.model.values.watermark import NO_TOTALS, SourceMarks, Watermark
from iscp.ports.consumer import ConsumeContext
from iscp.ports.engine import leave_to_spark
from iscp.ports.sink import CommitTag
from iscp.ports.source import Rows
from iscp.spark.spark_errors import reading_changes
from iscp.spark.spark_frames import cached, release, rows_of_table
from iscp.system.late_imports import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# --- rows by keys -----------------------------------------------------------------------------------------------------
# Rows are matched by keys, in which null equals null, and keys are found that several rows have.

ROWS_MAX = 100_000
"""Rows that share a key and are dead-lettered; more are taken for a wrong key, not for faulty rows, and the job fails
with DUPLICATE_KEY.
"""

_ROWS = "_iscp_rows"
SHOWN = 3
"""Keys that are shown of those that rows share."""


def matches(first: str, second: str, columns: Sequence[str]) -> Column:
    """Return whether the frames aliased `first` and `second` have the same values in `columns`, as a condition."""
    return reduce(lambda one, other: one & other, same_values(first, second, columns))


def differing(wanted: DataFrame, target: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows of `wanted` that `target` lacks or has otherwise (op `u`), and keys of `target` alone (op `d`)."""
    w, h = wanted.withColumn("_iscp_w", F.lit(1)).alias("w"), target.withColumn("_iscp_h", F.lit(1)).alias("h")
    same = matches("w", "h", wanted.columns)
    joined = w.join(h, matches("w", "h", key), "full_outer")
    joined = joined.where(F.col("_iscp_w").isNull() | F.col("_iscp_h").isNull() | ~same)
    gone = F.col("_iscp_w").isNull()
    columns = [
        F.when(gone, F.col(f"h.{quoted(name)}")).otherwise(F.col(f"w.{quoted(name)}")).alias(name)
        for name in wanted.columns
    ]
    return joined.select(*columns, F.when(gone, "d").otherwise("u").alias(OP))


def frame_of_keys(keys: DataFrame, own: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return what `changes_of_keys` returns of tables."""
    gone = keys.alias("k").join(own.alias("o"), matches("k", "o", key), "left_anti")
    names = {name.lower() for name in key}
    columns = [
        (F.col(f"k.{quoted(name)}") if name.lower() in names else F.lit(None)).cast(kind).alias(name)
        for name, kind in ((each.name, each.dataType) for each in own.schema.fields)
    ]
    return own.withColumn(OP, F.lit(Op.UPDATE)).unionByName(gone.select(*columns, F.lit(Op.DELETE).alias(OP)))


@dataclass(frozen=True, slots=True)
class Shared:
    """The keys that several rows have, `counted` by Spark, and cached until `release`.

    `rows` is the number of rows that have one of them; `examples` shows some keys.
    """

    counted: DataFrame
    rows: int
    examples: str

    def split(self, frame: DataFrame, key: Sequence[str]) -> tuple[DataFrame, DataFrame]:
        """Return the rows whose keys are their own, and the rows that share one."""
        left, keys = frame.alias("f"), F.broadcast(self.counted.drop(_ROWS)).alias("k")
        on = matches("f", "k", key)
        return left.join(keys, on, "left_anti"), left.join(keys, on, "left_semi")

    def release(self) -> None:
        release(self.counted)


def find_shared_keys(frame: DataFrame, key: Sequence[str]) -> Shared | None:
    """Return the keys that rows share, or None if every row has a key of its own; null equals null."""
    counted = frame.groupBy(*[F.col(quoted(name)) for name in key]).agg(F.count("*").alias(_ROWS))
    shared = cached(counted.where(f"{_ROWS} > 1"))
    found = None
    try:
        found = _describe(shared)
    finally:
        if found is None:  # nobody else gives them back, also where they could not be read
            release(shared)
    return found


def _describe(shared: DataFrame) -> Shared | None:
    rows = shared.agg(F.sum(_ROWS)).collect()[0][0]
    if not rows:
        return None
    examples = [str(row.asDict()) for row in shared.drop(_ROWS).limit(SHOWN).collect()]
    return Shared(shared, int(rows), "; ".join(examples))


# --- rows that are wanted ---------------------------------------------------------------------------------------------


def rows_passing(rows: Rows, where: str) -> Rows:
    """Return the rows for which a job's filter holds (empty: all)."""
    if not where:
        return rows
    from iscp.algebra.row_conditions import is_plain, passing_rows  # most jobs have no condition

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


# --- the tag of a commit ----------------------------------------------------------------------------------------------
# A commit of a Delta target carries it, whatever the commit is for.


def commit_tag(
    context: ConsumeContext,
    kind: str,
    from_version: int,
    watermark: Watermark,
    sources: SourceMarks | None = None,
    as_of_s: float = 0.0,
) -> CommitTag:
    """Return the tag of the commit that follows the position of `context`.

    If `sources` is None, they stay as they were, and so do instant and totals.
    """
    marks = context.position.sources if sources is None else sources
    return CommitTag(
        seq=context.position.seq + 1,
        job_id=context.row.job_id,
        source_id=context.source_id,
        from_version=from_version,
        watermark=watermark,
        epoch=context.epoch,
        base_version=context.position.base_version,
        attempt=uuid.uuid4().hex[:12],
        kind=kind,
        dead=context.position.dead,
        column_ids=context.column_ids,
        sources=marks,
        as_of_s=context.position.as_of_s if sources is None else as_of_s,
        totals=context.position.totals if sources is None else NO_TOTALS,
        trace=context.trace if is_sampled(context.trace) else "",
        table_uri="" if marks else context.row.table_uri,
    )


def takeover_tag(context: ConsumeContext) -> CommitTag:
    """Return the tag of a commit that repeats the position of another registration under the job's own id."""
    watermark = context.position.watermark
    return commit_tag(context, "takeover", watermark.version, watermark)
