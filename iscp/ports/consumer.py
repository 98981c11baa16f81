"""The ports of consumers: their kinds, and what each is handed of an iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from iscp.core.api.api_views import LeftOutRows
from iscp.core.job.iteration import ChangeDetail, DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.target_state import TargetLog
from iscp.core.job.verification import Comparison
from iscp.core.job.watermark_record import WatermarkRecord
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.watermark import Position, Watermark
from iscp.ports.catalog import Catalog, TableDescription
from iscp.ports.rows import Rows
from iscp.ports.sink import Compared, Deleted, DeletionOrder, Sink
from iscp.ports.source import Changes, ChangeSource, KeyedRows
from iscp.ports.system import Clock, Failpoints, Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from iscp.ports.range_builder import ByRanges, RangeBuilt, RangeRefreshed
    from iscp.ports.refreshing import Refreshed, RefreshOrder

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
    commit is to say (iscp.core.values.trace_context); empty if nothing is traced.
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

    settled: Callable[[Position], bool] | None = None
    """Return whether at this position, which was read last, nothing is to be done until a table of the job changes."""

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
