"""The changes of one range, in memory or read by Spark, for as long as somebody needs them (port Feed); and the updates
whose change data lack rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.delta.rows.net_changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DOUBTFUL,
    OP,
    STAMPS,
    WRITES,
    contradicted,
    distinct_keys,
    doubt,
    each_by_itself,
    each_key,
    fits_arrow,
    net_by_arrow,
    net_by_spark,
    same_values,
    unhashable,
)
from iscp.delta.rows.row_keys import (
    bounded,
    bounds_aggregates,
    bounds_of_arrow,
    bounds_of_row,
    key_hashes,
    spanning,
)
from iscp.delta.source.arrow_read import NotDirectError, has_special_texts
from iscp.delta.source.spark_read import written_by_arrow, written_by_spark
from iscp.model.job.iteration import UsagePart
from iscp.model.rows.key_ranges import ABSENT_BEFORE, Op
from iscp.model.sql.sql_names import KEY_HASH, quoted
from iscp.ports.engine import charged_as, leave_to_spark
from iscp.ports.source import Changes, ChangesUnavailableError, KeyBounds, KeyedRows, Rows, SourceRange
from iscp.spark.spark_engine import arrow_batches
from iscp.spark.spark_errors import naming_lost_changes, reading_changes, spark_faults
from iscp.spark.spark_frames import cached, frame_of_arrow, release, utf8_rows
from iscp.storage.bounded_parquet import TooLargeError
from iscp.system.late_imports import F, T, pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- updates that lack rows -------------------------------------------------------------------------------------------
# For an UPDATE delta-rs (1.6) takes all rows of the files that it rewrites, before and after, and leaves out of the
# change data each row that has an equal on the other side. If all rows are different, only those go that stayed as they
# were. If not, an updated row that becomes equal to a row that was there is lost, and so is the row that it was, if an
# equal remains. Then there are no longer two rows for each one that was updated.

_IMAGES = ("update_preimage", "update_postimage")


def find_lost_rows(changes: pa.Table | DataFrame, updates: Mapping[int, int]) -> dict[int, str]:
    """Return by version what is wrong with its change data. `updates` is as in SourceRange.

    An update that left a row as it was is taken for one that lost it.
    """
    if not updates:
        return {}
    counts = _count_by_arrow(changes) if isinstance(changes, pa.Table) else _count_by_spark(changes, updates)
    found = {}
    for version, rows in sorted(updates.items()):
        before, after = (counts[version, image] for image in _IMAGES)
        if not before == after == rows:
            found[version] = (
                f"version {version} is an UPDATE by delta-rs of {rows} rows whose change data have {before} of them "
                f"before and {after} after"
            )
    return found


def _count_by_arrow(changes: pa.Table) -> Counter[tuple[int, str]]:
    stamps = changes.select([COMMIT_VERSION, CHANGE_TYPE])
    counted = stamps.group_by(stamps.column_names).aggregate([([], "count_all")])
    return Counter({(row[COMMIT_VERSION], row[CHANGE_TYPE]): row["count_all"] for row in counted.to_pylist()})


def _count_by_spark(changes: DataFrame, updates: Mapping[int, int]) -> Counter[tuple[int, str]]:
    rows = changes.where(F.col(COMMIT_VERSION).isin([*updates])).groupBy(COMMIT_VERSION, CHANGE_TYPE).count().collect()
    return Counter({(row[0], row[1]): row[2] for row in rows})


# --- the changes of a range -------------------------------------------------------------------------------------------

_ROWS_PER_PARTITION = 250_000

KEYED_ROWS_MAX = 100_000
"""Rows of changed keys that are searched in a source's files without Spark; more are left to Spark."""


@cache
def _stamp_fields() -> tuple[T.StructField, ...]:
    return (
        T.StructField(CHANGE_TYPE, T.StringType()),
        T.StructField(COMMIT_VERSION, T.LongType()),
        T.StructField(COMMIT_TIMESTAMP, T.TimestampType()),
    )


@dataclass(frozen=True, slots=True)
class RowsAfter:
    """The source's rows as of a range's last version: all of them by Spark, or those of some keys without it.

    `find` takes keys, columns and a number of rows, as ChangeSource.rows_with does.
    """

    frame: Callable[[], DataFrame]
    find: Callable[[pa.Table, Sequence[str], int], pa.Table | None] = lambda keys, columns, rows_max: None


class DeltaChangeSet:
    """The wanted columns, `_change_type` and the stamps of all changes; `schema` is that of the wanted columns.

    A small range is in this process's memory as `rows`, a large one is Spark's `frame`, which Spark caches for several
    readers: for a single one it costs less to read again the columns that are needed than to cache them all.
    """

    def __init__(
        self,
        session: SparkSession,
        schema: T.StructType,
        span: SourceRange,
        after: RowsAfter,
        rows: pa.Table | None = None,
        frame: DataFrame | None = None,
        readers: int = 1,
        rewritten: Callable[[int], pa.Table] | None = None,
    ) -> None:
        """Take the changes as `rows` or `frame`; a frame with several `readers` is cached.

        `rewritten` returns the rows of all files that a version
        took away, and of those that it put in their place, as changes.
        """
        self._session = session
        self._schema = schema
        self._span = span
        self._after = after
        self._rewritten = rewritten
        self._rows = rows
        self._frame = cached(frame) if frame is not None and readers > 1 else frame
        self._cached = [self._frame] if self._frame is not None and readers > 1 else []
        self._net: dict[tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]], Changes] = {}

    @classmethod
    def read_by_spark(
        cls,
        frame: DataFrame,
        span: SourceRange,
        after: RowsAfter,
        small: bool,
        readers: int,
        rewritten: Callable[[int], pa.Table] | None = None,
    ) -> DeltaChangeSet:
        schema = frame.drop(CHANGE_TYPE, *STAMPS).schema
        rows = None
        if small and fits_arrow(schema, (), arrays=True):
            with reading_changes("read the changes"):
                rows = utf8_rows(frame)
        if rows is None:
            return cls(frame.sparkSession, schema, span, after, frame=frame, readers=readers)
        return cls(frame.sparkSession, schema, span, after, rows=rows, rewritten=rewritten)

    @charged_as(UsagePart.READ)
    def net(
        self, key: Sequence[str], where: Sequence[str] = (), stamped: bool = False, columns: Sequence[str] = ()
    ) -> Changes:
        wanted = (tuple(key), tuple(where), stamped, tuple(columns))
        known = self._net.get(wanted)
        if known is None:
            known = self._compute(*wanted)
            if stamped and key:
                self._refuse_contradicted(known, key, where)
            self._net[wanted] = known
        return known

    @charged_as(UsagePart.READ)
    def of_keys(self, key: Sequence[str]) -> KeyedRows:
        names = [each.name for each in self._schema.fields]
        spelled = {name.lower(): name for name in names}
        key = tuple(spelled[name.lower()] for name in key)
        keys = None if self._rows is None or self._span.steps else distinct_keys(self._rows, key)
        readable = keys is not None and fits_arrow(self._schema, key, arrays=True)
        rows = self._after.find(keys, names, KEYED_ROWS_MAX) if keys is not None and readable else None

        def key_frame() -> DataFrame:
            return self._raw(key).select(*[F.col(quoted(name)) for name in key]).distinct()

        def row_frame() -> DataFrame:
            of_schema = T.StructType([each for each in self._schema.fields if each.name in key])
            bounds = {} if keys is None else bounds_of_arrow(keys, bounded(of_schema, key))
            after = _bounded(self._after.frame(), bounds).select(*[F.col(quoted(name)) for name in names]).alias("r")
            return after.join(key_frame().alias("k"), reduce(and_, same_values("r", "k", key)), "left_semi")

        if rows is None:
            leave_to_spark("the rows of keys that rows share are read by Spark")
        return KeyedRows(Rows(key_frame, lambda: keys), Rows(row_frame, lambda: rows))

    @charged_as(UsagePart.READ)
    def all(self, key: Sequence[str]) -> DataFrame:
        raw = self._raw(tuple(key))
        if self._rows is None:
            with reading_changes("read the changes"):
                raw.count()  # what cannot be read has to show here
        is_written = F.col(CHANGE_TYPE).isin(*WRITES)
        return raw.orderBy(COMMIT_VERSION, *[F.col(quoted(name)) for name in key], is_written)

    @charged_as(UsagePart.READ)
    def ordered(self, key: Sequence[str], where: Sequence[str], *, hashed: bool) -> pa.Table | None:
        special = has_special_texts(field.metadata for field in self._schema.fields)
        if self._span.steps or special or not fits_arrow(self._schema, key):
            return None
        rows = _passing_directly(self._rows, where)
        hashes = None if rows is None or not hashed else key_hashes(rows, key)
        if rows is None or (hashed and hashes is None):
            return None
        return (rows if hashes is None else rows.append_column(KEY_HASH, hashes)).take(_order_of(rows, key))

    def every(self) -> DataFrame:
        return self._raw(())

    @charged_as(UsagePart.READ)
    def with_equal_rows(self) -> DeltaChangeSet:
        with reading_changes("count the changes"):
            lost = find_lost_rows(self._frame if self._rows is None else self._rows, self._span.updates)
        if not lost:
            return self
        if self._rows is None or self._rewritten is None:
            raise ChangesUnavailableError(lost[min(lost)])
        faithful = pc.invert(pc.is_in(self._rows[COMMIT_VERSION], value_set=pa.array([*lost], pa.int64())))
        try:
            rows = pa.concat_tables([self._rows.filter(faithful), *map(self._rewritten, sorted(lost))])
        except (NotDirectError, TooLargeError) as error:
            raise ChangesUnavailableError(lost[min(lost)]) from error
        return DeltaChangeSet(self._session, self._schema, replace(self._span, updates={}), self._after, rows=rows)

    @property
    def table(self) -> pa.Table | None:
        return None if self._span.steps or not fits_arrow(self._schema, (), lists=True) else self._rows

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        with naming_lost_changes():
            yield from arrow_batches(frame, rows_max)

    @property
    def _reread(self) -> bool:
        return self._rows is None and not self._cached

    def release(self) -> None:
        for frame in self._cached:
            release(frame)

    def _compute(
        self, key: tuple[str, ...], where: tuple[str, ...], stamped: bool, columns: tuple[str, ...]
    ) -> Changes:
        left_out = (CHANGE_TYPE,) if stamped else (CHANGE_TYPE, *STAMPS)
        if not key and (exact := self.with_equal_rows()) is not self:
            return exact._compute(key, where, stamped, columns)
        if self._rows is not None and fits_arrow(self._schema, key, arrays=bool(key)):
            rows = self._passing(self._rows, where)
            net = net_by_arrow(rows, key) if key else written_by_arrow(rows, self._named(columns))
            return self._by_arrow(net, key, left_out)
        raw = _restricted(self._raw(key), where)
        return self._by_spark(raw, key, left_out) if key else self._read_written(raw, self._named(columns), left_out)

    def _named(self, columns: tuple[str, ...]) -> list[str]:
        """Return these columns, as the source spells them; none: all."""
        wanted = {name.lower() for name in columns}
        return [field.name for field in self._schema.fields if not wanted or field.name.lower() in wanted]

    def _refuse_contradicted(self, changes: Changes, key: Sequence[str], where: Sequence[str]) -> None:
        """Refuse changes whose source has rows that share a key.

        A sink's own rows for a key show that; where nobody can read the sink, the source's do.
        """
        if not changes.rows + changes.passed:
            return
        with reading_changes("search rows that share a key"):
            after = _bounded(_restricted(self._after.frame(), where), changes.bounds)
            if contradicted(changes.frame, after, key):
                doubt(key)

    def _passing(self, rows: pa.Table, where: Sequence[str]) -> pa.Table:
        if where and has_special_texts(field.metadata for field in self._schema.fields):
            return self._passing_by_spark(where)
        passing = _passing_directly(rows, where)
        return self._passing_by_spark(where) if passing is None else passing

    def _passing_by_spark(self, where: Sequence[str]) -> pa.Table:
        leave_to_spark(f"a filter is computed by Spark: {' AND '.join(where)}")
        with spark_faults("filter the changes"):
            return _restricted(self._raw(()), where).toArrow()

    def _raw(self, key: tuple[str, ...]) -> DataFrame:
        """Return the changes; those of the range's step, where it is one."""
        if self._frame is None:
            assert self._rows is not None
            schema = T.StructType([*self._schema.fields, *_stamp_fields()])
            with spark_faults("hand the changes to Spark"):
                self._frame = frame_of_arrow(self._session, self._rows, schema)
        if not self._span.steps:
            return self._frame
        # The hash of rows without a key must not follow from what the jobs at work want to have read.
        names = key or [field.name for field in self._schema.fields if not unhashable(field.dataType)]
        classes = F.pmod(F.xxhash64(*[F.col(quoted(name)) for name in names]), F.lit(self._span.steps))
        return self._frame.where(classes == self._span.step)

    def _by_arrow(self, net: pa.Table, key: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        net = net.drop_columns([name for name in left_out if name in net.column_names])
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(net[OP]).to_pylist()}
        bounds = bounds_of_arrow(net, bounded(self._schema, key))
        stamps = [field for field in _stamp_fields() if field.name not in left_out]
        named = {*net.column_names}  # which are made again each time
        fields = [field for field in self._schema.fields if field.name in named]
        schema = T.StructType([*fields, *stamps, T.StructField(OP, T.StringType())])

        def make_frame() -> DataFrame:
            with spark_faults("hand the changes to Spark"):
                return frame_of_arrow(self._session, net, schema)

        if fits_arrow(self._schema, key):
            return _changes(Rows(make_frame, lambda: net), counts, bounds)
        return replace(_changes(Rows(make_frame), counts, bounds), with_arrays=net)

    def _read_written(self, raw: DataFrame, names: Sequence[str], left_out: tuple[str, ...]) -> Changes:
        frame = written_by_spark(raw, names, self._span.inserts_only)
        counted = _count_rows(frame.withColumn(DOUBTFUL, F.lit(False)), ())
        return counted.changes(frame.drop(*left_out), self._reread)

    def _by_spark(self, raw: DataFrame, key: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        counted = _count_rows(each_key(raw, key), key)
        if not counted.doubtful:
            return counted.changes(each_by_itself(raw).drop(*left_out), self._reread)
        frame = cached(net_by_spark(raw, key))
        self._cached.append(frame)  # what is made of it cannot be given back in its place
        counted = _count_rows(frame, key)
        if counted.doubtful:
            doubt(key)
        narrowed = frame.drop(DOUBTFUL, *left_out).coalesce(1 + sum(counted.rows.values()) // _ROWS_PER_PARTITION)
        return counted.changes(narrowed)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows by operation, whether one is doubtful, and the keys' bounds, if none of these was there before."""

    rows: dict[str, int]
    doubtful: bool
    bounds: KeyBounds

    def changes(self, frame: DataFrame, reread: bool = False) -> Changes:
        return _changes(Rows(lambda: frame, reread=reread), self.rows, self.bounds)


def _count_rows(frame: DataFrame, key: Sequence[str]) -> _Counted:
    """Count the rows, which is what really reads the source."""
    names = bounded(frame.schema, key)
    with reading_changes("read the changes"):
        each = frame.groupBy(OP).agg(F.count("*"), F.max(DOUBTFUL), *bounds_aggregates(names)).collect()
    all_absent = {row[0] for row in each} <= {*ABSENT_BEFORE}
    return _Counted(
        rows={row[0]: int(row[1]) for row in each},
        doubtful=any(row[2] for row in each),
        bounds=spanning([bounds_of_row(names, row[3:]) for row in each]) if all_absent else {},
    )


def _order_of(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return the places of the rows in the order of a changefeed: by version and key, nulls first, each key's former
    row before the one that was written.
    """
    names = {name.lower(): name for name in rows.column_names}
    columns = [rows[COMMIT_VERSION]]
    for name in key:
        values = rows[names[name.lower()]]
        columns += [pc.is_valid(values), values]
    columns.append(pc.is_in(rows[CHANGE_TYPE], value_set=pa.array(WRITES)))
    by = [str(place) for place in range(len(columns))]
    return pc.sort_indices(pa.table(columns, by), [(each, "ascending") for each in by])


def _bounded(frame: DataFrame, bounds: KeyBounds) -> DataFrame:
    """Return the rows whose keys lie within the bounds, which lets files be left out."""
    for name, (low, high) in bounds.items():
        frame = frame.where(F.col(quoted(name)).between(low, high))
    return frame


def _restricted(frame: DataFrame, where: Sequence[str]) -> DataFrame:
    """Return the rows for which each condition holds; each is parsed for itself."""
    for condition in where:
        frame = frame.where(condition)
    return frame


def _changes(net: Rows, counts: Mapping[str, int], bounds: KeyBounds) -> Changes:
    inserts, updates, deletes, passed = (counts.get(op, 0) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.PASSED))
    return Changes(net, inserts, updates, deletes, passed, bounds)


def _passing_directly(rows: pa.Table | None, where: Sequence[str]) -> pa.Table | None:
    """Return the rows for which all conditions are true; None: Spark has to decide, or has read them."""
    if rows is None or not where:
        return rows
    from iscp.algebra.row_conditions import passing_rows  # most jobs have no condition

    for condition in where:
        if (rows := passing_rows(rows, condition)) is None:
            break
    return rows
