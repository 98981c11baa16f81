"""The pipeline from a source table to the sinks, and the job log."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from iscp.core.columns import ColumnIds
from iscp.core.iteration import Bounds, ChangeDetail, DataType, HistoryEntry, Iteration, JobOutcome
from iscp.core.job import JobReport, JobRow
from iscp.core.record import WatermarkRecord
from iscp.core.spec import ConsumerSpec
from iscp.core.target import TargetSeen
from iscp.core.trigger import ProbeState
from iscp.core.verify import Comparison
from iscp.core.watermark import NO_DEAD_LETTERS, DeadLetters, Position, Watermark
from iscp.ports.system import Clock, Failpoints, Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table as it is now: `columns` maps names to type names, in order; `table_id` is its metadata id.

    `schema_json` is its schema as Delta and Spark write it. `target_fault`: why it cannot be kept, and the remedy.
    `void`: paths of the columns, and of fields within them, that are of the type void, which nobody can read.
    `collated`: columns with texts that compare in a way of their own.
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


class Catalog(Protocol):
    """Finds tables; raises TableNotFound."""

    def describe(self, table: str) -> TableDescription:
        """`table`: a path, a URI, or `db.table` of the configured catalog."""

    def has_version(self, uri: str, version: int) -> bool:
        """Whether the log still tells of this version."""

    def newest_version(self, uri: str) -> int:
        """At a cost that does not follow the table's size, unlike `describe`."""

    def normalize(self, uri: str) -> str:
        """The one spelling of a path or URI, whether or not a table is there."""

    def table_around(self, uri: str) -> str:
        """A table within whose directory this place lies, or that lies in the place's own; empty: none was found."""

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        """Why the engine would not take `condition` as a filter of the table's rows; empty: it would."""


class CommitProbe(Protocol):
    """Asks for the next commit file by name: no listing and no Spark job for a table that did not move.

    Raises TableNotFound, StorageError.
    """

    def remote(self, table_uri: str) -> bool:
        """Whether a look goes over a network, and so may take long; of these many may be under way at once."""

    def look(self, table_uri: str, seen: ProbeState) -> ProbeState:
        """The newest version, going on from `seen`; `seen` itself where nothing moved.

        Of a `seen` without a stamp only the version is known; a version lower than it means a log started anew.
        """

    def first_look(self, table_uri: str) -> ProbeState: ...


class TargetProbe(Protocol):
    """Looks whether a target still holds what was applied to it: as CommitProbe where nobody has touched it."""

    def remote(self, row: JobRow, seen: TargetSeen | None) -> bool:
        """As CommitProbe has it."""

    def look(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        """`seen` itself where nothing moved. Raises TargetLost, StorageError."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Versions to read, (`from_version`, `last_version`]; `more` where bounds cut it short of what was asked.

    `to` is the watermark afterwards. With `steps` above 0 only a part of the one commit in it is taken: the changes
    whose keys are of class `step` of so many.

    `first_commit_at_s` is the commit time of the first version in it (Unix seconds), `from_at_s` that of
    `from_version` (0: not known any more). `inserts_only`: no commit in it took a row away; `changes_data` is False
    where none has rows or metadata; `bytes` are of the files to read. `feed_on`: its last version has the change data
    feed. `column_ids` are those of its last version; `reshapes`: a commit in it may have changed the columns.
    """

    from_version: int
    to: Watermark
    table_id: str
    more: bool = False
    first_commit_at_s: float = 0.0
    from_at_s: float = 0.0
    bytes: int = 0
    changes_data: bool = False
    inserts_only: bool = False
    feed_on: bool = True
    step: int = 0
    steps: int = 0
    column_ids: ColumnIds = field(default_factory=dict)
    reshapes: bool = False

    @property
    def last_version(self) -> int:
        return self.from_version + 1 if self.steps else self.to.version


KeyBounds = Mapping[str, tuple[Any, Any]]
"""The lowest and highest value of key columns, by their names in lower case; one that is missing may have any value."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Net changes, one row for each key (without a key: each row that a commit has written).

    `frame` has the wanted columns and `_iscp_op` (Op in `iscp/core/netting.py`): `i` the key is new since
    `from_version`, `u` it was there, `d` it is gone, `p` it came and went: a sink that holds it holds a row that shared
    the key (of `d` and `p` only the key's columns count). The counts are rows of `frame`. All its keys lie within
    `bounds`. Few changes are held in this process, and are there as `table` too. `reread`: nothing is kept of `frame`,
    which is read from files whenever it is looked at, and always the same.
    """

    make_frame: Callable[[], DataFrame]
    inserts: int
    updates: int
    deletes: int
    passed: int = 0
    bounds: KeyBounds = field(default_factory=dict)
    table: pa.Table | None = None
    reread: bool = False

    @property
    def frame(self) -> DataFrame:
        return self.make_frame()

    @property
    def rows(self) -> int:
        """How many keys have changed."""
        return self.inserts + self.updates + self.deletes


class ChangesUnavailable(Exception):
    """The changes of a range cannot be read any more (log cleaned, files vacuumed, feed off): take the difference."""


class Feed(Protocol):
    """The changes of one range, the same whenever they are looked at until `release`."""

    def net(self, key: Sequence[str], where: str = "", stamped: bool = False, columns: Sequence[str] = ()) -> Changes:
        """As if the source held only the rows for which `where` holds.

        `stamped`, for sinks that nobody looks into: each row has the `_commit_version` and the `_commit_timestamp` of
        the key's last change too, and the source was asked whether it holds as many rows of each key as the changes
        come to. Raises ChangesUnavailable, also where rows share a key, or shared it within the range: the source's
        rows must tell then. That a row was there before, and was not changed, shows only in a sink, or in the source.
        Without a key: of `columns` alone (empty: all) the rows that each commit has written, as often as they are there
        afterwards more often than before; an updated row is a new one.
        """

    def all(self, key: Sequence[str]) -> DataFrame:
        """Every change, with `_change_type`, `_commit_version` and `_commit_timestamp`, as Delta names them.

        In order of version and key; of one key what was (`delete`, `update_preimage`) before what is. Raises
        ChangesUnavailable.
        """

    def release(self) -> None: ...


class ChangeSource(Protocol):
    """Reads a source table for the runner; raises TableNotFound, StorageError, EngineError."""

    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        """How far one iteration goes from `since`, and not beyond `to_version` (None: towards the newest).

        Raises ChangesUnavailable if the commits between cannot be read.
        """

    def newest(self, uri: str) -> SourceRange:
        """The empty range that stands at the newest version."""

    def at(self, uri: str, version: int) -> SourceRange:
        """The empty range that stands at `version`; raises ChangesUnavailable where it is gone."""

    def feed(self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int) -> Feed:
        """Only `columns` are read; for so many `readers`, so that what several of them read may be kept."""

    def added(self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int) -> Feed:
        """As `feed`, for a range of `inserts_only`: from the files that it added, so that no feed is needed.

        All rows bear the range's last version.
        """

    def enable_feed(self, session: SparkSession, uri: str) -> None:
        """Alter the table to have a change data feed from its next commit on."""

    def snapshot(self, session: SparkSession, uri: str, version: int) -> DataFrame: ...

    def columns(self, uri: str, version: int) -> tuple[str, ...]:
        """The columns as of `version`, in order."""


@dataclass(frozen=True, slots=True)
class CommitTag:
    """What a commit of a sink carries: its seq, and for whom and from what it was made.

    `attempt` is unique: it tells our commit from another writer's with the same seq. `base_version` is the
    sink's version up to which every commit was seen to be ours or harmless when the work began. `dead`: the rows that
    the target leaves out as of this commit. `column_ids`: of the source at the watermark.
    """

    seq: int
    job_id: str
    source_id: str
    from_version: int
    watermark: Watermark
    epoch: int
    base_version: int
    attempt: str
    kind: str
    dead: DeadLetters = NO_DEAD_LETTERS
    column_ids: ColumnIds = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files staged under a target, not visible yet: `add_actions` are the log's own, paths relative to the target.

    `protocol` and `metadata` are those of the log, by which the files have to be read.
    """

    add_actions: tuple[Mapping[str, object], ...]
    schema_json: str
    rows: int
    bytes: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """How a target differs from the rows that it should hold, and the changes that would make it equal.

    `mending` is as Changes.frame, and besides: `n`, the row is inserted though its key is there (and taken away by a
    `d`). Without a key it has the rows to be appended, each as `i`; rows too many nothing takes away. None: no range
    differs.
    """

    comparison: Comparison
    mending: DataFrame | None = None


class Sink(Protocol):
    """A Delta table that a job keeps, written by compare-and-set on its seq.

    Every commit raises Conflict if another writer won the seq, StorageError and EngineError otherwise. All give
    the position after the commit.
    """

    def position(self, row: JobRow) -> Position: ...

    @property
    def overtaken(self) -> bool:
        """Whether, as of the last position, others have committed since; a cleaning may then take the position away."""

    def claim(self, schema_json: str, tag: CommitTag, *, first: bool = False) -> Position:
        """An empty commit; creates the table if it is not there.

        `first`: the job has never kept it; raises PermanentError where it has rows and no commit of iscp's.
        """

    def renew(self, tag: CommitTag) -> Position | None:
        """An empty commit that says the position anew. None: others have made of the table what takes none."""

    def schema_matches(self, schema_json: str) -> bool:
        """Whether the target's columns are those of `schema_json` (a Spark schema), in any order."""

    def takes(self, schema_json: str) -> bool:
        """Whether rows of `schema_json` can be appended to the target as it is; columns that they lack are null."""

    def lacks(self, bounds: KeyBounds, version: int) -> bool:
        """Whether no row of the table's own `version` can have a key within `bounds`, told without reading rows."""

    def rows(self, session: SparkSession) -> DataFrame: ...

    def compared(self, wanted: DataFrame, key: Sequence[str], version: int) -> AbstractContextManager[Compared]:
        """The rows at the table's own `version` against `wanted`; raises ChangesUnavailable if that cannot be read.

        It has to have the same columns.
        """

    def append(self, frame: DataFrame, tag: CommitTag, guard: Guard, reread: bool = False) -> Position:
        """As `merge`, of rows whose keys cannot be there, without an op."""

    def append_lacking(self, wanted: DataFrame, tag: CommitTag, guard: Guard) -> tuple[Position, int]:
        """Append what `wanted` has and the target lacks, each row as often, and how many rows these are.

        Rows are compared by the columns of `wanted`. The target gets new columns and wider types, and loses nothing.
        Raises PermanentError where it cannot hold both, ChangesUnavailable where `wanted` cannot be read any more.
        """

    def merge(
        self,
        session: SparkSession,
        frame: DataFrame,
        key: Sequence[str],
        tag: CommitTag,
        guard: Guard,
        reread: bool = False,
    ) -> Position:
        """`frame` and `reread` as in Changes. Raises ChangesUnavailable."""

    def mend(
        self, session: SparkSession, frame: DataFrame, key: Sequence[str], tag: CommitTag, guard: Guard
    ) -> Position:
        """`frame` as in Compared.mending."""

    def append_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard) -> Position | None:
        """As `append`, without Spark. None: this is for Spark to do, and nothing was done."""

    def merge_rows(self, rows: pa.Table, key: Sequence[str], tag: CommitTag, guard: Guard) -> Position | None:
        """As `merge`, without Spark. None: this is for Spark to do, and nothing was done."""

    def replace(self, frame: DataFrame, tag: CommitTag, guard: Guard) -> Position:
        """All rows and the schema at once, in one ordinary commit."""

    def stage(self, frame: DataFrame, tag: CommitTag) -> Manifest: ...

    def publish(self, manifests: Sequence[Manifest], tag: CommitTag, guard: Guard) -> Position:
        """Make staged files the table's whole content, in one commit."""

    def tidy(self) -> None:
        """As TidyingConsumer has it."""


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
        """Keys to take away, with `_commit_version` and `_commit_timestamp`; none in a SNAPSHOT."""

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

        Raises Conflict where another writer has committed since the consumer was asked for its position, and what
        the guard raises where no write may be committed any more: the transaction has to be rolled back then.
        """


@dataclass(frozen=True, slots=True)
class ConsumeContext:
    """Where a consumer works: a session of its own, and the guard to ask right before the commit.

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

    def renewed(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """The position, said anew by an empty commit if it may be lost otherwise; asked while the source stands still.

        Raises Conflict where another writer won the seq.
        """


@runtime_checkable
class TidyingConsumer(Consumer, Protocol):
    """Has work after its commits that nobody should have to wait for."""

    def tidy(self) -> None:
        """Called after a commit, when those who wait for it were told. Raises nothing."""


class Check(Protocol):
    """Compares one job's sink with the rows that it should hold, and mends it."""

    def compared(self, context: ConsumeContext, source: DataFrame) -> AbstractContextManager[Compared]:
        """Raises ChangesUnavailable where the source's rows cannot be read, PermanentError where nothing compares."""

    def mend(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
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
        """As `validate`, of a target that is there and may hold rows; whether they are right is not looked at."""


@runtime_checkable
class Archiving(Protocol):
    """A kind of consumer some of whose targets hold more than their source: building them anew would lose that."""

    def refuse_held(self, spec: ConsumerSpec, catalog: Catalog) -> None:
        """At a first registration, which would build it anew; raises InvalidRequest. `spec` was validated."""


class ConsumerEnvironment(Protocol):
    """What a node hands to a kind that opens a consumer: its targets, its clock, and where tests make it die."""

    @property
    def clock(self) -> Clock: ...

    @property
    def failpoints(self) -> Failpoints: ...

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
    `delta_target`: what it keeps is a Delta table, whose log shows at a glance whether anybody has written to it.
    """

    changes: ChangeDetail = ChangeDetail.NET
    stamped: bool = False
    compares: bool = True
    sharded: bool = False
    delta_target: bool = True


class ConsumerKind(Protocol):
    """One kind of consumer, found by entry point (`iscp.consumers`)."""

    name: str
    shared_target: bool
    needs: Needs

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Raises InvalidRequest with the field's path below `spec.iteration.consumer`."""

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        """The one spelling of the job's target, by which two jobs of one target are told; empty: it has none."""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        """The source columns that have to be read for this job."""

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> Consumer: ...


@runtime_checkable
class RefreshHandler(Protocol):
    """What a kind of consumer may offer besides: work on a job at times of its own choice, not of its source's."""

    def refresh(self, job: JobRow) -> tuple[Sequence[str], float]:
        """The ids of the tables that were read, and when to come again (Unix seconds, yet to come).

        May be called again after it failed or was cut short, and at the same time as an iteration of the job.
        """


@runtime_checkable
class PurgeHandler(Protocol):
    """What a kind of consumer may offer besides: letting go of what it held of a source for its jobs on it."""

    def purge(self, table_id: str) -> float:
        """When to come again (Unix seconds, yet to come). Called sooner after a refresh that has read the table."""


class Engine(Protocol):
    """Spark, as the runner uses it: sessions to borrow, and work that can be cancelled by its label."""

    def session(self) -> AbstractContextManager[SparkSession]:
        """A session with SQL settings of its own, given back at the end."""

    def label(self, label: str) -> None:
        """Put what this thread does from now on under `label`."""

    def spent_s(self) -> tuple[float, float]:
        """How long this thread has been waiting for Spark, and has been reading and writing data itself, in all."""

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        """The frame's rows, in its order, in tables of 1 to `rows_max` rows; one without rows if there are none.

        Read while they are taken: never more than a partition of Spark's is in memory.
        """

    def cancel(self, label: str) -> None:
        """Stop all Spark jobs under `label`, running or still to come; they raise Canceled."""


class JobLog(Protocol):
    """The Delta table that holds every job. One writer at a time, by the fence of its term.

    One instance serves one term. Whatever writes raises NotOwner once another term was seen, and the commit may have
    landed right before it; StorageError and Unavailable mean that nothing was committed, OutcomeUnknown that the
    storage could not even be looked at.
    Writes come from one thread; history and `tidy` may be called from others.
    """

    @property
    def commits_since_compaction(self) -> int: ...

    @property
    def version(self) -> int:
        """The last version of the log that is known; -1 before it is claimed."""

    def claim_term(self) -> int:
        """Mint owner_rev, the last term + 1, by a claim commit; nothing may be read or done before."""

    def load(self) -> list[JobRow]:
        """The last row of every registration (`job_id`), oldest first, dropped ones too until they are collected."""

    def append(self, rows: Sequence[JobRow], request_ids: Sequence[str]) -> None:
        """Commit at exactly the next version; `request_ids` run parallel to `rows` ("": none).

        After OutcomeUnknown the next append must carry the same rows: it finds out, and commits them if need be.
        """

    def requests(self) -> Mapping[str, str]:
        """The request ids still in the log, oldest first, and the `job_id` that each was about; known after `load`."""

    def compact(self, rows: Sequence[JobRow]) -> None:
        """Replace all entries by the last row of every registration that is still to be known."""

    def tidy(self) -> int:
        """Delete files that the call before found unneeded already; answers how many. Commits nothing to the log."""

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        """Raises StorageError, and InvalidRequest where one of them cannot be held: then none was written."""

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Newest first."""


class IterationRunner(Protocol):
    """Runs one iteration to its end, on a thread of the executor."""

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        """One outcome a job; faults of one job are its own. Raises only if the whole iteration failed."""

    def cancel(self, iteration: Iteration) -> None:
        """Make the Spark work of `iteration` stop; returns at once, `run` ends by itself soon."""


class ReportSink(Protocol):
    """Where a node's reports go: to the owner, through the worker machine."""

    def report(self, table_id: str, reports: Sequence[JobReport], history: Sequence[HistoryEntry]) -> None: ...
