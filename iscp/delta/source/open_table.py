"""Opens a table that is read: by deltalake, which takes a few ms and no JVM, or by Spark, which reads more of them; and
finds the rows of a source that have some keys.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from iscp.delta.log.commits import Commit, commit_stamp, read_commit, version_of
from iscp.delta.log.live_files import LoadState, NotReadableHere, StateReader, TableState, load_plain_state
from iscp.delta.log.table_opening import add_actions_of, open_delta
from iscp.delta.rows.data_file import DataFile, has_early_days, open_files
from iscp.delta.rows.net_changes import arrow_schema
from iscp.delta.rows.row_search import SEARCHED_BYTES_MAX, find_keys, scan_rows
from iscp.delta.source.arrow_read import FEATURES_READ, Shape
from iscp.model.build.build_task import count_pieces
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, IscpError, PermanentError, StorageError
from iscp.model.values.ids import table_id_fault
from iscp.model.values.progress import UNKNOWN, SnapshotSize
from iscp.ports.source import ChangesUnavailableError, RowScan, UnreadRowsError
from iscp.storage.delta_errors import delta_faults, direct_work
from iscp.storage.regular_files import lies_elsewhere
from iscp.system.late_imports import pc
from iscp.system.recent_values import RecentValues

# --- opening ----------------------------------------------------------------------------------------------------------
# A table feature that neither deltalake nor Spark knows is an error that lasts.

BySpark = Callable[[str, int], Shape]
"""The table at a URI as of a version. Raises EngineError, StorageError."""

_FEATURES_KNOWN = FEATURES_READ | {"columnMapping"}
"""Reader features with which deltalake's word of a table is taken; with any other Spark has to open it too."""

_CATALOG_MANAGED = ("catalog-managed", "catalogManaged", "catalogOwned", "coordinatedCommits", "CATALOG_MANAGED")
_UNKNOWN_FEATURE = (
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ",
    "DELTA_INVALID_PROTOCOL_VERSION",
    "Unsupported minimum reader version",
)
_UNKNOWN_TYPE = (
    "DELTA_GEOSPATIAL_NOT_SUPPORTED",
    "UNSUPPORTED_DATATYPE",
    "DELTA_UNSUPPORTED_DATA_TYPES",
    "DELTA_UNSUPPORTED_TYPE_CHANGE_IN_SCHEMA",
)
_FEATURES_TOLD = re.compile(r"unsupported by Delta Lake \"[^\"]*\": (?P<names>[\w.,\s-]+?)\.(?:\s|$)")
_BROKEN = (
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_VERSION_NOT_CONTIGUOUS",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_MISSING_PART_FILES",
    "DELTA_CHECKPOINT_NON_EXIST_TABLE",
    "DELTA_SCHEMA_NOT_SET",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_EMPTY_DIRECTORY",
)


_UNOPENED = (StorageError, EngineError, PermanentError)
"""The errors where a version is gone, or no engine opens it."""


class BrokenLogError(StorageError):
    """A log lacks what every log has; it may still be on its way back from a backup."""


@dataclass(frozen=True, slots=True)
class _KnownShape:
    """A version that was read, what the table was then, and when it was committed."""

    version: int
    stamp: tuple[int, ...] | None
    shape: Shape
    committed_at_s: float


class KnownShapes:
    """Caches the shape of tables, each as of the version that was read last.

    Threads may share it: its values are never changed, only replaced.
    """

    def __init__(self, by_spark: BySpark | None) -> None:
        self._by_spark = by_spark
        self._known: dict[str, _KnownShape] = {}
        self._checkpoints: dict[str, tuple[str, ...]] = {}

    def at(self, uri: str, version: int, committed_at_s: float, read: Sequence[Commit] = ()) -> Shape:
        """Return the shape of the table as of `version`; opened only if that may have changed, as opening costs with
        its size.

        Commits that were `read` already are not read again. Raises as `open_version`.
        """
        known = self._known.get(uri)
        if known is not None and _same_shape(uri, known, version, {commit.version: commit for commit in read}):
            shape = known.shape
        else:
            shape = open_followed(uri, version, self._by_spark)
        self._known[uri] = _KnownShape(version, commit_stamp(uri, version), shape, committed_at_s)
        return shape

    def before(self, uri: str, version: int, committed_at_s: float, last: Commit) -> Shape:
        """Return the shape at the version that a range begins after; `last` is that range's last commit.

        Raises ChangesUnavailableError where it cannot be opened any more, and otherwise as `at`.
        """
        with suppress(*_UNOPENED):
            return self.at(uri, version, committed_at_s)
        # Raises where it is the storage, or Spark, that does not answer: all is there when it does again.
        self.at(uri, last.version, last.committed_at_s)
        try:
            # A fault of a moment has passed by now: a feed would lose changes by it for good.
            return self.at(uri, version, committed_at_s)
        except _UNOPENED as error:
            # Whether later changes can be read with today's types is not known then.
            raise ChangesUnavailableError(f"version {version} cannot be opened any more: {error}") from error

    def committed_at_s(self, uri: str, version: int) -> float:
        """Return when a version was committed, in Unix seconds; 0: it is not in the log any more."""
        known = self._known.get(uri)
        if known is not None and known.version == version and commit_stamp(uri, version) == known.stamp:
            return known.committed_at_s
        commit = read_commit(uri, version)
        return commit.committed_at_s if commit else 0.0

    def compare_checkpoint(self, uri: str, names: tuple[str, ...]) -> None:
        """Open the table again where a checkpoint is new and not what the commits say: others go by that from now on.

        It may also be older, or younger, than a change of the table: opening that once more does no harm.
        """
        known = self._known.get(uri)
        if not names or self._checkpoints.get(uri) == names:
            return
        at = version_of(names[0], checkpoints=True)
        if known is not None and at is not None:
            with suppress(*_UNOPENED):  # whoever opens the table says so
                found = open_followed(uri, at, self._by_spark)
                if (found.table_id, found.schema_json) != (known.shape.table_id, known.shape.schema_json):
                    self._known.pop(uri, None)
        self._checkpoints[uri] = names


def _same_shape(uri: str, known: _KnownShape, version: int, read: Mapping[int, Commit]) -> bool:
    """Return whether the shape at `version`, which may be before the known one or after it, is certainly the same."""
    if commit_stamp(uri, known.version) != known.stamp:
        return False
    first, last = sorted((known.version, version))
    commits = (read.get(each) or read_commit(uri, each) for each in range(first + 1, last + 1))
    return not any(commit is None or commit.reshapes for commit in commits)


def open_version(uri: str, version: int, by_spark: BySpark | None) -> tuple[Shape, DeltaTable | None]:
    """Return the shape of the table as of `version`, and deltalake's handle on it (None: it does not open this table).

    Raises InvalidRequest where no engine reads it, StorageError, EngineError.
    """
    try:
        with delta_faults(f"open {uri}"):
            table = open_delta(uri, version=version)
            shape, writers = Shape.of(table), table.protocol().writer_features or ()
    except StorageError as error:
        if any(mark in error.message for mark in _CATALOG_MANAGED):
            raise _catalog_managed() from error
        if by_spark is None:
            raise
        return _open_by_spark(uri, version, by_spark, error.message), None
    if any(mark in name for mark in _CATALOG_MANAGED for name in writers):
        raise _catalog_managed()
    if by_spark is not None and not shape.features <= _FEATURES_KNOWN:
        return _open_by_spark(uri, version, by_spark), table
    return shape, table


def open_followed(uri: str, version: int, by_spark: BySpark | None) -> Shape:
    """Return the shape of a table that jobs follow.

    Raises as `open_version`, and PermanentError for a table that a registration refuses.
    """
    shape, _ = open_version(uri, version, by_spark)
    if fault := table_id_fault(shape.table_id):
        raise PermanentError(
            f"the source now has {fault}",
            remedy="Have the table restored, or copied to a new one; then resync the job to it",
            code=ErrorCode.TABLE_UNREADABLE,
        )
    if shape.doubled:
        raise PermanentError(
            f"the source has columns now whose names differ by case alone: {' and '.join(shape.doubled)}",
            remedy="Have one of them renamed or dropped, then resume the job",
            code=ErrorCode.SCHEMA_CHANGED,
        )
    if shape.reserved:
        raise PermanentError(
            f"the source has {', '.join(shape.reserved)} now, which rows are given themselves while they are read",
            remedy="Have it renamed or dropped, then resume the job",
            code=ErrorCode.SCHEMA_CHANGED,
        )
    return shape


def size_at(uri: str, version: int, piece_bytes: int = 0) -> SnapshotSize:
    """Return the size of the files of `version` by their statistics, which do not show rows that are only marked as
    deleted.

    `piece_bytes` is as in ChangeSource. Raises StorageError, also where deltalake does not open the table.
    """
    with delta_faults(f"open {uri}"):
        table = open_delta(uri, version=version)
        files = add_actions_of(table)
        masked = "deletionVectors" in (table.protocol().reader_features or ())
    rows = files.column("num_records") if "num_records" in files.column_names else None
    known = rows is not None and not rows.null_count and not masked
    sizes = files.column("size_bytes").to_pylist()
    pieces = count_pieces(sizes, piece_bytes)
    return SnapshotSize((pc.sum(rows).as_py() or 0) if known else UNKNOWN, sum(sizes), pieces)


def size_of_state(state: TableState, piece_bytes: int = 0) -> SnapshotSize:
    """Return the size of a table that deltalake does not open, by what the log has of each file."""
    sizes = [add.get("size") or 0 for add in state.adds.values()]
    rows = state.rows
    return SnapshotSize(UNKNOWN if rows is None else rows, sum(sizes), count_pieces(sizes, piece_bytes))


def _open_by_spark(uri: str, version: int, by_spark: BySpark, fault: str = "") -> Shape:
    """Return the shape as Spark opens the table; raises as `explained`."""
    try:
        return by_spark(uri, version)
    except (EngineError, StorageError) as error:
        raise explained(error, fault) from error


def explained(error: IscpError, fault: str = "") -> IscpError:
    """Return why no engine reads a table, where a fault of Spark's shows it; the fault itself where it does not.

    `fault`: deltalake's message.
    """
    text = f"{fault} {error.message} {error.__cause__}"
    if any(mark in text for mark in _CATALOG_MANAGED):
        return _catalog_managed()
    if any(mark in text for mark in _UNKNOWN_FEATURE):
        named = _FEATURES_TOLD.search(text)
        what = f"the table feature {' '.join(named['names'].split())}" if named else "a newer protocol of Delta"
        why = f"needs {what}, which neither Spark nor deltalake can read here"
        return _unreadable(why, "Drop the feature (ALTER TABLE ... DROP FEATURE), or copy the table to one without it")
    if any(mark in text for mark in _UNKNOWN_TYPE):
        why = f"has a column of a type that neither Spark nor deltalake can read here ({error.message})"
        return _unreadable(why, "Drop the column, or copy the table to one without it")
    if any(mark in text for mark in _BROKEN):
        return BrokenLogError(
            f"has a log that cannot be read ({error.message})",
            field="table",
            remedy="Restore the log's missing files from a backup, or recreate the table",
        )
    return error


def _unreadable(why: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(why, field="table", remedy=remedy, code=ErrorCode.TABLE_UNREADABLE)


def _catalog_managed() -> InvalidRequest:
    return InvalidRequest(
        "has its commits managed by a catalog, which iscp cannot follow",
        field="table",
        remedy="Drop the table feature that does it (catalogManaged, coordinatedCommits-preview)",
    )


# --- rows by their keys -----------------------------------------------------------------------------------------------
# The rows of a source that have some keys are found in its data files and without Spark.

TABLES_MAX = 64
"""Sources of a node whose files are remembered from one lookup to the next; of the longest unused they are forgotten,
and their log is read again."""


class _OpenedVersion(NamedTuple):
    """The files of a version, whose commit has this stamp."""

    version: int
    stamp: tuple[int, ...] | None
    state: TableState
    files: list[DataFile]


@dataclass
class _Files:
    """The files of one table, as of the versions that were searched last: a refresh reads two of them."""

    reader: StateReader
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: _OpenedVersion | None = None
    _before: _OpenedVersion | None = None

    def at(self, version: int) -> list[DataFile]:
        """Return the files of `version`. Raises NotReadableHere."""
        with self._lock:
            before = self._before
            if before and before.version == version and commit_stamp(self.reader.uri, version) == before.stamp:
                return before.files
            state = self.reader.read_state(version)
            if self._opened is None or self._opened.state is not state:
                self._before = self._opened
                stamp = commit_stamp(self.reader.uri, version)
                self._opened = _OpenedVersion(version, stamp, state, self._open(state))
            return self._opened.files

    def added(self, version: int) -> list[Mapping[str, Any]]:
        """Raises NotReadableHere."""
        with self._lock:
            return [*self.reader.read_state(version).adds.values()]

    def _open(self, state: TableState) -> list[DataFile]:
        # A clone has its files elsewhere.
        adds = [*state.adds.values()]
        elsewhere = any(lies_elsewhere(add["path"]) for add in adds)
        if elsewhere or sum(add.get("size") or 0 for add in adds) > SEARCHED_BYTES_MAX:
            raise NotReadableHere
        return open_files(self.reader.uri, adds, partitions=state.metadata.get("partitionColumns") or ())


class RowLookup:
    """Safe for threads."""

    def __init__(self, load_state: LoadState = load_plain_state) -> None:
        self._load_state = load_state
        self._tables: RecentValues[str, _Files] = RecentValues(TABLES_MAX)

    def find(
        self, uri: str, version: int, shape: Shape, keys: pa.Table, columns: Sequence[str], rows_max: int
    ) -> pa.Table | None:
        """Return rows with these keys as ChangeSource.rows_with; `shape` is that of the version. Raises
        StorageError.
        """
        if not shape.readable(columns, lists=True) or has_early_days(keys):
            return None
        schema = arrow_schema(shape.selected(columns))
        with suppress(NotReadableHere, pa.ArrowException), direct_work():
            keys = keys.cast(pa.schema([schema.field(name) for name in keys.schema.names]))
            with delta_faults(f"search rows of {uri}"):
                _, rows = find_keys(self._files(uri).at(version), keys, schema, rows_max)
            rows.validate(full=True)  # texts may hold bytes that are none, which is no fault of the storage
            return rows if len(rows) <= rows_max and not has_early_days(rows) else None
        return None

    def scan(self, uri: str, version: int, shape: Shape, columns: Sequence[str]) -> RowScan | None:
        """Return all rows as ChangeSource.scan; `shape` is that of the version. Raises StorageError."""
        if not shape.readable(columns, lists=True):
            return None
        schema = arrow_schema(shape.selected(columns))
        with suppress(NotReadableHere), delta_faults(f"read rows of {uri}"):
            opened = self._files(uri).at(version)
            size = sum(each.add.get("size") or 0 for each in opened)
            return RowScan(schema, size, partial(_scan, uri, opened, schema))
        return None

    def added(self, uri: str, version: int, files_max: int) -> list[str] | None:
        """Return the actions that added the files of a version, as commits have them; None: they are more, or the log
        is not read here.

        Raises StorageError.
        """
        with suppress(NotReadableHere):
            found = self._files(uri).added(version)
            return [json.dumps({"add": each}) for each in found] if len(found) <= files_max else None
        return None

    def _files(self, uri: str) -> _Files:
        return self._tables.of(uri, lambda: _Files(StateReader(uri, self._load_state)))


def _scan(uri: str, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows. Raises UnreadRowsError, StorageError."""
    parts = scan_rows(files, schema)
    try:
        while True:
            with direct_work():
                with delta_faults(f"read rows of {uri}"):
                    rows = next(parts, None)
                if rows is None:
                    return
                rows.validate(full=True)  # texts may hold bytes that are none, which is no fault of the storage
                if has_early_days(rows):
                    raise NotReadableHere
            yield rows
    except (NotReadableHere, pa.ArrowException) as error:
        raise UnreadRowsError(f"rows of {uri} are read by Spark alone") from error
