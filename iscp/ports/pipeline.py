"""The pipeline from a source table to the sinks, and the job log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from iscp.core.ids import JobKey
from iscp.core.iteration import Bounds, DataType, HistoryEntry, Iteration, JobOutcome
from iscp.core.job import ConsumerSpec, JobReport, JobRow
from iscp.core.watermark import Position, Watermark
from iscp.ports.system import Guard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table as it is now: `columns` maps names to type names, in order; `table_id` is its metadata id."""

    table_id: str
    name: str
    uri: str
    version: int
    committed_at_s: float
    columns: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    sink_seq: int = 0
    empty: bool = True


class Catalog(Protocol):
    """Finds tables; raises TableNotFound."""

    def describe(self, table: str) -> TableDescription:
        """`table`: a path, a URI, or `db.table` of the configured catalog."""

    def normalize(self, uri: str) -> str:
        """The one spelling of a path or URI, whether or not a table is there."""


@dataclass(frozen=True, slots=True)
class ProbeState:
    """What was last seen of a source: `stamp` is the identity of the newest commit file (inode and time, or ETag)."""

    version: int
    stamp: tuple[int, ...]


class CommitProbe(Protocol):
    """Asks for the next commit file by name: no listing and no Spark job for a table that did not move.

    Raises TableNotFound, StorageError.
    """

    def look(self, table_uri: str, seen: ProbeState) -> ProbeState:
        """The newest version, going on from `seen`; `seen` itself where nothing moved."""

    def first_look(self, table_uri: str) -> ProbeState: ...


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Versions to read, (`from_version`, `to.version`]; `more` where bounds cut it short of what was asked.

    `lag_from_s` is the commit time of the first version in it (Unix seconds).
    """

    from_version: int
    to: Watermark
    table_id: str
    more: bool = False
    lag_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Net changes, one for each key, read once and kept until `release`.

    `frame` has the wanted columns and `_iscp_op`: `i` the key is new since `from_version`, `u` it may have been
    there, `d` it is gone. Without a key: every inserted row, `_iscp_op` = `i`. The counts are rows of `frame`.
    """

    frame: DataFrame
    inserts: int
    updates: int
    deletes: int

    def release(self) -> None:
        self.frame.unpersist(blocking=False)


class ChangesUnavailable(Exception):  # noqa: N818  (a condition with a way on, not a fault)
    """The changes of a range cannot be read any more (log cleaned, files vacuumed, feed off): take the difference."""


class ChangeSource(Protocol):
    """Reads a source table for the runner; raises TableNotFound, StorageError, EngineError."""

    def resolve(self, uri: str, from_version: int, to_version: int | None, bounds: Bounds) -> SourceRange:
        """How far one iteration goes; raises ChangesUnavailable if the commits between cannot be read."""

    def changes(
        self, session: SparkSession, uri: str, span: SourceRange, key: Sequence[str], columns: Sequence[str]
    ) -> Changes:
        """One read of the range; raises ChangesUnavailable."""

    def snapshot(self, session: SparkSession, uri: str, version: int) -> DataFrame: ...

    def newest(self, uri: str) -> SourceRange:
        """An empty range that stands at the newest version."""


class Retriever(Protocol):
    """What one consumer is handed of one iteration (after MatrixOne ISCP's DataRetriever)."""

    @property
    def data_type(self) -> DataType: ...
    @property
    def from_version(self) -> int: ...
    @property
    def to(self) -> Watermark: ...
    @property
    def seq(self) -> int:
        """The number under which the consumer has to commit; one more than its position's."""

    @property
    def snapshot(self) -> DataFrame:
        """All rows at `to` (SNAPSHOT and DIFFERENCE)."""

    @property
    def changes(self) -> Changes:
        """Net changes (TAIL)."""


@dataclass(frozen=True, slots=True)
class ConsumeContext:
    """Where a consumer works: a session of its own, and the guard to ask right before the commit."""

    session: SparkSession
    row: JobRow
    source_id: str
    epoch: int
    position: Position
    guard: Guard


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

    def claim(self, context: ConsumeContext) -> Position:
        """Take over the sink for this registration: an empty commit at seq + 1, which fails whatever is on its way."""

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        """Raises Conflict where another writer won the seq."""


class ConsumerKind(Protocol):
    """One kind of consumer, found by entry point (`iscp.consumers`)."""

    name: str
    shared_target: bool

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Raises InvalidRequest with the field's path below `spec.iteration.consumer`."""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        """The source columns this job wants."""


class JobLog(Protocol):
    """The Delta table that holds every job. One writer at a time, by the fence of its term.

    All methods but `claim_term` and reads raise NotOwner once another term was seen; StorageError and Unavailable
    mean that nothing was committed.
    """

    def claim_term(self) -> int:
        """Mint owner_rev, the last term + 1, by a claim commit; nothing may be read or done before."""

    def load(self) -> list[JobRow]:
        """The current row of every job, dropped ones too until they are collected."""

    def append(self, rows: Sequence[JobRow], request_ids: Sequence[str]) -> None:
        """Commit at exactly the next version; `request_ids` run parallel to `rows` (empty: none)."""

    def requests(self) -> Mapping[str, JobKey]:
        """The request ids still in the log, and the job that each was about."""

    def compact(self, rows: Sequence[JobRow]) -> None:
        """Replace all entries by the current rows."""

    def append_history(self, entries: Sequence[HistoryEntry]) -> None: ...

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
