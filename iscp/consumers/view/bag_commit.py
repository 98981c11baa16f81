"""The commits of a view's tables: changes of a bag, all rows where many have changed, and the stored input beside the
target.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from iscp.delta.rows.net_changes import comparable, is_collated, is_double, parts_of, same_values
from iscp.delta.rows.row_search import LACKING, read_groups
from iscp.model.rows.key_ranges import Op
from iscp.model.sql.sql_names import OP, VIEW_STATE_SUFFIX, quoted
from iscp.model.values.errors import EngineError, ErrorCode, PermanentError
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.consumer import ConsumeContext, ConsumerEnvironment
from iscp.ports.sink import CommitTag, Sink
from iscp.ports.source import ChangesUnavailableError, Rows
from iscp.spark.spark_frames import cached, frame_of_arrow, release, rows_of_table
from iscp.system.late_imports import F, T, pc
from iscp.views.changes.group_changes import StoredSums
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, collected, netted, whole_number
from iscp.views.refresh.table_spans import CHANGED_ROWS_MAX, Part, measured_as

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


# --- all rows ---------------------------------------------------------------------------------------------------------
# All rows of a table are written where so many have changed that it costs more to merge them. To merge, Spark reads and
# joins the table twice and writes what it marks besides, each in jobs of its own; all rows are read and written once.

REWRITTEN_SHARE = 0.2
"""The share of changed rows, which Spark has, in the rows of a table from which on all its rows are written."""

_COPY = "_iscp_copy"


def are_many(changed: ChangedRows, rows_there: DataFrame) -> bool:
    return changed.rows >= REWRITTEN_SHARE * rows_there.count()


def rewrite_bag(
    context: ConsumeContext, sink: Sink, rows_there: DataFrame, changes: DataFrame, tag: CommitTag
) -> Position:
    """Write all rows with the changes, and return the position. `rows_there` are all former rows; `changes` distinct
    ones with WEIGHT, of types whose values are `shown_alike`.

    Raises ChangesUnavailableError if more copies of a row go than there are.
    """
    names = [quoted(name) for name in rows_there.columns]
    all_rows = rows_there.withColumn(WEIGHT, F.lit(1).cast("long")).unionByName(changes)
    left = all_rows.groupBy(*names).agg(F.sum(WEIGHT).alias(WEIGHT)).where(F.col(WEIGHT) != 0)
    number = F.when(F.col(WEIGHT) > 0, F.col(WEIGHT)).otherwise(F.raise_error(F.lit(LACKING)).cast("long"))
    with _naming_lack():
        return rewrite(context, sink, copies(left, number).select(*names), tag)


def rewrite_groups(
    context: ConsumeContext, sink: Sink, rows_there: DataFrame, changes: DataFrame, key: Sequence[str], tag: CommitTag
) -> Position:
    """Write all rows with the changes, each of another key and with OP, and return the position."""
    coming = changes.where(F.col(OP) != Op.DELETE.value).drop(OP)
    return rewrite(context, sink, without(rows_there, changes, key).unionByName(coming), tag)


def rewrite(context: ConsumeContext, sink: Sink, rows: DataFrame, tag: CommitTag) -> Position:
    return sink.publish([sink.stage(Rows(lambda: rows), tag)], tag, context.guard)


def shown_alike(kind: T.DataType) -> bool:
    """Return whether values that are equal to Spark are the same; zeros of another sign, and texts equal by their
    collation, are not.
    """
    return comparable(kind) and not any(is_double(part) or is_collated(part) for part in parts_of(kind))


def without(rows_there: DataFrame, gone: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that are equal to none of `gone` in these columns."""
    return rows_there.alias("h").join(gone.alias("g"), same_values("h", "g", key), "left_anti")


def copies(rows: DataFrame, number: Column) -> DataFrame:
    """Return each row as many times as `number` says."""
    return rows.withColumn(_COPY, F.explode(F.sequence(F.lit(1).cast("long"), number))).drop(_COPY)


@contextmanager
def _naming_lack() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        if LACKING in str(error.__cause__):  # its message is cut before that
            raise ChangesUnavailableError(LACKING) from error
        raise


# --- changes ----------------------------------------------------------------------------------------------------------
# A table follows changes in one commit; rows without a key are a bag. Nothing distinguishes rows that are equal. If
# some copies of a row go, all of them are removed and as many written as are left; copies that come are added.

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


def replace_differing(
    context: ConsumeContext, sink: Sink, rows: DataFrame, tag: CommitTag
) -> tuple[Position, int] | None:
    """Make `rows` the rows of a table of any size, by those in which the two differ, and return as `replace_few` does.

    The result is None if more than CHANGED_ROWS_MAX differ, or if Spark cannot compare them.
    """
    if not (sink.marks_rows(tag) and sink.schema_matches(rows.schema.json())):
        return None
    if not all(comparable(each.dataType) for each in rows.schema.fields):
        return None
    there = sink.rows(context.session).select(*map(quoted, rows.columns))
    signed = [frame.withColumn(WEIGHT, whole_number(weight)) for frame, weight in ((rows, 1), (there, -1))]
    differing = collected(netted(signed[0].unionByName(signed[1])), CHANGED_ROWS_MAX)
    position = None if differing is None else sink.change_rows(differing, tag, context.guard)
    return None if differing is None or position is None else (position, len(differing))


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


# --- the stored input -------------------------------------------------------------------------------------------------


class StoredInput:
    """The stored input of one view, at `target` with a suffix. Its columns are `c0`, `c1`, …

    The table has more of a view than its rows: the input of an operator that is recomputed as a whole, or its groups.
    It says of itself of which versions of the view's tables it is, and of which instant, and is of use only where those
    are the ones that the target is at: after a crash between its commit and the target's, or where another writer came
    between, it is written again. So it is never what the view's rows are believed to be, and no seq depends on it.
    """

    def __init__(self, target: str, environment: ConsumerEnvironment) -> None:
        self._uri = target + VIEW_STATE_SUFFIX
        self._sink: Sink = environment.sink(self._uri)

    def is_at(self, context: ConsumeContext) -> bool:
        """Return whether the view's rows, at their position, were made of it."""
        return _goes_with(self._position(context), context.position)

    def go_on_from(self, context: ConsumeContext) -> None:
        """Make it the job's, if the view's rows, which another registration has made, were made of it.

        Otherwise it stays what it is, and is written again when it is needed.
        """
        there = self._position(context)
        if _goes_with(there, context.position):
            self._sink.renew(self._tag(context, there, context.position))

    def rows(self, context: ConsumeContext) -> DataFrame:
        return self.rows_if_few(context)[0]

    def rows_if_few(self, context: ConsumeContext) -> tuple[DataFrame, bool]:
        """Return all rows, and whether they are few: then they are read here."""
        few = self.few_rows(context)
        if not few:  # of no rows at all Spark's optimizer would make another plan
            return self._sink.rows(context.session), few is not None
        return frame_of_arrow(context.session, few), True

    def sums(self, context: ConsumeContext) -> StoredSums:
        return StoredSums(partial(self.rows, context), partial(self.groups, context))

    def few_rows(self, context: ConsumeContext) -> pa.Table | None:
        """Return all rows if they are few, and can be read here."""
        return self._sink.few_rows(self._position(context).base_version, FEW_ROWS_MAX)

    def is_at_hand(self, context: ConsumeContext, schema_json: str) -> bool:
        """Return whether it has these columns, and the view's rows, at their position, were made of it."""
        return self.is_at(context) and self._sink.schema_matches(schema_json)

    @measured_as(Part.STATE)
    def write(self, context: ConsumeContext, rows: DataFrame, view: CommitTag | Position) -> None:
        """Write all of it, as of the state that the view's rows have, or will have."""
        there, schema = self._position(context), rows.schema.json()
        if there.base_version < 0 or there.job_id != context.row.job_id:
            if there.base_version >= 0 and not there.seq:
                raise PermanentError(
                    f"{self._uri}, where what the view is made of would be kept, is a table of somebody else",
                    remedy="Move it away",
                    code=ErrorCode.TARGET_UNUSABLE,
                )
            context.guard.check()
            there = self._sink.claim(schema, self._tag(context, there, None), marks_rows=True)
        tag = self._tag(context, there, view)
        if self._sink.schema_matches(schema):
            self._sink.publish([self._sink.stage(Rows(lambda: rows), tag)], tag, context.guard)
        else:
            self._sink.replace(rows, tag, context.guard)

    @measured_as(Part.STATE)
    def follow(self, context: ConsumeContext, changes: ChangedRows | None, view: CommitTag) -> None:
        """Commit its changes as `commit_changes` does; without changes only the versions are others."""
        tag = self._tag(context, self._position(context), view)
        if changes is not None:
            commit_changes(context, self._sink, changes, tag)
        elif self._sink.renew(tag) is None:
            self.write(context, self.rows(context), view)

    def groups(self, context: ConsumeContext, keys: pa.Table) -> pa.Table:
        """Return the rows with one of these keys, and perhaps others."""
        version = self._position(context).base_version
        found = self._sink.rows_with(keys, version)
        return read_groups(self._uri, version, keys) if found is None else found

    @measured_as(Part.STATE)
    def merge_groups(self, context: ConsumeContext, changes: ChangedRows, key: Sequence[str], view: CommitTag) -> None:
        """Merge changed groups as `merge_groups` does for tables."""
        merge_groups(context, self._sink, changes, key, self._tag(context, self._position(context), view))

    @measured_as(Part.STATE)
    def merge(self, context: ConsumeContext, rows: pa.Table, key: Sequence[str], view: CommitTag) -> None:
        """Merge few rows with OP."""
        merge_few(context, self._sink, rows, key, self._tag(context, self._position(context), view))

    def tidy(self) -> None:
        """Tidy the table as Consumer does."""
        self._sink.tidy()

    def _position(self, context: ConsumeContext) -> Position:
        return self._sink.position(context.row._replace(seq=0, watermark=Watermark()))

    def _tag(self, context: ConsumeContext, there: Position, view: CommitTag | Position | None) -> CommitTag:
        return CommitTag(
            seq=there.seq + 1,
            job_id=context.row.job_id,
            source_id=context.source_id,
            from_version=NOTHING_APPLIED,
            watermark=Watermark(),
            epoch=context.epoch,
            base_version=there.base_version,
            attempt=uuid.uuid4().hex[:12],
            kind="view_state",
            sources=view.sources if view else {},
            as_of_s=view.as_of_s if view else 0.0,
        )


def _goes_with(there: Position, view: Position) -> bool:
    same = (there.job_id, there.sources, there.as_of_s) == (view.job_id, view.sources, view.as_of_s)
    return bool(there.sources) and same and not there.void
