"""The ports to a target table: one reads it, one writes it, one stages rows under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from iscp.model.build.build_task import NO_TERMS, BuildId, BuildTerms
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Comparison
from iscp.model.values.watermark import (
    NO_DEAD_LETTERS,
    NO_TOTALS,
    ColumnIds,
    DeadLetters,
    Position,
    QueryTotals,
    SourceMarks,
    Watermark,
)
from iscp.ports.source import KeyBounds, Rows
from iscp.ports.system import Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CommitTag:
    """A commit of a sink carries this tag: its seq, the job that it is for, and the versions that it covers.

    `attempt` is unique: it distinguishes our commit from another writer's with the same seq. `base_version` is the
    sink's version up to which every commit was seen to be ours or harmless when the work began. `dead` describes the
    rows that the target leaves out as of this commit. `column_ids` are those of the source at the watermark. `sources`,
    `as_of_s` and `totals` mean the same as in Position. `trace` is the context of the work that commits, if that is
    recorded. `table_uri` is the place of the one table that the sink follows; empty: not known, or `sources` say it.
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
    trace: str = ""
    table_uri: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes rows that were staged under a target and are not visible yet: their number, bytes and Spark schema.

    `files` says where the rows are and how they are to be read: JSON in the words of the sink that staged them, which
    nobody else reads; empty if there are no rows.
    """

    rows: int
    bytes: int
    schema_json: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)


class BuildEnd(StrEnum):
    """A build ends for one of these reasons: what it reads is gone, or its job cannot be built by ranges."""

    OUTDATED = "outdated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StagedState:
    """The state of one build, as it is found under its target.

    `begun` is True if the build was begun, and nobody has removed it since. `end` is the reason for which it ended, or
    None. `ranges` are the ids of the staged ranges.
    """

    begun: bool = False
    end: BuildEnd | None = None
    ranges: frozenset[int] = frozenset()

    @property
    def goes_on(self) -> bool:
        return self.begun and self.end is None


class StagedRanges(Protocol):
    """Stages the ranges of one build under its target, where no reader sees them. Safe for threads and processes.

    All methods raise StorageError, and those that use Spark raise EngineError too.
    """

    def state(self) -> StagedState: ...

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        """Allow ranges to be staged from now on, and remove what earlier builds of the target have left.

        The first `terms` that a build was begun with apply to all of it.
        """

    def terms(self) -> BuildTerms | None:
        """Return the terms that the build was begun with, or None if it was removed or they cannot be read any more."""

    def stage(self, range_id: int, rows: Rows | None) -> None:
        """Write the rows of a range (None stands for no rows), and then its manifest, if it has none yet.

        The first manifest counts. Raises PlanOutdated if the build was removed meanwhile.
        """

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        """Return the manifests of staged ranges, without those that have no rows.

        Return None if a manifest, or a file that one names, is gone.
        """

    def end(self, why: BuildEnd) -> None:
        """End the build for this reason, which `state` shows to everybody who works on it."""

    def remove(self) -> None:
        """Remove the build's manifests, and those of earlier builds of the target.

        The staged files are the table's by then, or VACUUM deletes them. They are deleted here if the terms of their
        build say that they are passing.
        """


@dataclass(frozen=True, slots=True)
class Compared:
    """Says how a target differs from the rows that it should have, and by which changes it becomes equal.

    `repair` has the columns of Changes.frame, and may have a further op: `n` inserts the row though its key is there
    (and is removed by a `d`). Without a key it has the rows to be appended, each with the op `i`, and nothing removes
    surplus rows. None says that no range differs.
    """

    comparison: Comparison
    repair: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class DeletionOrder:
    """Orders a target to be deleted that the registration `row` maintains. `epoch` is that of the node which does it,
    and `guard` is checked before each step.
    """

    row: JobRow
    epoch: int
    guard: Guard


@dataclass(frozen=True, slots=True)
class Deleted:
    """Says that a target is gone. `seq` is that of the sink's last commit; `left` has places, of which some are named
    and why, that are still there as they are none of the target's own.
    """

    seq: int
    left: tuple[str, ...] = ()


class SinkReader(Protocol):
    """Reads a target: its position, its columns and its rows."""

    def position(self, row: JobRow) -> Position: ...

    @property
    def overtaken(self) -> bool:
        """Return whether others have committed since our last commit; a cleaning may then take the position away.

        The answer is as of the last call of `position`.
        """

    def schema_matches(self, schema_json: str) -> bool:
        """Return whether the target's columns are those of `schema_json` (a Spark schema), in any order."""

    def takes(self, schema_json: str) -> bool:
        """Return whether rows of `schema_json` can be appended to the target as it is; missing columns are null."""

    def lacks(self, bounds: KeyBounds, version: int) -> bool:
        """Return whether no row at the table's own `version` can have a key within `bounds`, without reading rows."""

    def rows(self, session: SparkSession) -> DataFrame: ...

    def compare(self, wanted: DataFrame, key: Sequence[str], version: int) -> AbstractContextManager[Compared]:
        """Compare the rows at the table's own `version` with `wanted`, which has the same columns.

        Raises ChangesUnavailable if `wanted` cannot be read.
        """

    def marks_rows(self, tag: CommitTag) -> bool:
        """Return whether the rows of the table, at the tag's base version, can be changed by `change_rows`."""

    def rows_with(self, keys: pa.Table, version: int) -> pa.Table | None:
        """Return all rows, at the table's own `version`, that have one of these `keys` (values of some of the columns).

        Return None if only Spark can find them.
        """

    def few_rows(self, version: int, rows_max: int) -> pa.Table | None:
        """Return all rows at the table's own `version`, or None if they are more, or only Spark can read them."""


class SinkWriter(Protocol):
    """Writes a target by compare-and-set on its seq.

    Every commit raises Conflict if another writer won the seq, StorageError and EngineError otherwise. All return
    the position after the commit. Methods that take Rows choose whether Spark writes them.
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
        """Commit the tag without rows, and create the table if it is not there.

        `first` says that the job has never written the table: PermanentError is raised if it has rows and no commit of
        iscp. A table that is created gets a change data feed if `with_cdf`. If `marks_rows`, rows of it that go are
        marked as gone, as far as its columns allow that.
        """

    def renew(self, tag: CommitTag) -> Position | None:
        """Repeat the position in a commit without rows.

        Return None if others have made the table one that takes no such commit.
        """

    def append(self, rows: Rows, tag: CommitTag, guard: Guard) -> Position:
        """Add rows, which have no op, and whose keys cannot be there."""

    def append_lacking(self, wanted: DataFrame, tag: CommitTag, guard: Guard) -> tuple[Position, int]:
        """Append what `wanted` has and the target lacks, each row as often; return how many rows these are, too.

        Rows are compared by the columns of `wanted`. The target gets new columns and wider types, and loses nothing.
        Raises PermanentError if it cannot have both, ChangesUnavailable if `wanted` cannot be read any more.
        """

    def merge(self, session: SparkSession, rows: Rows, key: Sequence[str], tag: CommitTag, guard: Guard) -> Position:
        """Upsert and delete by key; `rows` have an op each, as Changes.frame has it.

        `session` is the job's own: the rows may be read in one that several jobs share at the same time. Raises
        ChangesUnavailable if a key of op `i` or `p` is there already.
        """

    def repair(
        self, session: SparkSession, frame: DataFrame, key: Sequence[str], tag: CommitTag, guard: Guard
    ) -> Position:
        """Make the target equal by the rows of Compared.repair; `session` means the same as in `merge`."""

    def change_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard) -> Position | None:
        """Put rows in and take rows out, without Spark.

        `rows` has each of them once, with WEIGHT: how many are put in, or, below 0, taken out. Return None, and do
        nothing, if only Spark can do it. Raises ChangesUnavailable if rows that go are not there.
        """

    def replace_keys(self, rows: pa.Table, keys: pa.Table, tag: CommitTag, guard: Guard) -> tuple[Position, int] | None:
        """Replace all rows that have one of these `keys` (values of some of the columns) by `rows`, without Spark.

        Return how many rows went or came, too. Return None as `change_rows` does.
        """

    def replace_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard, rows_max: int) -> tuple[Position, int] | None:
        """Replace all rows by `rows`, without Spark. Return how many rows went or came, too.

        Return None as `change_rows` does, and if there are more rows than `rows_max`.
        """

    def replace(self, frame: DataFrame, tag: CommitTag, guard: Guard) -> Position:
        """Replace all rows and the schema at once, in one ordinary commit."""

    def delete(self, order: DeletionOrder, beside: Sequence[str]) -> Deleted:
        """Delete the table, and the tables at `beside` that are of the same registration.

        This can be repeated after it was cut short anywhere, and goes on then. Raises PermanentError, and deletes
        nothing, if the table is not the registration's, or others have written to it since or keep something in its
        directory.
        """

    def tidy(self) -> None:
        """Do the work after a commit, as Consumer describes it."""


class Staging(Protocol):
    """Writes rows under a target that nobody sees before they are published. Raises as SinkWriter does."""

    def stage(self, rows: Rows, tag: CommitTag) -> Manifest: ...

    def ranges(self, build: BuildId) -> StagedRanges:
        """Return the staged ranges of one build, which are safe for threads, as nothing else here is."""

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        """Return the rows of staged files, before they are published.

        There is at least one manifest, and all have the same columns.
        """

    def have_own_keys(self, session: SparkSession, manifests: Sequence[Manifest], key: Sequence[str]) -> bool:
        """Return whether no two rows of staged files share a key; null equals null."""

    def publish(self, manifests: Sequence[Manifest], tag: CommitTag, guard: Guard) -> Position:
        """Make staged files the table's whole content, in one commit."""


class TargetNotes(Protocol):
    """Stores small files about a target in its directory, where nobody takes them for rows or for waste.

    All methods raise StorageError.
    """

    def read_note(self, name: str, bytes_max: int) -> bytes | None:
        """Return the content of a note, or None if there is none; whoever may write to the target may have put it
        there.
        """

    def write_note(self, name: str, content: bytes) -> None:
        """Write a note in the place of the one of that name; readers find either of them whole."""


class Sink(SinkReader, SinkWriter, Staging, TargetNotes, Protocol):
    """A Delta table that a job maintains."""
