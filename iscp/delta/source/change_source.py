"""Reads what changed in a source table, once for all jobs of an iteration (port ChangeSource); and probes whether a
Delta log has moved at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from iscp.delta.log.actions import text_of
from iscp.delta.log.commits import (
    TABLE_MOVED,
    Commit,
    list_log,
    log_of,
    origin_of,
    read_changed_files,
    read_commit,
    read_commit_info,
    read_origin,
    version_of,
)
from iscp.delta.log.live_files import (
    ListFiles,
    LivePaths,
    LoadState,
    NotReadableHere,
    list_live_files,
    load_plain_state,
)
from iscp.delta.log.table_opening import hinted_version
from iscp.delta.rows.net_changes import CHANGE_TYPE, STAMPS, fits_arrow, without_void
from iscp.delta.source.arrow_read import NotDirectError, Shape, fit_in_memory, read_changes, read_rows
from iscp.delta.source.change_set import DeltaChangeSet, RowsAfter
from iscp.delta.source.delta_catalog import fields_lost, retyped_columns, set_properties
from iscp.delta.source.open_table import BySpark, KnownShapes, RowLookup, explained, size_at, size_of_state
from iscp.delta.source.spark_read import inserted_by, load_added_rows, load_changed_rows, load_version
from iscp.model.job.iteration import Bounds, UsagePart
from iscp.model.job.source_holds import is_repair
from iscp.model.job.start_rule import ProbeState
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.sql.sql_names import path_of, quoted
from iscp.model.values.errors import EngineError, StorageError, TableNotFound
from iscp.model.values.progress import SnapshotSize
from iscp.model.values.watermark import Watermark
from iscp.ports.engine import charged_as, leave_to_spark
from iscp.ports.source import ChangesUnavailableError, CommitOrigin, RowScan, SmallSnapshot, SourceRange
from iscp.spark.spark_errors import reading_changes, spark_faults
from iscp.storage import files
from iscp.storage.bounded_parquet import Allowance, TooLargeError
from iscp.storage.delta_errors import storage_error
from iscp.storage.locations import checkpoint_name, commit_name, on_s3, storage_place
from iscp.system.late_imports import F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


# --- bounds -----------------------------------------------------------------------------------------------------------
# The bounds of one iteration, and the steps into which it cuts a commit that is larger than that.

STEPS_MAX = 1_000
"""Steps that one commit is cut into at most; then a step exceeds the bounds of an iteration."""


def within(bounds: Bounds, commits: Iterable[Commit], alone: bool) -> list[Commit]:
    """Return the first of `commits`, and those that fit in with it."""
    taken: list[Commit] = []
    rows = size = 0
    for commit in commits:
        rows, size = rows + (commit.rows_added or 0), size + commit.bytes
        over = rows > bounds.rows_max or size > bounds.bytes_max or len(taken) >= bounds.versions_max
        if taken and (over or alone):
            break
        taken.append(commit)
    return taken


def find_unclear_version(commits: Iterable[Commit], partitions: tuple[str, ...] | None) -> tuple[int, str] | None:
    """Return the first version whose actions do not show its changes, and why; None: all do.

    `partitions` are the table's partition columns before; None: no commit changes them. Where they change, files that
    are removed have their partitions' values under columns that the table has in its files now, or the other way round.
    """
    for commit in commits:
        if commit.unclear:
            return commit.version, commit.unclear
        if partitions is not None and commit.metadata_id is not None and commit.partitions != partitions:
            return commit.version, "the table is partitioned in another way than before"
    return None


def steps_of(commit: Commit, bounds: Bounds) -> int:
    """Return into how many steps one commit is to be cut; 0: it is small enough as a whole."""
    steps = max(ceil((commit.rows_added or 0) / bounds.rows_max), ceil(commit.bytes / bounds.bytes_max))
    return min(steps, STEPS_MAX) if steps > 1 else 0


# --- the source -------------------------------------------------------------------------------------------------------

R = TypeVar("R")

DECODED_FACTOR = 8
"""Memory for directly read rows, as a multiple of `spark.direct_bytes_max`; changes that take more go to Spark."""


class DeltaChangeSource:
    """Reads what changed in Delta tables. Used by many threads: what it keeps is replaced whole, or behind locks.

    How far an iteration goes is decided from the commit files alone. The rows come from Delta's change data feed and
    are reduced to the net change of each key: its last operation in the range, and whether it was new.
    """

    def __init__(
        self,
        small_bytes_max: int = DIRECT_BYTES_MAX,
        by_spark: BySpark | None = None,
        load_state: LoadState = load_plain_state,
        list_files: ListFiles = list_live_files,
    ) -> None:
        """Changes whose files have more bytes are read and reduced by Spark; 0: all are.

        `by_spark` opens tables that deltalake does not; None: nobody does.
        """
        self._small_bytes_max = small_bytes_max
        self._shapes = KnownShapes(by_spark)
        self._load_state = load_state
        self._lookup = RowLookup(load_state)
        self._live = LivePaths(list_files)

    @charged_as(UsagePart.READ)
    def newest(self, uri: str) -> SourceRange:
        return self.at(uri, self._newest_version(uri))

    @charged_as(UsagePart.READ)
    def at(self, uri: str, version: int) -> SourceRange:
        commit = read_commit(uri, version)
        if commit is None:
            raise ChangesUnavailableError(f"version {version} is not in the log any more")
        at = Watermark(version, commit.committed_at_s)
        shape = self._shapes.at(uri, version, at.at_s)
        return SourceRange(
            version,
            at,
            shape.table_id,
            from_at_s=at.at_s,
            cdf_on=shape.cdf_on,
            column_ids=shape.column_ids,
            collated=shape.collated,
            origin=origin_of(uri, commit),
        )

    @charged_as(UsagePart.READ)
    def origin(self, uri: str, version: int) -> CommitOrigin | None:
        return read_origin(uri, version)

    @charged_as(UsagePart.READ)
    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        from_version, newest = since.version, self._newest_version(uri)
        wanted = newest if to_version is None else min(to_version, newest)
        if newest < from_version:
            raise ChangesUnavailableError(f"the log ends at version {newest}, before the watermark {from_version}")
        if wanted <= from_version:
            return self.at(uri, from_version)
        from_at_s = self._shapes.committed_at_s(uri, from_version)
        taken, before = self._take(uri, since, wanted, bounds, from_at_s)
        last = taken[-1]
        schemas = [commit.schema_json for commit in taken if commit.metadata_id is not None]
        if schemas and before is not None:
            schemas.append(before.schema_json)
        shape = self._shapes.at(uri, last.version, last.committed_at_s, taken)
        steps = since.steps or (steps_of(last, bounds) if len(taken) == 1 else 0)
        final = since.step + 1 >= steps
        done = Watermark(last.version, last.committed_at_s)
        return SourceRange(
            from_version,
            done if final else Watermark(from_version, since.at_s, since.step + 1, steps),
            shape.table_id,
            more=last.version < wanted or not final,
            from_at_s=from_at_s,
            bytes=sum(commit.bytes for commit in taken),
            # Columns may have come, gone or been renamed without a row.
            changes_data=any(commit.changes_data or commit.metadata_id is not None for commit in taken),
            inserts_only=all(commit.only_adds or not commit.changes_data for commit in taken),
            cdf_on=shape.cdf_on,
            step=since.step,
            steps=steps,
            column_ids=shape.column_ids,
            collated=shape.collated,
            reshapes=bool(schemas),
            new_schema=len(set(schemas)) > 1,
            retyped=retyped_columns(schemas, shape.schema_json) if schemas else (),
            lost=fields_lost(before.schema_json, shape.schema_json) if schemas and before is not None else (),
            updates={each.version: each.updated_rows for each in taken if each.updated_rows is not None},
        )

    def _take(
        self, uri: str, since: Watermark, wanted: int, bounds: Bounds, from_at_s: float
    ) -> tuple[list[Commit], Shape | None]:
        """Return the commits that are read, up to the first whose changes are not known; and the table's shape before
        them, where it may have been another.

        Raises ChangesUnavailableError where that is the very first.
        """
        from_version = since.version
        taken = within(bounds, _each(read_commit, uri, from_version, wanted), alone=since.steps > 0)
        reshaped = from_version >= 0 and any(commit.metadata_id is not None for commit in taken)
        before = self._shapes.before(uri, from_version, from_at_s, taken[-1]) if reshaped else None
        unclear = find_unclear_version(taken, before.partitions if before else None)
        odd = self._live.find_odd(uri, from_version, taken)
        first = min((each for each in (unclear, odd) if each is not None), default=None)
        if first is None:
            return taken, before
        if first[0] == from_version + 1:
            raise ChangesUnavailableError(f"what version {first[0]} changed is not known: {first[1]}")
        return [commit for commit in taken if commit.version < first[0]], before

    def read_cdf(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> DeltaChangeSet:
        return self._read(session, uri, span, columns, readers, by_cdf=True)

    def read_appends(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> DeltaChangeSet:
        return self._read(session, uri, span, columns, readers, by_cdf=False)

    @charged_as(UsagePart.READ)
    def _read(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int, *, by_cdf: bool
    ) -> DeltaChangeSet:
        small = self._read_small(session, uri, span, columns, by_cdf)
        if isinstance(small, DeltaChangeSet):
            return small
        after = self._after(session, uri, span)
        with reading_changes(f"read the change data feed of {uri}" if by_cdf else f"read what was added to {uri}"):
            rows = load_changed_rows(session, uri, span) if by_cdf else load_added_rows(session, uri, span)
            marks = [F.col(name) for name in (CHANGE_TYPE, *STAMPS)] if by_cdf else inserted_by(span)
            frame = rows.select(*[_part(rows, name) for name in columns], *marks)
            again = partial(self._read_rewritten, uri, span, columns)
            return DeltaChangeSet.read_by_spark(without_void(frame), span, after, small, readers, again)

    def _read_small(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], by_cdf: bool
    ) -> DeltaChangeSet | bool:
        """The changes where they can be read directly; else whether they fit in here once Spark has read them."""
        if span.steps or not 0 < self._small_bytes_max >= span.bytes:
            leave_to_spark(_too_large(uri, span, self._small_bytes_max))
            return False
        shape = self._shapes.at(uri, span.last_version, span.to.at_s)
        commits = list(_each(read_changed_files, uri, span.from_version, span.last_version))
        memory = self._small_bytes_max * DECODED_FACTOR
        try:
            rows = read_changes(uri, commits, shape, columns, by_cdf, Allowance(memory), new_schema=span.new_schema)
        except TooLargeError:
            leave_to_spark(f"the changes of {uri} take more memory than may be used without Spark")
            return False
        except NotDirectError as unfit:
            leave_to_spark(f"the changes of {uri} are read by Spark: {unfit}")
            # What does not come through Arrow stays with Spark, however small it is.
            fits = fits_arrow(shape.selected(columns), (), arrays=True)
            return fits and fit_in_memory(uri, commits, columns, Allowance(memory))
        after = self._after(session, uri, span)
        rewritten = partial(self._read_rewritten, uri, span, columns)
        return DeltaChangeSet(session, shape.selected(columns), span, after, rows=rows, rewritten=rewritten)

    def _after(self, session: SparkSession, uri: str, span: SourceRange) -> RowsAfter:
        version = span.last_version
        return RowsAfter(partial(self.snapshot, session, uri, version), partial(self.rows_with, uri, version))

    def _read_rewritten(self, uri: str, span: SourceRange, columns: Sequence[str], version: int) -> pa.Table:
        shape, memory = self._shapes.at(uri, span.last_version, span.to.at_s), self._small_bytes_max * DECODED_FACTOR
        commits = list(_each(partial(read_changed_files, rewritten=True), uri, version - 1, version))
        return read_changes(uri, commits, shape, columns, True, Allowance(memory))

    def enable_feed(self, session: SparkSession, uri: str) -> None:
        set_properties(session, uri, {"delta.enableChangeDataFeed": "true"})

    def properties(self, uri: str) -> Mapping[str, str]:
        """Return the properties of the table as of its newest version."""
        version = self._newest_version(uri)
        return self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version)).configuration

    @charged_as(UsagePart.READ)
    def snapshot(self, session: SparkSession, uri: str, version: int, *, listed: bool = False) -> DataFrame:
        try:
            with spark_faults(f"open {uri} at version {version}"):
                added = partial(self._lookup.added, uri, version) if listed else None
                return load_version(session, uri, version, added)
        except (EngineError, StorageError) as error:
            raise explained(error) from error  # some of it shows only when the rows are to be read

    @charged_as(UsagePart.READ)
    def schema(self, session: SparkSession, uri: str, version: int) -> StructType:
        shape = self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version))
        if shape.readable(shape.columns, lists=True):
            return shape.selected(shape.columns)
        return self.snapshot(session, uri, version).schema

    @charged_as(UsagePart.READ)
    def small_snapshot(self, uri: str, version: int) -> SmallSnapshot | None:
        if not self._small_bytes_max:
            return None
        shape = self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version))
        allowance = Allowance(self._small_bytes_max * DECODED_FACTOR)
        try:
            rows, size = read_rows(uri, version, shape, self._small_bytes_max, allowance)
        except (NotDirectError, TooLargeError, ChangesUnavailableError, StorageError) as unfit:
            why = f": {unfit}" if isinstance(unfit, NotDirectError) else ""
            leave_to_spark(f"all rows of {uri} are read by Spark{why}")
            return None  # Spark reads it, or says what is missing as of every other table
        return SmallSnapshot(rows, shape.selected(shape.columns), size)

    @charged_as(UsagePart.READ)
    def rows_with(
        self, uri: str, version: int, keys: pa.Table, columns: Sequence[str], rows_max: int
    ) -> pa.Table | None:
        if not self._small_bytes_max:
            return None
        shape = self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version))
        return self._lookup.find(uri, version, shape, keys, columns, rows_max)

    @charged_as(UsagePart.READ)
    def scan(self, uri: str, version: int, columns: Sequence[str]) -> RowScan | None:
        if not self._small_bytes_max:
            return None
        shape = self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version))
        return self._lookup.scan(uri, version, shape, columns)

    @charged_as(UsagePart.READ)
    def columns(self, uri: str, version: int) -> tuple[str, ...]:
        return self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version)).columns

    @charged_as(UsagePart.READ)
    def schema_json(self, uri: str, version: int) -> str:
        return self._shapes.at(uri, version, self._shapes.committed_at_s(uri, version)).schema_json

    @charged_as(UsagePart.READ)
    def size(self, uri: str, version: int, piece_bytes: int = 0) -> SnapshotSize:
        try:
            return size_at(uri, version, piece_bytes)
        except (StorageError, TableNotFound) as error:
            try:
                state = self._load_state(uri, version)
            except NotReadableHere:
                raise error from None
            return size_of_state(state, piece_bytes)

    def _newest_version(self, uri: str) -> int:
        try:
            listed = list_log(uri)
        except TableNotFound as error:
            # It was there when the job was registered: a directory that is not mounted now comes back.
            raise StorageError(f"{uri} is not there", remedy="Mount or restore it, or delete its jobs") from error
        self._shapes.compare_checkpoint(uri, listed.checkpoint)
        return listed.newest


def _part(rows: DataFrame, name: str) -> Column:
    """Return a column, or the field of a struct that has this path."""
    is_column = len(path_of(name)) == 1 or name in rows.columns
    return F.col(quoted(name)) if is_column else F.col(name).alias(name)


def _too_large(uri: str, span: SourceRange, bytes_max: int) -> str:
    if span.steps:
        return f"a commit of {uri} is read in parts"
    size, limit = (f"{each / 1024**2:.1f} MiB" for each in (span.bytes, bytes_max))
    return f"the changes of {uri} are in files of {size}, which is more than spark.direct_bytes_max ({limit})"


def _each(read: Callable[[str, int], R | None], uri: str, from_version: int, to_version: int) -> Iterator[R]:
    """Yield the result of `read` for each commit of a range. Raises ChangesUnavailableError where one is gone."""
    for version in range(from_version + 1, to_version + 1):
        found = read(uri, version)
        if found is None:
            raise ChangesUnavailableError(f"version {version} is not in the log any more")
        yield found


# --- the probe --------------------------------------------------------------------------------------------------------

FORWARD_MAX = 64
"""Commit files probed one by one; after so many the log is listed."""

REPAIR_COMMITS_MAX = 64
"""New commits of which a probe reads whether one is a repair, the newest first; those before them are not read."""

_STAMP = Struct("=QQQ")
_WORD = (1 << 64) - 1


class DeltaProbe:
    """Probes whether a Delta log has moved, at the cost of two `stat`s (on S3: two HEAD requests) where it has not.

    The next commit's file is probed by its name. That it is not there can also mean that it was cleaned away, or that
    the log was recreated at a lower version: so the last commit file seen must still be the same one (its inode, or
    ETag, and time; a new file may get an old inode). If it is not, the log is read from the start. Port CommitProbe;
    safe for threads.
    """

    def remote(self, table_uri: str) -> bool:
        return on_s3(table_uri)

    def place(self, table_uri: str) -> str:
        return storage_place(table_uri)

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        try:
            log = log_of(table_uri)
            # The last commit seen comes first: in a log that was cleaned or recreated the next name says nothing.
            stamp = files.stamp(f"{log}/{commit_name(seen.version)}")
            if not stamp:
                return _same_or(seen, _from_start(log, table_uri, seen.version))
            if not seen.stamp:
                return _forward(log, table_uri, ProbeState(seen.version, _packed(stamp), stamp[1] / 1e9))
            if _packed(stamp) != seen.stamp:
                return _same_or(seen, _from_start(log, table_uri, seen.version))
            if not files.exists(f"{log}/{commit_name(seen.version + 1)}"):
                return seen
            return _forward(log, table_uri, seen)
        except OSError as error:
            raise _unreadable(table_uri, error) from error

    def first_probe(self, table_uri: str) -> ProbeState:
        try:
            return _from_start(log_of(table_uri), table_uri, None)
        except OSError as error:
            raise _unreadable(table_uri, error) from error

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        try:
            log = log_of(table_uri)
            newest_first = range(until, max(after, until - REPAIR_COMMITS_MAX), -1)
            return next((version for version in newest_first if _is_repair(log, version)), 0)
        except OSError as error:
            raise _unreadable(table_uri, error) from error


def _is_repair(log: str, version: int) -> bool:
    """Return whether a commit is a repair; False if it cannot be read, as the iteration, which reads it whole, reports
    that.
    """
    about = read_commit_info(log, version)
    return is_repair(text_of(about, "operation"), text_of(about, "userMetadata"))


def _packed(stamp: tuple[int, ...]) -> bytes:
    """Return a stamp as it is stored: a node stores one for each source and target, and numbers take three times as
    much.
    """
    if not stamp:
        return b""
    identity, at_ns, size = stamp
    return _STAMP.pack(identity, at_ns & _WORD, size)  # a time before 1970 is negative


def _stamp_of(log: str, version: int) -> bytes:
    """Return the stamp of the commit, or of the checkpoint that stands for it where the commit was cleaned away."""
    found = files.stamp(f"{log}/{commit_name(version)}") or files.stamp(f"{log}/{checkpoint_name(version)}")
    return _packed(found)


def _same_or(seen: ProbeState, state: ProbeState) -> ProbeState:
    return seen if (seen.version, seen.stamp) == (state.version, state.stamp) else state


def _forward(log: str, table_uri: str, state: ProbeState) -> ProbeState:
    """Return the newest state from `state` on, which is there; `state` itself where there is no next."""
    since_s, newest = 0.0, state
    for version in range(state.version + 1, state.version + 1 + FORWARD_MAX):
        stamp = files.stamp(f"{log}/{commit_name(version)}")
        if not stamp:
            return newest
        since_s = since_s or stamp[1] / 1e9
        newest = ProbeState(version, _packed(stamp), since_s)
    listed = _list_newest(log, table_uri)
    return ProbeState(listed.version, listed.stamp, since_s)


def _from_start(log: str, table_uri: str, seen_version: int | None) -> ProbeState:
    """Return the newest state from the last checkpoint on, if there is one; otherwise the log is listed."""
    version = hinted_version(log)
    # A checkpoint from before what was seen may lie behind a gap: cleaned logs have none after it.
    if version >= max(0, seen_version or 0):
        stamp = _stamp_of(log, version)
        if stamp:
            return _forward(log, table_uri, ProbeState(version, stamp))
    return _list_newest(log, table_uri)


def _list_newest(log: str, table_uri: str) -> ProbeState:
    named = ((version_of(name, checkpoints=True), name) for name in files.names(log))
    found = [(version, name) for version, name in named if version is not None]
    # Of one version the commit counts, not its checkpoint: ".json" sorts after ".checkpoint".
    newest = max(found, default=None)
    if newest is None:
        raise TableNotFound("is not a Delta table", field=table_uri, remedy=TABLE_MOVED)
    return ProbeState(newest[0], _packed(files.stamp(f"{log}/{newest[1]}")))


def _unreadable(table_uri: str, error: OSError) -> StorageError:
    remedy = "Check the path and its permissions"
    return storage_error(error, f"cannot read {table_uri}", error.strerror, remedy)
