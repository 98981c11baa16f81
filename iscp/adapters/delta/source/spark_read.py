"""Reads by Spark what commits changed or added, with the columns and types of the last of them.

Delta has no public way to read chosen files with all that a table may have (names mapped, types widened, deletion
vectors, partitions), and its public way to read changes gives the newest columns, through an object for each row, and
passes over commits that are gone. Its streams go the same way as this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from iscp.adapters.delta.log.commits import newest_version, read_added_files
from iscp.adapters.delta.log.live_files import (
    LoadState,
    NotReadableHere,
    TableState,
    list_files_here,
    list_live_files,
    load_state_here,
)
from iscp.adapters.delta.log.live_paths import ListFiles
from iscp.adapters.delta.log.log_guard import guard_log
from iscp.adapters.delta.log.readable_files import READABLE_FILES, require_readable, require_readable_commits
from iscp.adapters.delta.log.table_opening import LogGapError, list_again
from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from iscp.adapters.delta.source.arrow_read import Shape
from iscp.adapters.delta.spark.spark_errors import reading_changes, spark_faults
from iscp.adapters.system.late_imports import F, frame_of_java
from iscp.core.values.errors import StorageError, TableNotFound
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.work_timer import leave_to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
