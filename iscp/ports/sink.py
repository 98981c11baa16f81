"""A target table, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from iscp.core.build.build_request import BuildId
from iscp.core.build.build_terms import NO_TERMS, BuildTerms
from iscp.core.job.job_row import JobRow
from iscp.core.job.verification import Comparison
from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.totals import NO_TOTALS, QueryTotals
from iscp.core.values.watermark import NO_DEAD_LETTERS, DeadLetters, Position, SourceMarks, Watermark
from iscp.ports.rows import Rows
from iscp.ports.source import KeyBounds
from iscp.ports.system import Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CommitTag:
    """What a commit of a sink carries: its seq, and for whom and from what it was made.

    `attempt` is unique: it distinguishes our commit from another writer's with the same seq. `base_version` is the
    sink's version up to which every commit was seen to be ours or harmless when the work began. `dead`: the rows that
    the target leaves out as of this commit. `column_ids`: of the source at the watermark. `sources`, `as_of_s` and
    `totals`: as in Position.
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
    sources: SourceMarks = field(default_factory=dict)
    as_of_s: float = 0.0
    totals: QueryTotals = NO_TOTALS


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was staged under a target and is not visible yet: how many rows and bytes, and their Spark schema.

    `files` says where the rows are and how they are to be read: JSON in the words of the sink that staged them, which
    nobody else reads. It is empty where there are no rows.
    """

    rows: int
    bytes: int
    schema_json: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)


class BuildEnd(StrEnum):
    """Why a build does not go on: what it reads is gone, or its job cannot be built so."""

    OUTDATED = "outdated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StagedState:
    """What a target has of a build. `begun`: it was begun, and nobody has removed it since."""

    begun: bool = False
    end: BuildEnd | None = None
    ranges: frozenset[int] = frozenset()

    @property
    def goes_on(self) -> bool:
        return self.begun and self.end is None


class StagedRanges(Protocol):
    """The ranges of one build, staged under its target, of which readers see nothing. Safe for threads and processes.

    All raise StorageError, what uses Spark EngineError too.
    """

    def state(self) -> StagedState: ...

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        """From now on ranges may be staged; what earlier builds of the target have left is removed.

        The first `terms` that a build was begun with hold for all of it.
        """

    def terms(self) -> BuildTerms | None:
        """Those that it was begun with; None: it was removed, or nobody can read them any more."""

    def stage(self, range_id: int, rows: Rows | None) -> None:
        """Write the rows of a range, and then its manifest, if there is none: the first one counts. None: no rows.

        Raises PlanOutdated where the build was removed meanwhile.
        """

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        """Those of ranges that are there; None: files that they name are gone."""

    def end(self, why: BuildEnd) -> None:
        """It does not go on; whoever works on it learns that from `state`."""

    def remove(self) -> None:
        """Its manifests, and those of earlier builds of the target.

        Its files are the table's, or VACUUM takes them; where its terms say that they are passing they are deleted.
        """


@dataclass(frozen=True, slots=True)
class Compared:
    """How a target differs from the rows that it should hold, and the changes that would make it equal.

    `repair` is as Changes.frame, and in addition: `n`, the row is inserted though its key is there (and removed by a
    `d`). Without a key it has the rows to be appended, each as `i`; rows too many nothing removes. None: no range
    differs.
    """

    comparison: Comparison
    repair: DataFrame | None = None


@runtime_checkable
class SmallCheck(Protocol):
    """What compares few rows without Spark."""

    def compare_small(
        self, session: SparkSession, position: Position, source: DataFrame, schema: pa.Schema
    ) -> Comparison | None:
        """With all rows of the source, which are few and fit this schema, as Spark reads them, whoever applied them.

        None: whether something differs, and what, `Check.compare` has to say.
        """


class SinkReader(Protocol):
    """Says what a target holds."""

    def position(self, row: JobRow) -> Position: ...

    @property
    def overtaken(self) -> bool:
        """Whether, as of the last position, others have committed since; a cleaning may then take the position away."""

    def schema_matches(self, schema_json: str) -> bool:
        """Whether the target's columns are those of `schema_json` (a Spark schema), in any order."""

    def takes(self, schema_json: str) -> bool:
        """Whether rows of `schema_json` can be appended to the target as it is; columns that they lack are null."""

    def lacks(self, bounds: KeyBounds, version: int) -> bool:
        """Whether no row of the table's own `version` can have a key within `bounds`, found without reading rows."""

    def rows(self, session: SparkSession) -> DataFrame: ...

    def compare(self, wanted: DataFrame, key: Sequence[str], version: int) -> AbstractContextManager[Compared]:
        """The rows at the table's own `version` against `wanted`; raises ChangesUnavailable if that cannot be read.

        It has to have the same columns.
        """

    def marks_rows(self, tag: CommitTag) -> bool:
        """Whether `change_rows` may do it."""

    def rows_with(self, keys: pa.Table, version: int) -> pa.Table | None:
        """Return all rows, at the table's own `version`, that have one of these `keys`, some of the columns.

        Return None where only Spark can find them.
        """

    def few_rows(self, version: int, rows_max: int) -> pa.Table | None:
        """Return all rows at the table's own `version`, or None where they are more, or only Spark can read them."""


class SinkWriter(Protocol):
    """Writes a target by compare-and-set on its seq.

    Every commit raises Conflict if another writer won the seq, StorageError and EngineError otherwise. All return
    the position after the commit. What takes Rows chooses whether Spark writes them.
    """

    def claim(
        self,
        schema_json: str,
        tag: CommitTag,
        *,
        first: bool = False,
        with_cdf: bool = False,
        marks_rows: bool = False,
    ) -> Position:
        """An empty commit; creates the table if it is not there.

        `first`: the job has never kept it; raises PermanentError where it has rows and no commit of iscp's.
        Of a table that is created, `with_cdf`: it has a change data feed; `marks_rows`: rows of it that go are
        marked as gone, where its columns allow it.
        """

    def renew(self, tag: CommitTag) -> Position | None:
        """An empty commit that repeats the position. None: others have made of the table what takes none."""

    def append(self, rows: Rows, tag: CommitTag, guard: Guard) -> Position:
        """Add rows, without an op, whose keys cannot be there."""

    def append_lacking(self, wanted: DataFrame, tag: CommitTag, guard: Guard) -> tuple[Position, int]:
        """Append what `wanted` has and the target lacks, each row as often, and how many rows these are.

        Rows are compared by the columns of `wanted`. The target gets new columns and wider types, and loses nothing.
        Raises PermanentError where it cannot hold both, ChangesUnavailable where `wanted` cannot be read any more.
        """

    def merge(self, session: SparkSession, rows: Rows, key: Sequence[str], tag: CommitTag, guard: Guard) -> Position:
        """Upsert and delete by key; `rows` have an op each, as Changes.frame has it.

        `session` is the job's own: the rows may be read in one that several jobs share at the same time. Raises
        ChangesUnavailable where a key of op `i` or `p` is there already.
        """

    def repair(
        self, session: SparkSession, frame: DataFrame, key: Sequence[str], tag: CommitTag, guard: Guard
    ) -> Position:
        """Make the target equal by the rows of Compared.repair; `session` as in `merge`."""

    def change_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard) -> Position | None:
        """`rows`: each once, with WEIGHT: as many are put in, or taken out, without Spark.

        None: this is for Spark to do, and nothing was done. Raises ChangesUnavailable where rows that go are not there.
        """

    def replace_keys(self, rows: pa.Table, keys: pa.Table, tag: CommitTag, guard: Guard) -> tuple[Position, int] | None:
        """As `change_rows`: of all rows with one of these `keys`, some of the columns, `rows` are to be there.

        How many rows went or came besides.
        """

    def replace_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard, rows_max: int) -> tuple[Position, int] | None:
        """As `change_rows`: `rows` are to be all rows. How many rows went or came besides.

        None too where there are more than `rows_max`.
        """

    def replace(self, frame: DataFrame, tag: CommitTag, guard: Guard) -> Position:
        """All rows and the schema at once, in one ordinary commit."""

    def tidy(self) -> None:
        """As TidyingConsumer has it."""


class Staging(Protocol):
    """Writes rows under a target that nobody sees before they are published. Raises as SinkWriter does."""

    def stage(self, rows: Rows, tag: CommitTag) -> Manifest: ...

    def ranges(self, build: BuildId) -> StagedRanges:
        """What is staged of one build; safe for threads, as nothing else here is."""

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        """The rows of staged files of the same columns, at least one, before they are published."""

    def have_own_keys(self, session: SparkSession, manifests: Sequence[Manifest], key: Sequence[str]) -> bool:
        """Whether no two rows of staged files share a key; null equals null."""

    def publish(self, manifests: Sequence[Manifest], tag: CommitTag, guard: Guard) -> Position:
        """Make staged files the table's whole content, in one commit."""


class Sink(SinkReader, SinkWriter, Staging, Protocol):
    """A Delta table that a job keeps."""
