"""The ports to tables: what their changes and snapshots are, what they retain for jobs, which tables there are and what
they are; and the rows that are on their way from a source to a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from iscp.model.job.iteration import Bounds
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState, TargetLog, TargetSeen
from iscp.model.query_plan import QueryShape
from iscp.model.values.progress import SnapshotSize, TableSize
from iscp.model.values.watermark import ColumnIds, SourceMarks, Watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# --- rows on their way from a source to a sink ------------------------------------------------------------------------
# What Spark evaluates, and the same rows in this process where they are few.


class LateFrame:
    """The stand-in of a frame whose columns are known: Spark makes it when anything else of it is read."""

    def __init__(self, schema: StructType, make_late: Callable[[], DataFrame]) -> None:
        self.schema = schema
        self._make_late = make_late

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.schema.fields]

    def as_frame(self) -> DataFrame:
        """Return this, which is used as a frame is."""
        return cast("DataFrame", self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who only looks what this is needs no frame
            raise AttributeError(name)
        return getattr(self._late, name)

    @cached_property
    def _late(self) -> DataFrame:
        return self._make_late()


class Rows:
    """The same rows twice, each made once and only when somebody wants it; whoever writes them chooses the way.

    `make_table` returns None where only Spark can have the rows, or where they are many. With `reread` nothing is
    cached of the frame: it is read from files whenever it is evaluated, and always the same.
    """

    def __init__(
        self,
        make_frame: Callable[[], DataFrame],
        make_table: Callable[[], pa.Table | None] = lambda: None,
        *,
        reread: bool = False,
    ) -> None:
        self._make_frame = make_frame
        self._make_table = make_table
        self.reread = reread

    @cached_property
    def frame(self) -> DataFrame:
        return self._make_frame()

    @cached_property
    def table(self) -> pa.Table | None:
        return self._make_table()

    def transformed(
        self, of_frame: Callable[[DataFrame], DataFrame], of_table: Callable[[pa.Table], pa.Table | None] | None
    ) -> Rows:
        """Return what two functions that do the same make of these rows.

        `of_table` is None, or returns None, where only Spark can do it.
        """

        def make_table() -> pa.Table | None:
            return None if of_table is None or self.table is None else of_table(self.table)

        return Rows(lambda: of_frame(self.frame), make_table, reread=self.reread)

    def for_spark(self) -> Rows:
        """Return the same rows without a table, so that Spark writes them."""
        return Rows(lambda: self.frame, reread=self.reread)


# --- a source table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitOrigin:
    """The tables that a target's rows are made of, as one of its commits says: `sources` as in Position.

    They are empty for a commit that is not iscp's, and have an empty URI for a table whose place a commit does not say.
    `beyond` are the URIs of those that nobody reads who may only read this table. `changes_data` is False if the commit
    has neither rows nor metadata.
    """

    sources: SourceMarks = field(default_factory=dict)
    beyond: frozenset[str] = frozenset()
    changes_data: bool = True


NO_ORIGIN = CommitOrigin()


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The versions to read, (`from_version`, `last_version`]; `more` if bounds cut it short of what was requested.

    `to` is the watermark afterwards. If `steps` is above 0, only a part of the one commit in it is taken: the changes
    whose keys are of class `step` of so many.

    `from_at_s` is the commit time of `from_version` (Unix seconds; 0: not known any more). `inserts_only`: no commit in
    it took a row away; `changes_data` is False if none has rows or metadata; `bytes` are of the files to read.
    `cdf_on`: its last version has the change data feed. `column_ids` are those of its last version, and `collated` its
    columns with texts that compare in a way of their own; `reshapes`: a commit in it may have changed the columns,
    `new_schema`: one has changed the schema as the log has it, and `retyped` are those whose type it changed so that
    its changes do not give their values. `lost`: columns, and fields of nested ones (`s.y`), that `from_version` had,
    and the last version has not, so that no change says what was in them. `updates`: how many rows were updated by each
    version whose change data may lack rows that are equal to others. `origin`, of an empty range: that of its commit.
    """

    from_version: int
    to: Watermark
    table_id: str
    more: bool = False
    from_at_s: float = 0.0
    bytes: int = 0
    changes_data: bool = False
    inserts_only: bool = False
    cdf_on: bool = True
    step: int = 0
    steps: int = 0
    column_ids: ColumnIds = field(default_factory=dict)
    reshapes: bool = False
    new_schema: bool = False
    collated: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    updates: Mapping[int, int] = field(default_factory=dict)
    origin: CommitOrigin = NO_ORIGIN

    @property
    def last_version(self) -> int:
        return self.from_version + 1 if self.steps else self.to.version


KeyBounds = Mapping[str, tuple[Any, Any]]
"""The lowest and highest value of key columns, by their names in lower case; one that is missing may have any value."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Net changes, one row for each key (without a key: each row that a commit has written).

    `frame` has the wanted columns and `_iscp_op` (Op in `iscp/model/rows/key_ranges.py`): `i` the key is new since
    `from_version`, `u` it was there, `d` it is gone, `p` it came and went: a sink that has it has a row that shared the
    key (of `d` and `p` only the key's columns count). The counts are rows of `frame`. All its keys lie within `bounds`.
    `net` has the same rows for a sink: few changes are there as a table too, but those with arrays of real numbers only
    as `with_arrays`.
    """

    net: Rows
    inserts: int
    updates: int
    deletes: int
    passed: int = 0
    bounds: KeyBounds = field(default_factory=dict)
    with_arrays: pa.Table | None = None

    @property
    def frame(self) -> DataFrame:
        return self.net.frame

    @property
    def rows(self) -> int:
        """Return how many keys have changed."""
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True, slots=True)
class SmallSnapshot:
    """All rows of a source at one version, in memory; `schema` has their columns as Spark has them.

    `bytes` are those of their files.
    """

    rows: pa.Table
    schema: StructType
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RowScan:
    """All rows of a table as of a version, in files of so many `bytes`, with the columns of `schema`.

    `parts` yields them, a few at a time and each time from the first one on. It raises UnreadRowsError where Spark has
    to read them.
    """

    schema: pa.Schema
    bytes: int
    parts: Callable[[], Iterator[pa.Table]]


class UnreadRowsError(Exception):
    """Rows that are read by Spark alone."""


class ChangesUnavailableError(Exception):
    """The changes of a range cannot be read any more (log cleaned, files vacuumed, feed off): take the difference."""


class KeysSharedError(ChangesUnavailableError):
    """Rows share a changed key, or did: the changes do not show which is left, `ChangeSet.of_keys` does."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The keys that the changes of a range name, each once, and all rows that the source has of them after the range.

    Other keys have the rows that they had before the range. So a sink that had the source's rows then has them again
    once it has these for these keys, whatever the changes were, and however many rows share a key. Both are there as
    tables if the keys and their rows are few, and can be found without Spark.
    """

    keys: Rows
    rows: Rows


class ChangeSet(Protocol):
    """The changes of one range, the same whenever they are evaluated until `release`."""

    def net(
        self, key: Sequence[str], where: Sequence[str] = (), stamped: bool = False, columns: Sequence[str] = ()
    ) -> Changes:
        """Return the net changes by `key`, as if the source had only rows for which each condition of `where` holds.

        `stamped`, for sinks that nobody can read: each row has the `_commit_version` and the `_commit_timestamp` of the
        key's last change too, and the source was checked to have as many rows of each key as the changes come to.
        Raises ChangesUnavailableError, and KeysSharedError if rows share a key, or shared it within the range: the
        source's rows must show then. That a row was there before, and was not changed, shows only in a sink, or in the
        source.

        Without a key, return the rows of `columns` alone (empty: all) that each commit has written: each as often as it
        is there more often afterwards than before. An updated row is a new one.
        """

    def of_keys(self, key: Sequence[str]) -> KeyedRows:
        """Return the changed keys, and the source's rows of them with the wanted columns.

        Raises ChangesUnavailableError, also when the rows are evaluated.
        """

    def all(self, key: Sequence[str]) -> DataFrame:
        """Return every change, with `_change_type`, `_commit_version` and `_commit_timestamp`, as Delta names them.

        They are in order of version and key; what a key was (`delete`, `update_preimage`) comes before what it is.
        Raises ChangesUnavailableError.
        """

    def ordered(self, key: Sequence[str], where: Sequence[str], *, hashed: bool) -> pa.Table | None:
        """Return the changes of `all`, in its order, for which each condition of `where` holds.

        `hashed`: each has the hash of its key as `_key_hash`. Return None if they are many, or if that takes Spark.
        """

    def every(self) -> DataFrame:
        """Return the changes of `all` in no order.

        If `table` is None, evaluating the frame raises whatever fails.
        """

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        """Yield the rows of a frame of these changes in tables, as Engine.batches does.

        Raises ChangesUnavailableError, also after the first ones.
        """

    def with_equal_rows(self) -> ChangeSet:
        """Return the changes for a reader that counts equal rows, as `net` without a key does.

        They are the same, or, if the source's writer has left some of them out, have all rows of the files that it
        rewrote. Raises ChangesUnavailableError.
        """

    @property
    def table(self) -> pa.Table | None:
        """Return every change, with `_change_type`, if they are few and in memory; otherwise None."""

    def release(self) -> None: ...


class ChangeSource(Protocol):
    """Reads a source table for the runner; raises TableNotFound, StorageError, EngineError."""

    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        """Return the range that one iteration takes from `since` on, up to `to_version` (None: towards the newest).

        Raises ChangesUnavailableError if the commits between cannot be read.
        """

    def newest(self, uri: str) -> SourceRange:
        """Return the empty range at the newest version."""

    def at(self, uri: str, version: int) -> SourceRange:
        """Return the empty range at `version`; raises ChangesUnavailableError if it is gone."""

    def origin(self, uri: str, version: int) -> CommitOrigin | None:
        """Return what one commit says of the table's rows, by its file alone; None if that is not in the log."""

    def read_cdf(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """Return the changes of a range, with these `columns`, from the change data feed.

        There are so many `readers`: what several of them read may be cached.
        """

    def read_appends(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """Return the changes of a range of `inserts_only`, from the files that it added, so that no feed is needed.

        All rows bear the range's last version.
        """

    def enable_feed(self, session: SparkSession, uri: str) -> None:
        """Alter the table to have a change data feed from its next commit on."""

    def snapshot(self, session: SparkSession, uri: str, version: int, *, listed: bool = False) -> DataFrame:
        """Return all rows at `version`.

        `listed` says that several plans are made of them, so that the files, if they are few, are listed once for all
        plans.
        """

    def schema(self, session: SparkSession, uri: str, version: int) -> StructType:
        """Return the schema of `snapshot`, without opening the table in Spark as far as its columns are plain."""

    def small_snapshot(self, uri: str, version: int) -> SmallSnapshot | None:
        """Return all rows at `version`, if they are few and can be read without Spark; otherwise None."""

    def rows_with(
        self, uri: str, version: int, keys: pa.Table, columns: Sequence[str], rows_max: int
    ) -> pa.Table | None:
        """Return these `columns` of all rows at `version` that have one of these `keys` (values of some columns).

        They are read without Spark. Return None if there may be more than `rows_max`, or they are not plain.
        """

    def scan(self, uri: str, version: int, columns: Sequence[str]) -> RowScan | None:
        """Return these `columns` of all rows at `version`, to be read without Spark, or None if they are not plain."""

    def size(self, uri: str, version: int, piece_bytes: int = 0) -> SnapshotSize:
        """Return the table's size at `version`, as its log says; no row is read.

        Files of more than `piece_bytes` bytes (0: no file) are several pieces.
        """

    def columns(self, uri: str, version: int) -> tuple[str, ...]:
        """Return the columns as of `version`, in order."""

    def schema_json(self, uri: str, version: int) -> str:
        """Return the schema as of `version`, as the table's log has it; no session is needed for that."""


# --- retention --------------------------------------------------------------------------------------------------------
# Jobs have tables retain what they have yet to read, and release it.


class RetentionHold(Protocol):
    """Has a table retain removed files and old commits for a job, for so many seconds after they have gone.

    A holder is named by `holder_of` (iscp.model.job.source_holds); several may hold a table, and the longest hold
    counts. Both methods raise Conflict if another writer was first, and StorageError, EngineError or InvalidRequest
    where the table cannot be read or altered.
    """

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        """Have the table retain both; return whether it was altered for it, which gives it a version without a row."""

    def release(self, uri: str, holder: str) -> None:
        """Leave the table as it would be without this holder."""


class NothingHeld:
    """The port RetentionHold where no table is ever altered."""

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        return False

    def release(self, uri: str, holder: str) -> None:
        pass


# --- the catalog, and probes of tables --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table as it is now: `columns` maps names to type names, in order; `table_id` is its metadata id.

    `schema_json` is its schema as Delta and Spark write it. `target_fault`: why it cannot be stored in a target, and
    the remedy. `void`: paths of the columns, and of fields within them, that are of the type void, which nobody can
    read. `collated`: columns with texts that compare in a way of their own. `sink_seq`: that of the last commit of a
    job that keeps the table, and `sink_job_id` its registration, if the table has rows of it (empty: it has none, or
    the newest commits do not say).
    """

    table_id: str
    name: str
    uri: str
    version: int
    committed_at_s: float
    columns: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    sink_seq: int = 0
    empty: bool = True
    schema_json: str = ""
    target_fault: tuple[str, str] = ("", "")
    void: tuple[str, ...] = ()
    collated: tuple[str, ...] = ()
    sink_job_id: str = ""


class Catalog(Protocol):
    """Finds tables; raises TableNotFound."""

    def describe(self, table: str) -> TableDescription:
        """Describe `table`: a path, a URI, or `db.table` of the configured catalog."""

    def has_version(self, uri: str, version: int) -> bool:
        """Return whether the log still has this version."""

    def newest_version(self, uri: str) -> int:
        """Return the newest version, at a cost that does not follow the table's size, unlike `describe`."""

    def size(self, uri: str) -> TableSize:
        """Return the size of the newest version, as its log says. Raises StorageError too."""

    def normalize(self, uri: str) -> str:
        """Return the one spelling of a path or URI, whether or not a table is there."""

    def locate(self, table: str) -> str:
        """Locate a table as `normalize` does, and `db.table` of the configured catalog, which raises TableNotFound if
        it has none.

        Raises EngineError too.
        """

    def refuse_links(self, table: str) -> None:
        """Raises InvalidRequest where `table`, as `locate` has it, is named by a path that leads through a link.

        A job reads the table that the link led to when it was registered, and would not see it lead to another.
        """

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        """Return the kinds of logs that lie at this place itself; none: neither a table nor an index is there."""

    def table_around(self, uri: str) -> str:
        """Return a table or index within whose directory this place lies, or that lies in the place's own; empty if
        none was found.
        """

    def missing_parent(self, uri: str) -> str:
        """Return the directory in which this place lies if it is not there; empty if it is, or the store has none."""

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        """Return what a query over tables comes to, by their names in it and their schemas; it is not run.

        Raises InvalidRequest if the engine does not take it, if it gives other rows each time, or if it is of something
        else than these tables.
        """

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        """Return why the engine would not take `condition` as a filter of the table's rows; empty if it would.

        Raises InvalidRequest if it is of something else than the rows: a table, a file, what a function reaches.
        """


class LogProbe(Protocol):
    """Probes a log of one kind for its next commit, by that file's name: no listing and no Spark job where none came.

    Raises TableNotFound, StorageError.
    """

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        """Return the state at the newest version, from `seen` on; `seen` itself if nothing moved.

        Only the version is known of a `seen` without a stamp; a version lower than it means a recreated log.
        """

    def first_probe(self, table_uri: str) -> ProbeState: ...


class CommitProbe(LogProbe, Protocol):
    """Probes the logs of sources, which are Delta tables, and says where any table lies."""

    def remote(self, table_uri: str) -> bool:
        """Return whether a probe goes over a network, and so may take long; then many may be under way at once."""

    def place(self, table_uri: str) -> str:
        """Return what answers, or hangs, for all tables there: a mounted file system, or a bucket. No table is
        touched.
        """

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        """Return the newest repair (model.job.source_holds) of the commits (`after`, `until`]; 0: none is known of.

        Reads the beginnings of their files, at most of so many as REPAIR_COMMITS_MAX, the newest of them.
        """


class LogNotices(Protocol):
    """Notices commits to tables. It may miss some, and notice what is none: a probe finds out in any case."""

    def follow(self, table_uri: str) -> None:
        """Notice commits to this table from now on; one that it cannot follow is left to probes. Never waits.

        It is noticed once as soon as it is followed, as there may have been a commit before.
        """

    def leave(self, table_uri: str) -> None: ...

    def close(self) -> None: ...

    def counters(self) -> Mapping[str, int]: ...


class TargetProbe(Protocol):
    """Probes whether a target still holds what was applied to it: as CommitProbe where nobody has touched it."""

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        """Return its URI, without touching it; empty if there is none."""

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        """Probe the target, and return `seen` itself if nothing moved. Raises TargetLost, StorageError."""
