"""The reading of a source by Spark: what commits changed or added, the rows that commits have written, and ranges of a
snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from iscp.delta.log.commits import ChangeFile, newest_version, read_added_files
from iscp.delta.log.live_files import (
    ListFiles,
    LoadState,
    NotReadableHere,
    TableState,
    list_files_here,
    list_live_files,
    load_state_here,
)
from iscp.delta.log.readable_files import READABLE_FILES, require_readable, require_readable_commits
from iscp.delta.log.table_opening import LogGapError, guard_log, list_again
from iscp.delta.rows.net_changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OP,
    STAMPS,
    WRITES,
    without_void,
)
from iscp.delta.rows.row_keys import row_hashes
from iscp.delta.source.arrow_read import NotDirectError, Shape, read_files
from iscp.delta.source.open_table import open_version
from iscp.model.build.build_task import RangeFiles, SnapshotFile, files_in_range, row_spans
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import InvalidRequest, StorageError, TableNotFound
from iscp.model.values.progress import UNKNOWN, TableSize
from iscp.ports.engine import leave_to_spark
from iscp.ports.source import ChangesUnavailableError, Rows, SourceRange
from iscp.spark.spark_errors import reading_changes, spark_faults
from iscp.spark.spark_frames import cached, release
from iscp.storage.bounded_parquet import Allowance, TooLargeError
from iscp.system.late_imports import F, frame_of_java, pc
from iscp.system.recent_values import RecentValues

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# --- versions, changes and chosen files -------------------------------------------------------------------------------
# Spark reads what commits changed or added, with the columns and types of the last of them. Delta has no public way to
# read chosen files with all that a table may have (names mapped, types widened, deletion vectors, partitions), and its
# public way to read changes gives the newest columns, through an object for each row, and passes over commits that are
# gone. Its streams go the same way as this.

LISTED_FILES_MAX = 64
"""Files of a table that are listed once for all plans; of more Delta leaves out what each does not need."""


def load_version(
    session: SparkSession,
    uri: str,
    version: int | None = None,
    added: Callable[[int], Sequence[str] | None] | None = None,
) -> DataFrame:
    """Return all rows as of `version`, or of the newest. Raises what Spark raises, and as `ReadableFiles.require`.

    Give `added` where several plans are made of the frame: it returns the actions that added the files, up to a number.
    Delta lists a table's files again in each plan, once for each time that the plan reads it, as a job of Spark's each;
    so they are listed once here, if they are few: where they are many, a plan's conditions may leave out most. Where
    `added` does not know them, Delta lists them, which takes a job too.
    """
    require_files_of(session, uri, version)
    if added is not None and version is not None:
        opened = open_log(session, uri, version)
        if actions := added(LISTED_FILES_MAX):
            adds = [json.loads(each)["add"] for each in actions]
            require_readable(uri, ((add["path"], add.get("deletionVector")) for add in adds))
            return frame_of_files(opened, session, actions)
        files = opened[2].allFiles().takeAsList(LISTED_FILES_MAX + 1)
        if 0 < files.size() <= LISTED_FILES_MAX:
            return _frame_of(opened, session, files)
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return list_again(partial(reader.load, uri))


def require_files_of(session: SparkSession, uri: str, version: int | None = None) -> None:
    """Raise as `ReadableFiles.require` where Spark is not to read all of a version, or of the newest."""
    guard_log(uri, version)
    at = newest_version(uri) if version is None else version
    # Of the deletion vectors that Spark is to open a checkpoint may name others than the commits do.
    listed = partial(_list_files, session, list_live_files)
    READABLE_FILES.require(uri, at, listed, partial(_list_by_spark, session))


def load_changed_rows(session: SparkSession, uri: str, span: SourceRange) -> DataFrame:
    """Return all changes of the commits of `span`, as the change data feed has them, in no order.

    Raises ChangesUnavailableError where a commit of it is gone, and as `require_readable`.
    """
    delta, log, snapshot = open_log(session, uri, span.last_version)
    first, last = span.from_version + 1, span.last_version
    reader, name = delta.commands.cdc.CDCReader, "changesToDF"
    try:
        commits = list_again(partial(_list_commits, log, first, last))
    except LogGapError as error:
        raise ChangesUnavailableError(error.message) from error
    require_readable_commits(uri, first, last)
    no_catalog = _default(log, "getChanges", 2)
    rest = [_default(reader, name, place) for place in (7, 8, 9)]
    # By what a commit says of itself Delta leaves out rows of merges that say that they had no effect.
    each = session._jvm.io.iscp.delta.CommitActions.withoutInfo(commits)  # type: ignore[union-attr]
    changes = reader.changesToDF(snapshot, first, last, each, session._jsparkSession, no_catalog, *rest)
    return frame_of_java(changes.fileChangeDf(), session)


def load_added_rows(session: SparkSession, uri: str, span: SourceRange) -> DataFrame:
    """Return all rows of the files that the commits of `span` added, whether or not the table has a change data feed.

    Raises as `load_changed_rows`.
    """
    actions: list[str] = []
    for version in range(span.from_version + 1, span.last_version + 1):
        lines = read_added_files(uri, version)
        if lines is None:
            raise ChangesUnavailableError(f"version {version} is not in the log any more")
        actions += lines
    require_readable_commits(uri, span.from_version + 1, span.last_version)
    return frame_of_files(open_log(session, uri, span.last_version), session, actions)


def frame_of_files(opened: tuple[Any, Any, Any], session: SparkSession, actions: Iterable[str]) -> DataFrame:
    """Return all rows of chosen files of a table, by the actions that added them, with the columns of what was
    `opened`.
    """
    return _frame_of(opened, session, _files_of(opened, session, actions))


def frames_of_places(
    opened: tuple[Any, Any, Any],
    session: SparkSession,
    action: str,
    path: str,
    spans_of: Callable[[list[int]], Sequence[tuple[int, int]]],
) -> list[DataFrame]:
    """Return some rows of one file, by the action that added it and the path that this names: a frame for each span of
    them.

    `spans_of` returns these from how many rows each row group has, those included that are gone: from the first place
    in the file to before the last. Other row groups than those of a span are not read.
    """
    jvm: Any = session._jvm
    relation, chosen = _relation_of(opened, session, _files_of(opened, session, [action])), jvm.io.iscp.delta
    place = F.col("_metadata.row_index")
    frames = []
    for first, last in spans_of(list(chosen.ChosenRowsFormat.groupRows(relation, path))):
        rows = _read(session, chosen.ChosenRowsFormat.relation(relation, path, first, last))
        frames.append(rows.where((place >= F.lit(first)) & (place < F.lit(last))))
    return frames


def _files_of(opened: tuple[Any, Any, Any], session: SparkSession, actions: Iterable[str]) -> Any:
    jvm: Any = session._jvm
    files = jvm.java.util.ArrayList()
    for each in actions:
        files.add(opened[0].actions.Action.fromJson(each))
    return files


def _frame_of(opened: tuple[Any, Any, Any], session: SparkSession, files: Any) -> DataFrame:
    return _read(session, _relation_of(opened, session, files))


def _relation_of(opened: tuple[Any, Any, Any], session: SparkSession, files: Any) -> Any:
    """Return the relation that Delta's own `createDataFrame` makes, but that Delta searches none of the files again."""
    _, log, snapshot = opened
    jvm: Any = session._jvm
    chosen = jvm.scala.jdk.javaapi.CollectionConverters.asScala(files).toSeq()
    index = jvm.io.iscp.delta.ListedFileIndex(session._jsparkSession, chosen, log, snapshot)
    name = "buildHadoopFsRelationWithFileIndex"
    return getattr(log, name)(snapshot, index, jvm.scala.Option.empty(), _default(log, name, 4))


def _read(session: SparkSession, relation: Any) -> DataFrame:
    jvm: Any = session._jvm
    made = getattr(jvm.org.apache.spark.sql.execution.datasources, "LogicalRelation$").__getattr__("MODULE$")
    plan = made.apply(relation, False)
    return frame_of_java(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def inserted_by(span: SourceRange) -> list[Column]:
    """Return the columns that the change data feed has beside rows that were added."""
    return [
        F.lit("insert").alias(CHANGE_TYPE),
        F.lit(span.last_version).cast("long").alias(COMMIT_VERSION),
        F.timestamp_micros(F.lit(round(span.to.at_s * 1_000_000))).alias(COMMIT_TIMESTAMP),
    ]


def table_opener(session: SparkSession) -> Callable[[str, int], Shape]:
    """Opens tables that deltalake does not; raises what `spark_faults` does."""

    def open_table(uri: str, version: int) -> Shape:
        leave_to_spark(f"{uri} is a table that is opened by Spark alone")
        with spark_faults(f"open {uri} at version {version}"):
            _, _, snapshot = open_log(session, uri, version)
            jvm: Any = session._jvm
            metadata, as_java = snapshot.metadata(), jvm.scala.jdk.javaapi.CollectionConverters.asJava
            shape = Shape(
                str(metadata.id()),
                str(metadata.schema().json()),  # of a table without columns too
                tuple(as_java(metadata.partitionColumns())),
                dict(as_java(metadata.configuration())),
                frozenset(as_java(snapshot.protocol().readerFeatureNames())),
            )
            if shape.every_field and not shape.doubled:
                load_version(session, uri, version)  # else types that it does not read show at the first iteration
            return shape

    return open_table


def state_loader(session: SparkSession) -> LoadState:
    """Load states as `load_state_here` does, and by Spark's snapshot those of all other tables."""

    def load(uri: str, version: int) -> TableState:
        try:
            return load_state_here(uri, version)
        except (NotReadableHere, StorageError, TableNotFound):
            leave_to_spark(f"the files of {uri} are listed by Spark", unless_known=True)
            return _load_state(session, uri, version)

    return load


def file_lister(session: SparkSession) -> ListFiles:
    """List files as `list_files_here` does, or else by Spark."""
    return partial(_list_files, session, list_files_here)


def _list_files(
    session: SparkSession, list_first: ListFiles, uri: str, version: int
) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    with suppress(NotReadableHere, StorageError, TableNotFound):
        return list_first(uri, version)
    leave_to_spark(f"the files of {uri} are listed by Spark", unless_known=True)
    return _list_by_spark(session, uri, version)


def _list_by_spark(session: SparkSession, uri: str, version: int) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    with reading_changes(f"list the files of {uri}"):
        adds = _load_state(session, uri, version).adds.values()
    return [(add["path"], add.get("deletionVector")) for add in adds]


def _load_state(session: SparkSession, uri: str, version: int) -> TableState:
    with spark_faults(f"list the files of {uri}"):
        _, _, snapshot = open_log(session, uri, version)
        files = frame_of_java(snapshot.allFiles().toDF(), session)
        found = files.select(action_json(files).alias("add")).toArrow()["add"].to_pylist()
        about = json.loads(snapshot.protocol().json()) | json.loads(snapshot.metadata().json())
    return TableState.of(about["protocol"], about["metaData"], map(json.loads, found))


def action_json(files: DataFrame, without: Collection[str] = ()) -> Column:
    """Return the body of the action that added a file, from rows of a snapshot's files, but for some of its fields."""
    return F.to_json(F.struct(*[F.col(name) for name in files.columns if name not in without]))


def open_log(session: SparkSession, uri: str, version: int) -> tuple[Any, Any, Any]:
    """Return Delta's package, the table's log, and its snapshot at a version. Raises StorageError where it may not be
    opened.
    """
    guard_log(uri, version)
    return list_again(partial(_list_log, session, uri, version))


def _list_log(session: SparkSession, uri: str, version: int) -> tuple[Any, Any, Any]:
    jvm: Any = session._jvm
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(session._jsparkSession, uri)
    # Else it may still know a version of a log that was there before.
    log.update(*[_default(log, "update", place) for place in (1, 2, 3)])
    rest = [_default(log, "getSnapshotAt", place) for place in (2, 3, 4)]
    return delta, log, log.getSnapshotAt(version, *rest)


def _list_commits(log: Any, first: int, last: int) -> Any:
    """Return each version with its actions; raise LogGap where one is not there, as Delta would pass over it and its
    rows.
    """
    rest = [_default(log, "getChanges", place) for place in (2, 3)]
    commits = log.getChanges(first, last, *rest).toList()
    if (lacking := last - first + 1 - commits.size()) > 0:
        raise LogGapError(f"{lacking} of the versions {first} to {last} are not in the log any more")
    return commits


def _default(owner: Any, method: str, place: int) -> Any:
    """Return the default of an argument in Scala."""
    return getattr(owner, f"{method}$default${place}")()


# --- rows that commits have written -----------------------------------------------------------------------------------
# They are for who keeps every row: without a key nothing says which row became which. A commit has written a row as
# often as the row is there afterwards more often than before. So an updated row counts as a new one, and a row that a
# commit only moved, or wrote again as it was, does not count. A commit that was cut into steps is taken step by step.

_SIGN, _ROW, _TIMES = "_iscp_sign", "_iscp_row", "_iscp_times"


def written_by_arrow(raw: pa.Table, names: Sequence[str]) -> pa.Table:
    """Takes the columns `names`, `_change_type` and the stamps; gives `names`, the stamps and `_iscp_op`."""
    written = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES))
    rows = raw.select([*names, *STAMPS])
    if not pc.all(written).as_py():
        rows = rows.append_column(_SIGN, pc.if_else(written, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64())))
        rows = rows.group_by([*names, *STAMPS], use_threads=False).aggregate([(_SIGN, "sum")])
        often = np.maximum(rows[f"{_SIGN}_sum"].to_numpy(), 0)
        rows = rows.drop_columns([f"{_SIGN}_sum"]).take(pa.array(np.repeat(np.arange(len(rows)), often)))
    return rows.append_column(OP, pa.repeat(pa.scalar("i"), len(rows)))


def written_by_spark(raw: DataFrame, names: Sequence[str], inserts_only: bool) -> DataFrame:
    """Return the written rows as `written_by_arrow`; `inserts_only`: it is known that nothing else was done."""
    rows = raw.select(*[F.col(quoted(name)) for name in names])
    columns = [field.name for field in rows.schema.fields]
    columns_read = [F.col(quoted(name)) for name in columns]
    if inserts_only:
        return raw.where(F.col(CHANGE_TYPE) == "insert").select(*columns_read, *STAMPS, F.lit("i").alias(OP))
    first, second = row_hashes(rows)
    by_row = (
        raw.select(
            F.struct(*columns_read).alias(_ROW),
            first.alias("_iscp_first"),
            second.alias("_iscp_second"),
            F.when(F.col(CHANGE_TYPE).isin(*WRITES), 1).otherwise(-1).alias(_SIGN),
            *STAMPS,
        )
        .groupBy(COMMIT_VERSION, "_iscp_first", "_iscp_second")
        .agg(F.sum(_SIGN).alias(_TIMES), F.first(_ROW).alias(_ROW), F.first(COMMIT_TIMESTAMP).alias(COMMIT_TIMESTAMP))
        .where(F.col(_TIMES) > 0)
    )
    each = by_row.withColumn(OP, F.explode(F.array_repeat(F.lit("i"), F.col(_TIMES).cast("int"))))
    return each.select(*[F.col(_ROW).getField(name).alias(name) for name in columns], *STAMPS, OP)


# --- ranges of a snapshot ---------------------------------------------------------------------------------------------
# Ranges of a table's snapshot are read by Spark: exactly the files, and parts of files, that are in them. Which files
# these are follows from the names of all files, so that every node has to list the same ones: Spark's snapshot has them
# all, whatever kind of checkpoint they are in.

LISTINGS_CACHED_MAX = 4
"""Snapshots whose files are remembered for the next range; of others they are listed again."""

RANGE_BYTES_MAX = 1024**3
"""Memory for the rows of a range that are read and staged without Spark; Spark does it where they take more."""

_UNREAD = frozenset({"stats"})
"""The fields that take most of an action's room, and that no reader of chosen files needs."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of a snapshot, and of each the action as JSON.

    `shape`: what the table is then; None: only Spark opens it.
    """

    files: tuple[SnapshotFile, ...]
    shape: Shape | None
    actions: Mapping[SnapshotFile, str]


class DeltaRangeReader:
    """Port RangeReader. Safe for threads."""

    def __init__(self, bytes_max: int = RANGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._listings: RecentValues[tuple[str, int, str], _Listing] = RecentValues(LISTINGS_CACHED_MAX)

    def rows(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> Rows | None:
        what = f"read a range of {uri} at version {version}"
        with reading_changes(what):
            opened = open_log(session, uri, version)
            listing = self._list_opened(session, uri, version, opened[2])
        found = files_in_range(listing.files, piece_bytes, range_id)
        if found.empty:
            return None

        def read_by_spark() -> DataFrame:
            with reading_changes(what):
                return _frame_of_range(opened, session, listing, found)

        return Rows(read_by_spark, partial(self._read_directly, uri, listing, found))

    def _read_directly(self, uri: str, listing: _Listing, found: RangeFiles) -> pa.Table | None:
        if not self._bytes_max or listing.shape is None or found.parts:
            return None
        chosen = [_file(json.loads(listing.actions[file])["add"]) for file in found.whole]
        try:
            return read_files(uri, chosen, listing.shape, Allowance(self._bytes_max))
        except (NotDirectError, TooLargeError):
            return None

    def size(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        listing = self._list(session, uri, version)
        return files_in_range(listing.files, piece_bytes, range_id).size

    @contextmanager
    def read_once(self, rows: Rows) -> Iterator[Rows]:
        with ExitStack() as stack:

            def cache() -> DataFrame:
                frame = cached(rows.frame)
                stack.callback(release, frame)
                return frame

            yield Rows(cache, lambda: rows.table)

    def _list(self, session: SparkSession, uri: str, version: int) -> _Listing:
        with reading_changes(f"list the files of {uri} at version {version}"):
            return self._list_opened(session, uri, version, open_log(session, uri, version)[2])

    def _list_opened(self, session: SparkSession, uri: str, version: int, snapshot: Any) -> _Listing:
        key = uri, version, str(snapshot.metadata().id())
        return self._listings.get(key) or self._listings.put(key, _list_range_files(session, uri, version, snapshot))


def _frame_of_range(
    opened: tuple[Any, Any, Any], session: SparkSession, listing: _Listing, found: RangeFiles
) -> DataFrame:
    whole = [listing.actions[file] for file in found.whole]
    frames = [frame_of_files(opened, session, whole)] if whole else []
    for file, pieces in found.parts.items():
        # By its place in the file, which rows that are gone have too, a row belongs to one group for certain.
        spans_of = partial(row_spans, pieces=pieces)
        frames += frames_of_places(opened, session, listing.actions[file], file.path, spans_of)
    return without_void(reduce(lambda one, other: one.unionAll(other), frames))


def _list_range_files(session: SparkSession, uri: str, version: int, snapshot: Any) -> _Listing:
    frame = frame_of_java(snapshot.allFiles().toDF(), session)
    action = action_json(frame, _UNREAD)
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint") - F.coalesce(
        "deletionVector.cardinality", F.lit(0)
    )
    vector = F.to_json("deletionVector")
    found = frame.select("path", "size", rows.alias("rows"), vector.alias("vector"), action.alias("action"))
    table = sorted(found.toArrow().to_pylist(), key=lambda row: (str(row["path"]), str(row["vector"])))
    require_readable(uri, ((row["path"], row["vector"] and json.loads(row["vector"])) for row in table))
    files = tuple(SnapshotFile(row["path"], _size_of(row), _vector_id(row["vector"])) for row in table)
    shape = None
    with suppress(StorageError, InvalidRequest):  # of a table that only Spark opens nothing is read without it
        shape = open_version(uri, version, None)[0]
    actions = (f'{{"add":{row["action"]}}}' for row in table)
    return _Listing(files, shape, dict(zip(files, actions, strict=True)))


def _file(add: Mapping[str, Any]) -> ChangeFile:
    return ChangeFile(
        add["path"], "insert", add.get("partitionValues") or {}, add["size"], without=add.get("deletionVector")
    )


def _size_of(row: Mapping[str, Any]) -> TableSize:
    return TableSize(UNKNOWN if row["rows"] is None else row["rows"], row["size"])


def _vector_id(text: str | None) -> str:
    if text is None:
        return ""
    vector = json.loads(text)
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset', 0)}"
