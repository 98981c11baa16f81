"""Have a table follow changes in one commit; rows without a key are a bag.

Nothing distinguishes rows that are equal. If some copies of a row go, all of them are removed and as many written as
are left; copies that come are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from iscp.adapters.delta.rows.column_kinds import comparable, same_values
from iscp.adapters.delta.rows.row_search import LACKING
from iscp.adapters.delta.spark.arrow_frame import rows_of_table
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.adapters.system.late_imports import F
from iscp.consumers.view.table_rewrite import (
    are_many,
    copies,
    rewrite,
    rewrite_bag,
    rewrite_groups,
    shown_alike,
    without,
)
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP, quoted
from iscp.core.values.watermark import Position
from iscp.ports.consumer import ConsumeContext
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Sink
from iscp.ports.source import ChangesUnavailableError
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, collected
from iscp.views.refresh.table_spans import CHANGED_ROWS_MAX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

MERGED_CHANGES_MAX = 50_000
"""Changed rows that are merged without Spark; more are left with it."""

FEW_ROWS_MAX = 50_000
"""Rows of the stored input, or of a result made of it, that are read and written without Spark; more are left
with it.
"""

_THERE, _LEFT = "_iscp_held", "_iscp_left"
_REMOVED, _ADDED, _LACKING = "d", "n", "l"


def commit_changes(context: ConsumeContext, sink: Sink, changed: ChangedRows, tag: CommitTag) -> tuple[Position, int]:
    """Commit changed rows, each once, with the table's columns and WEIGHT; return the position and how many rows were
    written.

    Raises ChangesUnavailableError if the table does not have what the changes started from.
    """
    if changed.rows <= CHANGED_ROWS_MAX and sink.marks_rows(tag):
        position = sink.change_rows(changed.to_arrow(), tag, context.guard)
        if position is not None:
            return position, changed.rows
    changes = changed.to_frame()
    names = [name for name in changes.columns if name != WEIGHT]
    uncompared = [name for name in names if not comparable(changes.schema[name].dataType)]
    if changes.where(F.col(WEIGHT) < 0).isEmpty():  # however many come, what is there is not read
        return _append(context, sink, changes, names, tag)
    if uncompared:
        raise ChangesUnavailableError(f"rows go, and Spark cannot compare what is in {', '.join(uncompared)}")
    rows_there = sink.rows(context.session)
    many = are_many(changed, rows_there)
    if many and shown_alike(changes.schema):
        return rewrite_bag(context, sink, rows_there, changes, tag), changed.rows
    frame = cached(_to_repairs(changes, rows_there, names))
    try:
        counts = {row[0]: int(row[1]) for row in frame.groupBy(OP).count().collect()}
        if _LACKING in counts:
            raise ChangesUnavailableError(LACKING)
        if many:
            removed, added = (frame.where(F.col(OP) == op).drop(OP) for op in (_REMOVED, _ADDED))
            position = rewrite(context, sink, without(rows_there, removed, names).unionByName(added), tag)
        else:
            position = sink.repair(context.session, frame, names, tag, context.guard)
        return position, sum(counts.values())
    finally:
        release(frame)


def _append(
    context: ConsumeContext, sink: Sink, changes: DataFrame, names: Sequence[str], tag: CommitTag
) -> tuple[Position, int]:
    frame = cached(_coming(changes, names).drop(OP))
    try:
        rows = frame.count()
        return sink.append(Rows(lambda: frame), tag, context.guard), rows
    finally:
        release(frame)


def replace_few(context: ConsumeContext, sink: Sink, rows: DataFrame, tag: CommitTag) -> tuple[Position, int] | None:
    """Make `rows` the rows of the table, of which those stay that are there already, and return the position and their
    number.

    The result is None if they are not few, or if it takes Spark.
    """
    if not (sink.marks_rows(tag) and sink.schema_matches(rows.schema.json())):
        return None
    few = collected(rows, FEW_ROWS_MAX)
    return None if few is None else sink.replace_rows(few, tag, context.guard, FEW_ROWS_MAX)


def merge_few(context: ConsumeContext, sink: Sink, rows: pa.Table, key: Sequence[str], tag: CommitTag) -> Position:
    """Merge few rows with OP, each of another key, without Spark where that can be; return the position."""
    if sink.marks_rows(tag):
        wanted = rows.filter(pc.not_equal(rows[OP], Op.DELETE.value)).drop_columns([OP])
        replaced = sink.replace_keys(wanted, rows.select([*key]), tag, context.guard)
        if replaced is not None:
            return replaced[0]
    return sink.merge(context.session, rows_of_table(context.session, rows), key, tag, context.guard)


def merge_groups(
    context: ConsumeContext, sink: Sink, changed: ChangedRows, key: Sequence[str], tag: CommitTag
) -> tuple[Position, int]:
    """Merge changed rows with OP, each of another key; return the position and how many rows were written."""
    if changed.rows <= MERGED_CHANGES_MAX:
        return merge_few(context, sink, changed.to_arrow(), key, tag), changed.rows
    changes, rows_there = changed.to_frame(), sink.rows(context.session)
    if are_many(changed, rows_there):
        return rewrite_groups(context, sink, rows_there, changes, key, tag), changed.rows
    return sink.merge(context.session, Rows(lambda: changes), key, tag, context.guard), changed.rows


def _to_repairs(changes: DataFrame, rows_there: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return rows as Compared.repair has them, and as `l` each row of which more copies go than there are."""
    columns = [F.col(quoted(name)) for name in names]
    going = changes.where(F.col(WEIGHT) < 0)
    found = rows_there.alias("h").join(F.broadcast(going.alias("g")), same_values("g", "h", names), "inner")
    there = found.select(*[F.col(f"g.{quoted(name)}") for name in names])
    counted = going.withColumn(_THERE, F.lit(0).cast("long")).unionByName(
        there.withColumn(_THERE, F.lit(1).cast("long")).withColumn(WEIGHT, F.lit(0).cast("long"))
    )
    sums = [F.sum(_THERE).alias(_THERE), (F.sum(_THERE) + F.sum(WEIGHT)).alias(_LEFT)]
    left = counted.groupBy(*[quoted(name) for name in names]).agg(*sums)
    op = F.when(F.col(_LEFT) < 0, _LACKING).otherwise(_REMOVED)
    removed = left.select(*columns, op.alias(OP))
    again = _added(left.where(F.col(_LEFT) > 0), F.col(_LEFT), columns)
    return removed.unionAll(again).unionAll(_coming(changes, names))


def _coming(changes: DataFrame, names: Sequence[str]) -> DataFrame:
    columns = [F.col(quoted(name)) for name in names]
    return _added(changes.where(F.col(WEIGHT) > 0), F.col(WEIGHT), columns)


def _added(rows: DataFrame, number: Column, columns: Sequence[Column]) -> DataFrame:
    return copies(rows, number).select(*columns, F.lit(_ADDED).alias(OP))
