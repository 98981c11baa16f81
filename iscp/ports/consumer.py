"""What a job keeps: the kinds of consumers, and what they are handed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from iscp.core.job.iteration import ChangeDetail, DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.watermark_record import WatermarkRecord
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.watermark import Position, Watermark
from iscp.ports.catalog import Catalog, TableDescription
from iscp.ports.rows import Rows
from iscp.ports.sink import Compared, Sink
from iscp.ports.source import Changes, ChangeSource
from iscp.ports.system import Clock, Failpoints, Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


T = TypeVar("T")


class WatermarkTxn(Protocol):
    """A transaction of a consumer's own sink, as far as the watermark needs it.

    What `get` answers has to hold until the transaction is committed, and `put` has to be undone with it: SQLite's
    BEGIN IMMEDIATE, PostgreSQL's SERIALIZABLE or SELECT … FOR UPDATE.
    """

    def get(self, key: str) -> str | None:
        """The text under `key`; None: there is none."""

    def put(self, key: str, value: str) -> None: ...


class Retriever(Protocol):
    """What one consumer is handed of one iteration (after MatrixOne ISCP's DataRetriever).

    A consumer reads it in one of three ways: `snapshot` and `changes`, as frames of the source's columns; `inserts`
    and `deletes`, or `all`, as frames of the job's columns and rows; or `next`, the same as Arrow, in batches.
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
        """The number under which the consumer has to commit; one more than its position's."""

    @property
    def record(self) -> WatermarkRecord:
        """What the sink has to keep once the data is in it; `update_watermark` writes just that."""

    @property
    def snapshot(self) -> DataFrame:
        """All rows at `to` (SNAPSHOT and DIFFERENCE)."""

    @property
    def snapshot_rows(self) -> Rows:
        """The same; few of them are there as a table too, where the kind wants it (Needs.small_snapshots)."""

    def changes(self, key: Sequence[str], where: str = "") -> Changes:
        """Net changes by `key` (TAIL), of the rows for which `where` holds."""

    @property
    def inserts(self) -> DataFrame:
        """Rows to write: the job's columns, `_commit_version` and `_commit_timestamp`.

        TAIL: to be written over those with the same key, if there are any. SNAPSHOT: all there are, instead of
        whatever the sink holds; they bear the snapshot's version and time.
        """

    @property
    def deletes(self) -> DataFrame:
        """Keys to delete, with `_commit_version` and `_commit_timestamp`; none in a SNAPSHOT."""

    def all(self) -> DataFrame:
        """Every change in order: the job's columns, `_change_type`, `_commit_version` and `_commit_timestamp`.

        Of a SNAPSHOT all rows, as inserts of its version.
        """

    def next(self) -> tuple[pa.Table, pa.Table] | None:
        """The next (inserts, deletes), bounded in rows; None: there are no more.

        Deletes come first, so that a table with further unique columns may take a pair's deletes before its inserts.
        For consumers that want every change the first are those of `all`, in order, and the second is empty.
        """

    @property
    def rows_given(self) -> int:
        """How many rows `next` has given."""

    def update_watermark(self, txn: WatermarkTxn) -> None:
        """Compare and set, within the consumer's transaction: call it once for each iteration, before the commit.

        Raises Conflict where another writer has committed since the consumer's position was read, and what
        the guard raises where no write may be committed any more: the transaction has to be rolled back then.
        """


@dataclass(frozen=True, slots=True)
class ConsumeContext:
    """Where a consumer works: a session of its own, and the guard to check right before the commit.

    `column_ids` are those of the source's rows that it is handed.
    """

    session: SparkSession
    row: JobRow
    source_id: str
    epoch: int
    position: Position
    guard: Guard
    column_ids: ColumnIds = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a consumer has committed; `position` is the sink's after it."""

    position: Position
    rows: int
    bytes: int


class Consumer(Protocol):
    """Keeps one job's sink: data and watermark in one commit, numbered by seq."""

    def position(self, row: JobRow) -> Position:
        """What the sink says; never from memory alone."""

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Take over the sink for this registration: an empty commit at seq + 1, which fails whatever is on its way.

        `source` gives the source's columns; it is not read.
        """

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        """Raises Conflict where another writer won the seq."""


@runtime_checkable
class RangedConsumer(Consumer, Protocol):
    """Keeps one range of a sink that has a watermark for each range of keys."""

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """The text that the sink has under each of these keys, as `update_watermark` puts it; None: there is none."""


@runtime_checkable
class RenewingConsumer(Consumer, Protocol):
    """Keeps a sink whose log is cleaned in time, and the commit that says how far the sink has come with it."""

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """The position, repeated by an empty commit if it may be lost otherwise; called while the source does not move.

        Raises Conflict where another writer won the seq.
        """


@runtime_checkable
class TidyingConsumer(Consumer, Protocol):
    """Has work after its commits that nobody should have to wait for."""

    def tidy(self) -> None:
        """Called after a commit, after those who wait for it were notified. Raises nothing."""


class Check(Protocol):
    """Compares one job's sink with the rows that it should hold, and repairs it."""

    def compare(self, context: ConsumeContext, source: DataFrame) -> AbstractContextManager[Compared]:
        """Raises ChangesUnavailable where the source's rows cannot be read, PermanentError where nothing compares."""

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        """Make it equal in one commit at seq + 1; raises Conflict, and PermanentError where that cannot be done."""

    def adopt(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """Take over a sink that holds the source's rows at `watermark`, by an empty commit that says so."""


@runtime_checkable
class Checked(Protocol):
    """A kind of consumer whose sinks can be compared with their source."""

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> Check: ...


@runtime_checkable
class Adopting(Checked, Protocol):
    """A kind of consumer that can take over a table which somebody else has written."""

    def validate_adoption(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """As `validate`, of a target that is there and may hold rows; whether they are right is not checked."""


@runtime_checkable
class Archiving(Protocol):
    """A kind of consumer some of whose targets hold more than their source: rebuilding them would lose that."""

    def refuse_occupied(self, spec: ConsumerSpec, catalog: Catalog) -> None:
        """At a first registration, which would rebuild it; raises InvalidRequest. `spec` was validated."""


class ConsumerEnvironment(Protocol):
    """What a node hands to a kind that opens a consumer: its targets, its clock, and where tests make it die."""

    @property
    def clock(self) -> Clock: ...

    @property
    def failpoints(self) -> Failpoints: ...

    @property
    def source(self) -> ChangeSource:
        """What reads tables, for consumers that read them themselves."""

    def sink(self, target_uri: str) -> Sink:
        """The table there as a Delta sink; kept, so that what it knows of its log is not read again each time."""

    def keep(self, name: Hashable, target_uri: str, make: Callable[[str], T]) -> T:
        """What a kind has made for the target under this name, or makes now: only where the target may be written to.

        Raises what the check of the target raises. What was not used for long is dropped without a word to it.
        """


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kind of consumer wants to be handed.

    `stamped`: net changes with version and time. `compares`: it takes a DIFFERENCE, against what its sink holds; the
    others get a SNAPSHOT instead. `sharded`: its sinks have a watermark for each range of keys (see ShardedConsumer).
    `small_snapshots`: a SNAPSHOT or DIFFERENCE of few rows is read without Spark (Retriever.snapshot_rows).
    `delta_target`: what it keeps is a Delta table, whose log shows at a glance whether anybody has written to it.
    `reads_itself`: it is a RefreshingConsumer, and is handed no rows. `ranges`: its first rows may be built by ranges,
    as it is a RangeBuiltConsumer or a RangeRefreshedConsumer.
    """

    changes: ChangeDetail = ChangeDetail.NET
    stamped: bool = False
    compares: bool = True
    sharded: bool = False
    small_snapshots: bool = False
    delta_target: bool = True
    reads_itself: bool = False
    ranges: bool = False


class ConsumerKind(Protocol):
    """One kind of consumer, found by entry point (`iscp.consumers`)."""

    name: str
    shared_target: bool
    needs: Needs

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Raises InvalidRequest with the field's path below `spec.iteration.consumer`."""

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        """The one spelling of the job's target, by which two jobs of one target are recognized; empty: it has none."""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        """The source columns that have to be read for this job."""

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> Consumer: ...


@runtime_checkable
class RefreshHandler(Protocol):
    """What a kind of consumer may also offer: work on a job at times of its own choice, not of its source's."""

    def refresh(self, job: JobRow) -> tuple[Sequence[str], float]:
        """The ids of the tables that were read, and when to come again (Unix seconds, yet to come).

        May be called again after it failed or was cut short, and at the same time as an iteration of the job.
        """


@runtime_checkable
class PurgeHandler(Protocol):
    """What a kind of consumer may also offer: letting go of what it held of a source for its jobs on it."""

    def purge(self, table_id: str) -> float:
        """When to come again (Unix seconds, yet to come). Called sooner after a refresh that has read the table."""
