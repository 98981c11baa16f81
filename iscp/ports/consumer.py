"""The ports of consumers: their kinds, what each is handed of an iteration, consumers that read their tables
themselves, and builds of first rows by ranges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from iscp.model.api.api_requests import LeftOutRows
from iscp.model.build.build_task import BuildId, BuildTerms, RangeBatch, StagingBatch
from iscp.model.job.iteration import Bounds, ChangeDetail, DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Comparison, TargetLog
from iscp.model.job.watermark_record import WatermarkRecord
from iscp.model.query_plan import QueryExplanation
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.progress import TableSize
from iscp.model.values.watermark import ColumnIds, Position, Watermark
from iscp.ports.sink import Compared, Deleted, DeletionOrder, Manifest, Sink, StagedRanges
from iscp.ports.source import (
    Catalog,
    Changes,
    ChangeSet,
    ChangeSource,
    ChangesUnavailableError,
    KeyedRows,
    Rows,
    SourceRange,
    TableDescription,
)
from iscp.ports.system import Clock, Failpoints, Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# --- consumers and their kinds ----------------------------------------------------------------------------------------

T = TypeVar("T")


class WatermarkTxn(Protocol):
    """A transaction of a consumer's own sink, by which the watermark is read and written.

    The answer of `get` has to hold until the transaction is committed, and `put` has to be undone with it: SQLite's
    BEGIN IMMEDIATE, PostgreSQL's SERIALIZABLE or SELECT … FOR UPDATE.
    """

    def get(self, key: str) -> str | None:
        """Return the text under `key`, or None if there is none."""

    def put(self, key: str, value: str) -> None: ...


class Retriever(Protocol):
    """Hands one consumer the data of one iteration (after MatrixOne ISCP's DataRetriever).

    A consumer reads it in one of three ways: `snapshot` and `changes`, as frames of the source's columns; `inserts` and
    `deletes`, or `all`, as frames of the job's columns and rows; or `next`, the same as Arrow, in batches.
    """

    @property
    def data_type(self) -> DataType: ...
    @property
    def from_version(self) -> int: ...
    @property
    def to(self) -> Watermark: ...
    @property
    def to_version(self) -> int: ...
    @property
    def seq(self) -> int:
        """Return the number under which the consumer has to commit: one more than its position's."""

    @property
    def record(self) -> WatermarkRecord:
        """Return the record that the sink has to store once the data is in it; `update_watermark` writes just that."""

    @property
    def snapshot(self) -> DataFrame:
        """Return all rows at `to` (SNAPSHOT and DIFFERENCE)."""

    @property
    def snapshot_rows(self) -> Rows:
        """Return the same rows; few of them are there as a table too, if the kind wants it (Needs.small_snapshots)."""

    def changes(self, key: Sequence[str], where: str = "") -> Changes:
        """Return the net changes by `key` (TAIL), of the rows for which `where` holds."""

    def rows_of_changed_keys(self) -> KeyedRows:
        """Return the keys that have changed (TAIL), and all rows that the source has of them at `to`."""

    @property
    def inserts(self) -> DataFrame:
        """Return the rows to write: the job's columns, `_commit_version` and `_commit_timestamp`.

        Rows of a TAIL are written over those with the same key, if there are any. Rows of a SNAPSHOT are all there are,
        and replace whatever the sink has; they bear the snapshot's version and time.
        """

    @property
    def deletes(self) -> DataFrame:
        """Return the keys to delete, with `_commit_version` and `_commit_timestamp`; a SNAPSHOT has none."""

    def all(self) -> DataFrame:
        """Return every change in order: the job's columns, `_change_type`, `_commit_version` and `_commit_timestamp`.

        A SNAPSHOT has all rows, as inserts of its version.
        """

    def next(self) -> tuple[pa.Table, pa.Table] | None:
        """Return the next (inserts, deletes), bounded in rows, or None if there are no more.

        Deletes come first, so that a table with further unique columns may take a pair's deletes before its inserts.
        Consumers that want every change get the rows of `all`, in order, as the first table, and an empty second one.
        """

    @property
    def rows_given(self) -> int:
        """Return how many rows `next` has given."""

    def update_watermark(self, txn: WatermarkTxn) -> None:
        """Compare and set, within the consumer's transaction: call it once for each iteration, before the commit.

        Raises Conflict where another writer has committed since the consumer's position was read, and what
        the guard raises where no write may be committed any more: the transaction has to be rolled back then.
        """


@dataclass(frozen=True, slots=True)
class ConsumeContext:
    """A consumer works with these: a session of its own, and the guard that it checks right before the commit.

    `column_ids` are those of the source's rows that it is handed. `trace` is the context of this work, which the
    commit is to say (iscp.model.values.ids); empty if nothing is traced.
    """

    session: SparkSession
    row: JobRow
    source_id: str
    epoch: int
    position: Position
    guard: Guard
    column_ids: ColumnIds = field(default_factory=dict)
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Consumed:
    """Says what a consumer has committed, in rows and bytes; `position` is the sink's after it."""

    position: Position
    rows: int
    bytes: int


class Consumer(ABC):
    """Maintains one job's sink: data and watermark in one commit, numbered by seq.

    What not every consumer can do is None here. A consumer that can do it defines it as a method, or as a property that
    returns an object with several.
    """

    renew: Callable[[ConsumeContext, Watermark], Position] | None = None
    """Return the position, repeated by an empty commit if the cleaning of the sink's log may take it away.

    This is called while the source does not move. Raises Conflict if another writer won the seq.
    """

    go_on_from: Callable[[ConsumeContext], Position | None] | None = None
    """Repeat the position of the context, which another registration has made, by an empty commit under the job's id.

    The rows and all that is stored beside them are the job's from then on, and what is on its way for the other fails.
    Return the position after it, or None if that cannot be: then the sink is built. Raises Conflict if another writer
    won the seq. Consumers without this are built.
    """

    refresh: Callable[[ConsumeContext, RefreshOrder], Refreshed] | None = None
    """Bring the sink to the tables' versions in one numbered commit, all of them at once.

    Consumers define this if they read tables themselves. They are handed no rows, and their `position` has the
    SourceMarks of all tables. Raises Conflict if another writer won the seq, ChangesUnavailableError if rows of a
    table can be read neither as changes nor whole.
    """

    @property
    def range_built(self) -> RangeBuilt | None:
        """Return what builds the sink's first rows by ranges of the source, or None."""
        return None

    @property
    def range_refreshed(self) -> RangeRefreshed | None:
        """Return what builds the first rows of a consumer with `refresh` by ranges of its own table, or None."""
        return None

    @property
    def by_ranges(self) -> ByRanges | None:
        return self.range_built or self.range_refreshed

    @abstractmethod
    def position(self, row: JobRow) -> Position:
        """Return the position that the sink itself has; never one from memory alone."""

    @abstractmethod
    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Take over the sink for this registration by an empty commit at seq + 1, so that whatever is on its way fails.

        `source` gives the source's columns; it is not read.
        """

    @abstractmethod
    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        """Commit what the iteration hands over. Raises Conflict if another writer won the seq."""

    def tidy(self) -> None:  # noqa: B027  (there may be nothing to do)
        """Do the work after a commit, once those who wait for the commit were notified. Raises nothing."""


class RangedConsumer(Consumer):
    """Maintains one range of a sink that has a watermark for each range of keys."""

    @abstractmethod
    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Return the text that `update_watermark` has put under each of these keys, or None for a key without one."""


class Check(ABC):
    """Compares one job's sink with the rows that it should have, and repairs it."""

    compare_small: Callable[[SparkSession, Position, DataFrame, pa.Schema], Comparison | None] | None = None
    """Compare the target's rows, without Spark, with all rows of the source, whoever has applied them.

    The source's rows are few, and fit the schema. Return None if rows may differ: then `compare` finds out whether they
    do, and which.
    """

    @abstractmethod
    def compare(self, context: ConsumeContext, source: DataFrame) -> AbstractContextManager[Compared]:
        """Compare the sink with the source's rows.

        Raises ChangesUnavailable if the source's rows cannot be read, PermanentError if the two cannot be compared.
        """

    @abstractmethod
    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        """Make the sink equal in one commit at seq + 1; raises Conflict, and PermanentError if that cannot be done."""


class AdoptingCheck(Check):
    """A check of a sink that may be a table which somebody else has written."""

    @abstractmethod
    def adopt(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """Take over a sink that has the source's rows at `watermark`, by an empty commit that says so."""


class Adopting(Protocol):
    """Takes over tables that somebody else has written."""

    def validate_adoption(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Validate a target that is there and may have rows, as `validate` does for others; no row is checked."""

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> AdoptingCheck: ...


class ConsumerEnvironment(Protocol):
    """A node hands this to a kind that opens a consumer: its targets, its clock, and where tests make it die."""

    @property
    def clock(self) -> Clock: ...

    @property
    def failpoints(self) -> Failpoints: ...

    @property
    def source(self) -> ChangeSource:
        """Return what reads tables, for consumers that read them themselves."""

    def sink(self, target_uri: str) -> Sink:
        """Return the table there as a Delta sink.

        The sink is cached, so that what it knows of its log is not read again each time.
        """

    def keep(self, name: Hashable, target_uri: str, make: Callable[[str], T]) -> T:
        """Return what a kind has made for the target under this name, or has `make` make it now.

        Nothing is made unless the target may be written to: what the check of the target raises is raised. What was not
        used for long is dropped, and not notified of that.
        """


@dataclass(frozen=True, slots=True)
class Needs:
    """States what a kind of consumer needs to be handed.

    `stamped`: net changes with version and time. `compares`: it takes a DIFFERENCE, against what its sink has; the
    others get a SNAPSHOT. `small_snapshots`: few rows of those are read without Spark (Retriever.snapshot_rows).
    `target_log`: the kind of its target's log. `built_by_spark`: Spark computes all rows of a new target, few too.
    """

    changes: ChangeDetail = ChangeDetail.NET
    stamped: bool = False
    compares: bool = True
    small_snapshots: bool = False
    target_log: TargetLog = TargetLog.DELTA
    built_by_spark: bool = False


RefreshHandler = Callable[[JobRow], tuple[Sequence[str], float]]
PurgeHandler = Callable[[str], float]


class ConsumerKind(ABC):
    """One kind of consumer, found by entry point (`iscp.consumers`).

    What not every kind can do is None here. A kind that can do it defines it as a method, or as a property that returns
    an object with several.
    """

    name: str
    shared_target: bool = False
    needs: Needs = Needs()

    open_range: Callable[[JobRow, ConsumerEnvironment], RangedConsumer] | None = None
    """Return the consumer of one range of a sharded sink, which has a watermark for each range of keys.

    Tables whose jobs all have such sinks may be split. `open` returns the same, or one without `records`.
    """

    settled_at: Callable[[JobRow, ConsumerEnvironment], Position | None] | None = None
    """Return the sink's position if nothing is to be done there until a table of the job changes; None: there may be.

    No consumer need be opened for it.
    """

    check: Callable[[JobRow, ConsumerEnvironment], Check] | None = None
    """Return what compares a job's sink with its source."""

    refuse_occupied: Callable[[ConsumerSpec, Catalog], None] | None = None
    """Raise InvalidRequest if a first registration would rebuild a target whose rows the source may have lost."""

    tables: Callable[[ConsumerSpec, Catalog], Mapping[str, str]] | None = None
    """Return the URIs of all tables that a job reads, not only its own, by the names that the spec gives them."""

    explain: Callable[[ConsumerSpec, Catalog], QueryExplanation] | None = None
    """Explain how what the spec describes is maintained. Raises InvalidRequest as `validate` does."""

    figures: Callable[[JobRow], Mapping[str, float]] | None = None
    """Return the figures of the job's target as it is now, by their names; none where there is no target yet.

    No row is read for them. Raises IscpError where the target cannot be read.
    """

    dead_letters: Callable[[JobRow, int], LeftOutRows] | None = None
    """Return so many at most of the rows that the job leaves out of its target, as it is now; none where there is no
    target yet.

    Values may be long; whoever calls it cuts them. Raises IscpError where they cannot be read.
    """

    delete_target: Callable[[DeletionOrder, ConsumerEnvironment], Deleted] | None = None
    """Delete a job's target, and what is stored beside it, as `Sink.delete` describes it."""

    maintained: Callable[[JobRow, Callable[[], bool]], str] | None = None
    """Wait until what a run's commits have made due at a job's target is done, or until the function returns True that
    says the run was stopped. Return what the user should know of what was not done, or an empty text.
    """

    refresh: RefreshHandler | None = None
    """Work on a job at times of the kind's own choice, not of the job's source.

    Return the ids of the tables that were read, and when to come again (Unix seconds, yet to come). This may be called
    again after it failed or was cut short, and at the same time as an iteration of the job.
    """

    purge: PurgeHandler | None = None
    """Let go of what is stored of a table, by its id, for the kind's jobs on it.

    Return when to come again (Unix seconds, yet to come). A refresh that has read the table makes the next call come
    sooner.
    """

    @property
    def adopting(self) -> Adopting | None:
        """Return what takes over tables that somebody else has written, or None."""
        return None

    @property
    def sharded(self) -> bool:
        return self.open_range is not None

    @abstractmethod
    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Validate a spec. Raises InvalidRequest with the field's path below `spec.iteration.consumer`."""

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        """Return the one spelling of the job's target, or an empty text if it has none.

        Two jobs of one target are recognized by it.
        """
        return catalog.normalize(spec.target) if spec.target else ""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        """Return the URIs of the tables that a job holds, by its spec in the job log, with the seconds of each hold.

        Each iteration of the job places these holds before it reads, and they are released once the job is dropped or
        its spec has them no more. Raises InvalidRequest for a spec that the kind does not understand.
        """
        return {}

    @abstractmethod
    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        """Return the source columns that have to be read for this job."""

    @abstractmethod
    def open(self, row: JobRow, environment: ConsumerEnvironment) -> Consumer: ...


# --- consumers that read their tables themselves ----------------------------------------------------------------------
# Each maintains a query over several tables; here are its orders and results.


@dataclass(frozen=True, slots=True)
class RefreshOrder:
    """Orders a consumer that reads its tables itself to bring its sink to their versions.

    `to` is the empty range at the version of the job's own table; the consumer takes the newest version of the others,
    or earlier ones of all, if the newest do not fit each other. `ends` are versions that it does not go beyond, by URI.
    `full` says why the sink has to be recomputed from all rows, and is empty if it need not be.
    """

    to: SourceRange
    bounds: Bounds
    full: str = ""
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of a refresh: `strategy` says how it was computed, and `reason` why so, for the history.

    `committed` is False if no table has other rows than before, and nothing was written: the sources of
    `consumed.position` may then be later than those that the sink has, and are what the job has come to. `rows_in` and
    `parts_s` mean the same as in HistoryEntry, and `bytes_in` are those of the files with these rows. `due_at_s` is
    when (Unix seconds) it has to be refreshed again though no table has changed, or 0 for never. `waits_for`: the
    sources of `consumed.position` are not the newest versions, as they would mix those of a table with what is behind;
    after `wait_s` seconds at most the consumer takes them anyway.
    """

    consumed: Consumed
    strategy: str
    reason: str
    committed: bool = True
    warning: str = ""
    rows_in: int = 0
    bytes_in: int = 0
    parts_s: Mapping[str, float] = field(default_factory=dict)
    due_at_s: float = 0.0
    waits_for: str = ""
    wait_s: float = 0.0


# --- builds by ranges at a node ---------------------------------------------------------------------------------------
# The builder, its readers, what builds for consumers, and retained commits.


class RangeBuilt(Protocol):
    """Builds the first rows of a consumer's sink, which are staged range by range, and published at once."""

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        """Return whether the sink, once claimed, takes such rows as it is. `source` is the same as in `claim`."""

    def ranges(self, build: BuildId) -> StagedRanges: ...

    def wanted(self, rows: Rows) -> Rows:
        """Return what the sink is to have of some rows of the source."""

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        """Commit all rows of the source at `retriever.to`, in one commit at seq + 1; raises Conflict.

        `retriever` is that of `consume`, without the rows. Return None, and do nothing, if what is staged does not make
        up what the sink should have, as when rows of several ranges share a key.
        """


class RangeRefreshed(Protocol):
    """Computes first rows from ranges of the consumer's own table, and from other tables as the build's terms have
    them.
    """

    def range_terms(self, context: ConsumeContext, order: RefreshOrder) -> BuildTerms | None:
        """Return what all ranges are computed from, `order.to` among it, or None to have all rows computed at once."""

    def ranges(self, build: BuildId) -> StagedRanges: ...

    def range_rows(self, rows: DataFrame, terms: BuildTerms) -> DataFrame:
        """Return what is to be staged of a range of the consumer's own table, whose rows are `rows`.

        Raises ChangesUnavailableError if another table cannot be read any more as the terms have it.
        """

    def publish_ranges(
        self, context: ConsumeContext, order: RefreshOrder, manifests: Sequence[Manifest], terms: BuildTerms
    ) -> Refreshed | None:
        """Commit what is staged, as `refresh` would.

        Return None, and do nothing, if what is staged does not make up the rows.
        """


ByRanges = RangeBuilt | RangeRefreshed


class RangeReader(Protocol):
    """Reads ranges of a table's snapshots."""

    def rows(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> Rows | None:
        """Return the rows of a range, or None if it is empty; the frame reads them whenever it is evaluated.

        This, the frame and the table raise ChangesUnavailableError, StorageError and EngineError.
        """

    def size(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        """Return how many rows and bytes the range's files have, by their statistics; no row is read.

        A part of a file counts as its share of it, so that the ranges are together what the snapshot is. Raises as
        `rows`.
        """

    def read_once(self, rows: Rows) -> AbstractContextManager[Rows]:
        """Return the same rows, computed once for all who evaluate them."""


class RangeBuilder(Protocol):
    """Reads a range of a table once and stages its rows for each job of the batch, or retains the table's commits.

    The work is idempotent: what was staged or retained already is not staged or retained again.
    """

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        """Stage the range, and return how many rows and bytes of the source it has.

        Return UNCOUNTED if it was staged already, and its size cannot be known any more. Afterwards each job's part is
        durable, with its manifest, and readers of targets see nothing of it. If the batch retains commits, return the
        size of what is retained; if a commit is gone that a build needs, that build is to be begun again.

        Raises Canceled and LeaseLost as `guard` says, PlanOutdated if the source's version is gone, StorageError and
        EngineError.
        """

    def cancel(self, guard: Guard) -> None:
        """Make the engine's work for the batch of this guard stop, which was cancelled; `build` ends soon by itself.

        Raises EngineError and Unavailable where the engine does not take it.
        """


class TablePlace(NamedTuple):
    """Says which table is meant: its id, as its jobs have it, and its URI."""

    table_id: str
    uri: str


class RetainedCommits(Protocol):
    """Retains the changes of a table's commits, one copy for all its jobs.

    Safe for threads. Raises StorageError and EngineError.
    """

    def retain(self, session: SparkSession, table: TablePlace, version: int, guard: Guard) -> TableSize:
        """Retain the changes of one commit, unless they are there already, and return their rows and bytes.

        A commit whose changes no consumer could be handed is only noted. Raises ChangesUnavailableError if its changes
        are gone, and what `guard` raises before anything counts.
        """

    def remove(self, table: TablePlace) -> None:
        """Remove all that is retained of the table."""

    def resolve(
        self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds
    ) -> SourceRange | None:
        """Return the range that one iteration takes from a version on, of retained commits, as ChangeSource.resolve.

        All commits of the range are there, as far as can be seen without reading rows. Return None if the first one is
        not, or its changes cannot be handed to consumers.
        """

    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        """Return the columns of the table at the last version of a span that was resolved here."""

    def read(
        self, session: SparkSession, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """Read the changes of a span that was resolved here, as ChangeSource.read_cdf does.

        Raises ChangesUnavailableError.
        """


class NothingRetained:
    """Retains nothing, as no table is built by ranges (port RetainedCommits)."""

    def retain(self, session: SparkSession, table: TablePlace, version: int, guard: Guard) -> TableSize:
        raise InvariantBroken(f"version {version} of {table.uri} is to be kept where nothing is")

    def remove(self, table: TablePlace) -> None:
        pass

    def resolve(self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds) -> None:
        return None

    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        return ()

    def read(
        self, session: SparkSession, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        raise ChangesUnavailableError(f"nothing is kept of {table.uri}")
