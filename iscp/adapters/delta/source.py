"""Reads what changed in a source table, once for all jobs of an iteration (port ChangeSource).

How far an iteration goes is decided from the commit files alone. The rows come from Delta's change data feed
and are reduced to the net change of each key: its last operation in the range, and whether it was new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import functions as F

from iscp.adapters.delta.added import added_rows
from iscp.adapters.delta.bounds import bounded, bounds_aggregates, bounds_of_arrow, bounds_of_row
from iscp.adapters.delta.commits import Commit, commit_stamp, newest_version, read_commit
from iscp.adapters.delta.faults import delta_faults, spark_faults
from iscp.adapters.delta.net import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OP,
    SAME,
    STAMPS,
    WRITES,
    doubt,
    fits_arrow,
    net_by_arrow,
    net_by_spark,
)
from iscp.core.errors import EngineError, StorageError, TableNotFound
from iscp.core.iteration import Bounds
from iscp.core.quoting import quoted
from iscp.core.watermark import Watermark
from iscp.ports.pipeline import Changes, ChangesUnavailable, KeyBounds, SourceRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SMALL_BYTES_MAX = 8 * 1024**2
"""Changes whose files are not larger than that are reduced in this process."""

_FEED = "delta.enableChangeDataFeed"
_ROWS_PER_PARTITION = 250_000
_GONE = (
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "DELTA_CHANGE_DATA_READ_INCOMPATIBLE",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE",
    "DELTA_VERSION_NOT_CONTIGUOUS",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FileNotFoundException",
    "FAILED_READ_FILE",
    "VersionNotFoundException",
    "DELTA_CANNOT_RECONSTRUCT_PATH",
    "DELTA_STATE_RECOVER_ERROR",
)


class DeltaFeed:
    """The changes of one range (port Feed).

    `frame` has the wanted columns, `_change_type` and the stamps. A small range is read into this process, a large one
    kept by Spark; either way once.
    """

    def __init__(self, frame: DataFrame, inserts_only: bool, small: bool) -> None:
        self._inserts_only = inserts_only
        self._rows: pa.Table | None = None
        if small and fits_arrow(frame.drop(CHANGE_TYPE, *STAMPS).schema, ()):
            with reading_changes("read the changes"):
                self._rows = frame.toArrow()
        self._raw = frame if self._rows is not None else frame.persist()
        self._net: dict[tuple[tuple[str, ...], str, bool], Changes] = {}
        self._kept: list[DataFrame] = []

    def net(self, key: Sequence[str], where: str = "", stamped: bool = False) -> Changes:
        known = self._net.get((tuple(key), where, stamped))
        if known is None:
            known = self._net[tuple(key), where, stamped] = self._compute(tuple(key), where, stamped)
        return known

    def all(self, key: Sequence[str]) -> DataFrame:
        raw = self._raw
        with reading_changes("read the changes"):
            if self._rows is not None:
                raw = raw.sparkSession.createDataFrame(self._rows, raw.schema)
            else:
                raw.count()  # what cannot be read has to show here
        is_written = F.col(CHANGE_TYPE).isin(*WRITES)
        return raw.orderBy(COMMIT_VERSION, *[F.col(quoted(name)) for name in key], is_written)

    def release(self) -> None:
        for frame in self._kept:
            frame.unpersist(blocking=False)
        if self._rows is None:
            self._raw.unpersist(blocking=False)

    def _compute(self, key: tuple[str, ...], where: str, stamped: bool) -> Changes:
        left_out = (CHANGE_TYPE,) if stamped else (CHANGE_TYPE, *STAMPS)
        if self._rows is not None and fits_arrow(self._raw.schema, key):
            return self._by_arrow(self._passing(self._rows, where), key, left_out)
        raw = self._raw.where(where) if where else self._raw
        return (
            self._inserted(raw, key, left_out) if not key or self._inserts_only else self._by_spark(raw, key, left_out)
        )

    def _passing(self, rows: pa.Table, where: str) -> pa.Table:
        if not where:
            return rows
        with spark_faults("filter the changes"):
            return self._raw.sparkSession.createDataFrame(rows, self._raw.schema).where(where).toArrow()

    def _by_arrow(self, rows: pa.Table, key: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        if not key:
            inserted = rows.filter(pc.equal(rows[CHANGE_TYPE], "insert"))
            net = inserted.append_column(OP, pa.array(["i"] * len(inserted), pa.string()))
        else:
            net = net_by_arrow(rows, key)
        net = net.drop_columns([name for name in left_out if name in net.column_names])
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(net[OP]).to_pylist()}
        schema = self._raw.drop(*left_out).schema
        bounds = bounds_of_arrow(net, bounded(schema, key))
        with spark_faults("hand the changes to Spark"):
            frame = self._raw.sparkSession.createDataFrame(net, schema.add(OP, "string"))
        return _changes(frame, counts, bounds)

    def _inserted(self, raw: DataFrame, key: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        frame = raw.where(F.col(CHANGE_TYPE) == "insert").drop(*left_out)
        frame = frame.withColumn(OP, F.lit("i"))
        if key:
            with reading_changes("look for shared keys"):
                rows = F.count("*").alias(SAME)  # no name that a column of the source may have
                counted = frame.groupBy(*[F.col(quoted(name)) for name in key]).agg(rows)
                if not counted.where(f"{SAME} > 1").isEmpty():
                    doubt(key)
        return _counted(frame, F.lit(0), key).changes(frame)

    def _by_spark(self, raw: DataFrame, key: tuple[str, ...], left_out: tuple[str, ...]) -> Changes:
        frame = net_by_spark(raw, key).persist()
        self._kept.append(frame)  # what is made of it cannot be given back in its place
        counted = _counted(frame, F.max(SAME), key)
        if counted.shared > 1:
            doubt(key)
        narrowed = frame.drop(SAME, *left_out).coalesce(1 + sum(counted.rows.values()) // _ROWS_PER_PARTITION)
        return counted.changes(narrowed)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows by operation, the most that share a key, and the bounds of keys that are new, if there are no others."""

    rows: dict[str, int]
    shared: int
    bounds: KeyBounds

    def changes(self, frame: DataFrame) -> Changes:
        return _changes(frame, self.rows, self.bounds)


def _counted(frame: DataFrame, shared: Column, key: Sequence[str]) -> _Counted:
    """This is what really reads the source."""
    names = bounded(frame.schema, key)
    with reading_changes("read the changes"):
        each = frame.groupBy(OP).agg(F.count("*"), shared, *bounds_aggregates(names)).collect()
    return _Counted(
        rows={row[0]: int(row[1]) for row in each},
        shared=max((int(row[2]) for row in each), default=0),
        bounds=bounds_of_row(names, each[0][3:]) if {row[0] for row in each} == {"i"} else {},
    )


def _changes(frame: DataFrame, rows: Mapping[str, int], bounds: KeyBounds) -> Changes:
    return Changes(frame, rows.get("i", 0), rows.get("u", 0), rows.get("d", 0), bounds)


@contextmanager
def reading_changes(what: str) -> Iterator[None]:
    """Tells changes that are gone (ChangesUnavailable) from a Spark that fails."""
    try:
        with spark_faults(what):
            yield
    except EngineError as error:
        if any(mark in error.message for mark in _GONE):
            raise ChangesUnavailable(error.message) from error
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    """A version that was looked at, of which table, and when it was committed."""

    version: int
    stamp: tuple[int, ...] | None
    table_id: str
    committed_at_s: float
    feed_on: bool


class DeltaChangeSource:
    """Change data feed of Delta tables on local paths. Used by many threads: what it keeps is replaced whole."""

    def __init__(self, small_bytes_max: int = SMALL_BYTES_MAX) -> None:
        self._small_bytes_max = small_bytes_max
        self._known: dict[str, _Known] = {}

    def newest(self, uri: str) -> SourceRange:
        return self.at(uri, self._newest_version(uri))

    def at(self, uri: str, version: int) -> SourceRange:
        commit = read_commit(uri, version)
        if commit is None:
            raise ChangesUnavailable(f"version {version} is not in the log any more")
        at = Watermark(version, commit.committed_at_s)
        known = self._look(uri, version, at.at_s)
        return SourceRange(
            version, at, known.table_id, first_commit_at_s=at.at_s, from_at_s=at.at_s, feed_on=known.feed_on
        )

    def resolve(self, uri: str, from_version: int, to_version: int | None, bounds: Bounds) -> SourceRange:
        newest = self._newest_version(uri)
        wanted = newest if to_version is None else min(to_version, newest)
        if newest < from_version:
            raise ChangesUnavailable(f"the log ends at version {newest}, before the watermark {from_version}")
        if wanted <= from_version:
            return self.at(uri, from_version)
        taken: list[Commit] = []
        rows = size = 0
        for version in range(from_version + 1, wanted + 1):
            commit = read_commit(uri, version)
            if commit is None:
                raise ChangesUnavailable(f"version {version} is not in the log any more")
            rows, size = rows + (commit.rows_added or 0), size + commit.bytes
            over = rows > bounds.rows_max or size > bounds.bytes_max or len(taken) >= bounds.versions_max
            if taken and over:
                break
            taken.append(commit)
        last, from_at_s = taken[-1], self._committed_at_s(uri, from_version)
        known = self._look(uri, last.version, last.committed_at_s)
        return SourceRange(
            from_version,
            Watermark(last.version, last.committed_at_s),
            known.table_id,
            more=last.version < wanted,
            first_commit_at_s=taken[0].committed_at_s,
            from_at_s=from_at_s,
            bytes=sum(commit.bytes for commit in taken),
            # Columns may have come, gone or been renamed without a row.
            changes_data=any(commit.changes_data or commit.metadata_id is not None for commit in taken),
            inserts_only=all(commit.only_adds or not commit.changes_data for commit in taken),
            feed_on=known.feed_on,
        )

    def feed(self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str]) -> DeltaFeed:
        with reading_changes(f"open the change data feed of {uri}"):
            frame = (
                session.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", span.from_version + 1)
                .option("endingVersion", span.to.version)
                .load(uri)
                .select(*[F.col(quoted(name)) for name in columns], CHANGE_TYPE, *STAMPS)
            )
            return DeltaFeed(frame, span.inserts_only, span.bytes <= self._small_bytes_max)

    def added(self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str]) -> DeltaFeed:
        with reading_changes(f"read what was added to {uri}"):
            frame = added_rows(session, uri, span).select(
                *[F.col(quoted(name)) for name in columns],
                F.lit("insert").alias(CHANGE_TYPE),
                F.lit(span.to.version).cast("long").alias(COMMIT_VERSION),
                F.timestamp_micros(F.lit(round(span.to.at_s * 1_000_000))).alias(COMMIT_TIMESTAMP),
            )
            return DeltaFeed(frame, True, span.bytes <= self._small_bytes_max)

    def snapshot(self, session: SparkSession, uri: str, version: int) -> DataFrame:
        with spark_faults(f"open {uri} at version {version}"):
            return session.read.format("delta").option("versionAsOf", version).load(uri)

    def columns(self, session: SparkSession, uri: str) -> tuple[str, ...]:
        with spark_faults(f"open {uri}"):
            return tuple(session.read.format("delta").load(uri).columns)

    def _newest_version(self, uri: str) -> int:
        try:
            return newest_version(uri)
        except TableNotFound as error:
            # It was there when the job was registered: a directory that is not mounted now comes back.
            raise StorageError(f"{uri} is not there", remedy="Mount or restore it, or delete its jobs") from error

    def _committed_at_s(self, uri: str, version: int) -> float:
        known = self._known.get(uri)
        if known is not None and known.version == version and commit_stamp(uri, version) == known.stamp:
            return known.committed_at_s
        commit = read_commit(uri, version)
        return commit.committed_at_s if commit else 0.0

    def _look(self, uri: str, version: int, committed_at_s: float) -> _Known:
        """What the table is as of `version`; opened only if its metadata may have changed: that costs with its size."""
        known = self._known.get(uri)
        if known is not None and self._same_metadata(uri, known, version):
            table_id, feed_on = known.table_id, known.feed_on
        else:
            with delta_faults(f"open {uri}"):
                metadata = DeltaTable(uri, version=version).metadata()
            table_id, feed_on = str(metadata.id), metadata.configuration.get(_FEED, "false").lower() == "true"
        self._known[uri] = _Known(version, commit_stamp(uri, version), table_id, committed_at_s, feed_on)
        return self._known[uri]

    def _same_metadata(self, uri: str, known: _Known, version: int) -> bool:
        if known.version > version or commit_stamp(uri, known.version) != known.stamp:
            return False
        commits = (read_commit(uri, later) for later in range(known.version + 1, version + 1))
        return not any(commit is None or commit.metadata_id is not None for commit in commits)
