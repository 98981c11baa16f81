"""The ports of builds by ranges at a node: the builder, its readers, what builds for consumers, retained commits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from iscp.core.build.build_request import BuildId
from iscp.core.build.build_task import RangeBatch, StagingBatch
from iscp.core.build.build_terms import BuildTerms
from iscp.core.job.iteration import Bounds
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.progress import TableSize
from iscp.ports.consumer import ConsumeContext, Consumed, Retriever
from iscp.ports.refreshing import Refreshed, RefreshOrder
from iscp.ports.rows import Rows
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.source import ChangeSet, ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
