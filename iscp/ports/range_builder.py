"""What builds ranges of a snapshot at a node, what it needs of sources and consumers, and what keeps commits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from iscp.core.build.build_request import BuildId
from iscp.core.build.build_task import RangeBatch, StagingBatch
from iscp.core.build.build_terms import BuildTerms
from iscp.core.job.iteration import Bounds
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.progress import TableSize
from iscp.ports.consumer import ConsumeContext, Consumed, Consumer, Retriever
from iscp.ports.refreshing import Refreshed, RefreshingConsumer, RefreshOrder
from iscp.ports.rows import Rows
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.source import ChangeSet, ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@runtime_checkable
class RangeBuiltConsumer(Consumer, Protocol):
    """Keeps a sink whose first rows may be staged range by range, and published at once."""

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        """Whether the sink, once claimed, takes them as it is. `source` as in `claim`."""

    def ranges(self, build: BuildId) -> StagedRanges: ...

    def wanted(self, rows: Rows) -> Rows:
        """Return what the sink is to hold of some rows of the source."""

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        """All rows of the source at `retriever.to`, in one commit at seq + 1; raises Conflict.

        `retriever`: as in `consume`, but for the rows, which it does not have. None: what is staged does not make up
        what the sink should hold, as where rows of several ranges share a key. Nothing was done.
        """


@runtime_checkable
class RangeRefreshedConsumer(RefreshingConsumer, Protocol):
    """Computes its first rows of ranges of its own table, and of other tables as the terms of the build have them."""

    def range_terms(self, context: ConsumeContext, order: RefreshOrder) -> BuildTerms | None:
        """What all ranges are to be computed of, `order.to` among it; None: all rows are to be computed at once."""

    def ranges(self, build: BuildId) -> StagedRanges: ...

    def range_rows(self, rows: DataFrame, terms: BuildTerms) -> DataFrame:
        """What is to be staged of a range of the own table, whose rows these are.

        Raises ChangesUnavailableError where another table cannot be read any more as the terms have it.
        """

    def publish_ranges(
        self, context: ConsumeContext, order: RefreshOrder, manifests: Sequence[Manifest], terms: BuildTerms
    ) -> Refreshed | None:
        """As `refresh`, of what is staged; None: what is staged does not make up the rows. Nothing was done then."""


RangeConsumer = RangeBuiltConsumer | RangeRefreshedConsumer


class RangeReader(Protocol):
    """Reads ranges of a table's snapshots."""

    def rows(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> Rows | None:
        """Return the rows of a range, or None where nothing is in it; the frame reads them whenever it is evaluated.

        This, the frame and the table raise ChangesUnavailableError, StorageError and EngineError.
        """

    def size(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        """What the range's files hold, by their statistics; nothing of them is read.

        A part of a file counts as its share of it, so that the ranges are together what the snapshot is. Raises as
        `rows`.
        """

    def read_once(self, rows: Rows) -> AbstractContextManager[Rows]:
        """Return the same rows, computed once for all who evaluate them."""


class RangeBuilder(Protocol):
    """Reads a range of a table once, and stages its rows for each job of the batch, or keeps the table's commits.

    Idempotent: what was staged or kept already is not staged or kept again.
    """

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        """What the range has of the source; UNCOUNTED where it was staged already, and nobody can say any more.

        Afterwards each job's part is durable, with its manifest. Nothing of it is visible to readers of targets. Of
        commits it is what is kept of them; where one is gone that a build needs, that build is to be begun again.

        Raises Canceled and LeaseLost as `guard` says, PlanOutdated where the source's version is gone, StorageError
        and EngineError.
        """

    def cancel(self, guard: Guard) -> None:
        """Make the engine's work for the batch of this guard stop, which was cancelled; `build` ends soon by itself.

        Raises EngineError and Unavailable where the engine does not take it.
        """


class TablePlace(NamedTuple):
    """A table's id, as its jobs have it, and where it is."""

    table_id: str
    uri: str


class RetainedCommits(Protocol):
    """One copy for all jobs of a table. Safe for threads. Raises StorageError and EngineError."""

    def retain(self, session: SparkSession, table: TablePlace, version: int, guard: Guard) -> TableSize:
        """Keep one commit, unless it is kept already, and say what that takes.

        Of a commit whose changes no consumer could be handed it is noted that nothing is kept. Raises
        ChangesUnavailableError where its changes are gone, and what `guard` does before anything counts.
        """

    def remove(self, table: TablePlace) -> None:
        """All that is kept of the table."""

    def resolve(
        self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds
    ) -> SourceRange | None:
        """How far one iteration goes from a version by what is kept, as ChangeSource.resolve; None: by nothing.

        All that it covers is there, as far as can be seen without reading rows.
        """

    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        """Of the table at the last version of a span that was resolved."""

    def read(
        self, session: SparkSession, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """As ChangeSource.read_cdf, of a span that was resolved here. Raises ChangesUnavailableError."""


class NothingRetained:
    """Where no table is built by ranges."""

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
