"""Reads what changed in a source table, once for all jobs of an iteration (port ChangeSource).

How far an iteration goes is decided from the commit files alone. The rows come from Delta's change data feed
and are reduced to the net change of each key: its last operation in the range, and whether it was new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from iscp.adapters.delta.commits import Commit, commit_stamp, newest_version, read_commit
from iscp.adapters.delta.faults import delta_faults, spark_faults
from iscp.core.errors import EngineError, ErrorCode, PermanentError, StorageError, TableNotFound
from iscp.core.iteration import Bounds
from iscp.core.watermark import Watermark
from iscp.ports.pipeline import Changes, ChangesUnavailable, SourceRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OP = "_iscp_op"
_TYPE, _VERSION = "_change_type", "_commit_version"
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
    """The changes of one range (port Feed). `frame`: wanted columns, `_change_type`, `_commit_version`; persisted."""

    def __init__(self, frame: DataFrame, inserts_only: bool) -> None:
        self._raw = frame.persist()
        self._inserts_only = inserts_only
        self._net: dict[tuple[str, ...], Changes] = {}

    def net(self, key: Sequence[str]) -> Changes:
        known = self._net.get(tuple(key))
        if known is None:
            known = self._net[tuple(key)] = self._compute(tuple(key))
        return known

    def release(self) -> None:
        for changes in self._net.values():
            changes.frame.unpersist(blocking=False)
        self._raw.unpersist(blocking=False)

    def _compute(self, key: tuple[str, ...]) -> Changes:
        if not key or self._inserts_only:
            frame = self._raw.where(F.col(_TYPE) == "insert").drop(_TYPE, _VERSION).withColumn(OP, F.lit("i"))
            return Changes(frame, _counted(frame, "read the changes")["i"][0], 0, 0)
        frame = _net_of(self._raw, key).persist()
        counts = _counted(frame, "reduce the changes", duplicates=True)
        if any(duplicates > 1 for _, duplicates in counts.values()):
            raise PermanentError(
                f"several rows of one version share a key ({', '.join(key)})",
                field="spec.iteration.consumer.key",
                remedy="Choose a key that is unique in the source, or mend the source",
                code=ErrorCode.DUPLICATE_KEY,
            )
        rows = sum(count for count, _ in counts.values())
        narrowed = frame.drop("_iscp_same").coalesce(1 + rows // _ROWS_PER_PARTITION)
        return Changes(narrowed, counts["i"][0], counts["u"][0], counts["d"][0])


def _net_of(raw: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """One row a key: the last change wins; in one version what is written wins over what is taken away.

    Adds `_iscp_op` and `_iscp_same`, the number of rows written for the key in its last version (1 unless keys
    are shared). A key whose first change is an insert was not there before: op `i`, unless it is gone again.
    """
    written = F.col(_TYPE).isin("insert", "update_postimage").cast("int")
    each = raw.withColumn("_iscp_written", written)
    keys = [F.col(f"`{name}`") for name in key]
    by_key = Window.partitionBy(*keys)
    last_first = by_key.orderBy(F.col(_VERSION).desc(), F.col("_iscp_written").desc())
    first_first = by_key.orderBy(F.col(_VERSION), F.col("_iscp_written"))
    ranked = (
        each.withColumn("_iscp_rank", F.row_number().over(last_first))
        .withColumn("_iscp_first", F.first(_TYPE).over(first_first))
        .withColumn("_iscp_same", F.sum("_iscp_written").over(Window.partitionBy(*keys, _VERSION)))
    )
    op = (
        F.when(F.col("_iscp_written") == 0, F.lit("d"))
        .when(F.col("_iscp_first") == "insert", F.lit("i"))
        .otherwise(F.lit("u"))
    )
    return (
        ranked.where("_iscp_rank = 1")
        .withColumn(OP, op)
        .drop(_TYPE, _VERSION, "_iscp_written", "_iscp_rank", "_iscp_first")
    )


def _counted(frame: DataFrame, what: str, duplicates: bool = False) -> dict[str, tuple[int, int]]:
    """Rows and the greatest `_iscp_same` by operation; this is what really reads the source."""
    same = F.max("_iscp_same") if duplicates else F.lit(0)
    try:
        with spark_faults(what):
            found = {r[0]: (int(r[1]), int(r[2])) for r in frame.groupBy(OP).agg(F.count("*"), same).collect()}
    except EngineError as error:
        raise _unavailable(error) from error
    return {op: found.get(op, (0, 0)) for op in ("i", "u", "d")}


def _unavailable(error: EngineError) -> Exception:
    return ChangesUnavailable(error.message) if any(mark in error.message for mark in _GONE) else error


@dataclass(frozen=True, slots=True)
class _KnownId:
    version: int
    stamp: tuple[int, ...] | None
    table_id: str


class DeltaChangeSource:
    """Change data feed of Delta tables on local paths. Used by many threads: what it keeps is replaced whole."""

    def __init__(self) -> None:
        self._ids: dict[str, _KnownId] = {}

    def newest(self, uri: str) -> SourceRange:
        return self.at(uri, self._newest_version(uri))

    def at(self, uri: str, version: int) -> SourceRange:
        commit = read_commit(uri, version)
        if commit is None:
            raise ChangesUnavailable(f"version {version} is not in the log any more")
        at = Watermark(version, commit.committed_at_s)
        return SourceRange(version, at, self._table_id(uri, version), first_commit_at_s=commit.committed_at_s)

    def resolve(self, uri: str, from_version: int, to_version: int | None, bounds: Bounds) -> SourceRange:
        newest = self._newest_version(uri)
        wanted = newest if to_version is None else min(to_version, newest)
        if newest < from_version:
            raise PermanentError(
                f"the log of {uri} ends at version {newest}, before the job's watermark {from_version}: "
                "the table was dropped and created anew",
                remedy="Delete the job and register it again",
                code=ErrorCode.SOURCE_REPLACED,
            )
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
        last = taken[-1]
        return SourceRange(
            from_version,
            Watermark(last.version, last.committed_at_s),
            self._table_id(uri, last.version),
            more=last.version < wanted,
            first_commit_at_s=taken[0].committed_at_s,
            changes_data=any(commit.changes_data for commit in taken),
            inserts_only=all(commit.only_adds or not commit.changes_data for commit in taken),
        )

    def feed(self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str]) -> DeltaFeed:
        try:
            with spark_faults(f"open the change data feed of {uri}"):
                frame = (
                    session.read.format("delta")
                    .option("readChangeFeed", "true")
                    .option("startingVersion", span.from_version + 1)
                    .option("endingVersion", span.to.version)
                    .load(uri)
                    .select(*[F.col(f"`{name}`") for name in columns], _TYPE, _VERSION)
                )
                return DeltaFeed(frame, span.inserts_only)
        except EngineError as error:
            raise _unavailable(error) from error

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

    def _table_id(self, uri: str, version: int) -> str:
        """The table's id as of `version`, kept up by the commits alone: opening a table costs with its size."""
        known = self._ids.get(uri)
        if known is None or known.version > version or commit_stamp(uri, known.version) != known.stamp:
            with delta_faults(f"open {uri}"):
                opened = DeltaTable(uri, version=version)
                table_id = str(opened.metadata().id)
        else:
            table_id = known.table_id
            for later in range(known.version + 1, version + 1):
                commit = read_commit(uri, later)
                table_id = (commit.metadata_id if commit else None) or table_id
        self._ids[uri] = _KnownId(version, commit_stamp(uri, version), table_id)
        return table_id
