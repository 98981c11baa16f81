"""What changed in a source table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from iscp.core.job.iteration import Bounds
from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.progress import SnapshotSize
from iscp.core.values.watermark import Watermark
from iscp.ports.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Versions to read, (`from_version`, `last_version`]; `more` where bounds cut it short of what was requested.

    `to` is the watermark afterwards. With `steps` above 0 only a part of the one commit in it is taken: the changes
    whose keys are of class `step` of so many.

    `from_at_s` is the commit time of `from_version` (Unix seconds; 0: not known any more). `inserts_only`: no commit in
    it took a row away; `changes_data` is False where none has rows or metadata; `bytes` are of the files to read.
    `cdf_on`: its last version has the change data feed. `column_ids` are those of its last version, and `collated` its
    columns with texts that compare in a way of their own; `reshapes`: a commit in it may have changed the columns,
    `new_schema`: one has changed the schema as the log has it, and `retyped` are those whose type it changed so that
    its changes do not give their values. `lost`: columns, and fields of nested ones (`s.y`), that `from_version` had,
    and the last version has not, so that no change says what they held. `updates`: of versions whose change data may
    lack rows that are equal to others, how many rows they updated.
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

    @property
    def last_version(self) -> int:
        return self.from_version + 1 if self.steps else self.to.version


KeyBounds = Mapping[str, tuple[Any, Any]]
"""The lowest and highest value of key columns, by their names in lower case; one that is missing may have any value."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Net changes, one row for each key (without a key: each row that a commit has written).

    `frame` has the wanted columns and `_iscp_op` (Op in `iscp/core/rows/netting.py`): `i` the key is new since
    `from_version`, `u` it was there, `d` it is gone, `p` it came and went: a sink that holds it holds a row that shared
    the key (of `d` and `p` only the key's columns count). The counts are rows of `frame`. All its keys lie within
    `bounds`. `net` has the same rows for a sink: few changes are there as a table too.
    """

    net: Rows
    inserts: int
    updates: int
    deletes: int
    passed: int = 0
    bounds: KeyBounds = field(default_factory=dict)

    @property
    def frame(self) -> DataFrame:
        return self.net.frame

    @property
    def rows(self) -> int:
        """How many keys have changed."""
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True, slots=True)
class SmallSnapshot:
    """All rows of a source at one version, held in this process; `columns` is an empty frame with their columns."""

    rows: pa.Table
    columns: DataFrame


class ChangesUnavailableError(Exception):
    """The changes of a range cannot be read any more (log cleaned, files vacuumed, feed off): take the difference."""


class ChangeSet(Protocol):
    """The changes of one range, the same whenever they are evaluated until `release`."""

    def net(
        self, key: Sequence[str], where: Sequence[str] = (), stamped: bool = False, columns: Sequence[str] = ()
    ) -> Changes:
        """As if the source held only the rows for which each condition of `where` holds.

        `stamped`, for sinks that nobody can read: each row has the `_commit_version` and the `_commit_timestamp` of
        the key's last change too, and the source was checked to hold as many rows of each key as the changes
        come to. Raises ChangesUnavailableError, also where rows share a key, or shared it within the range: the
        source's rows must show then. That a row was there before, and was not changed, shows only in a sink, or in the
        source. Without a key: of `columns` alone (empty: all) the rows that each commit has written, as often as they
        are there afterwards more often than before; an updated row is a new one.
        """

    def all(self, key: Sequence[str]) -> DataFrame:
        """Every change, with `_change_type`, `_commit_version` and `_commit_timestamp`, as Delta names them.

        In order of version and key; of one key what was (`delete`, `update_preimage`) before what is. Raises
        ChangesUnavailableError.
        """

    def every(self) -> DataFrame:
        """As `all`, in no order; of what is not `held` it raises whatever fails when it is evaluated."""

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        """As Engine.batches, of a frame of these changes: raises ChangesUnavailableError, also after the first ones."""

    def with_equal_rows(self) -> ChangeSet:
        """For who counts rows that are equal, as `net` without a key does: the same, or, where the source's writer has
        left some of them out, with all rows of the files that it rewrote. Raises ChangesUnavailableError.
        """

    @property
    def table(self) -> pa.Table | None:
        """Every change, with `_change_type`, where they are few and held in this process."""

    def release(self) -> None: ...


class ChangeSource(Protocol):
    """Reads a source table for the runner; raises TableNotFound, StorageError, EngineError."""

    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        """How far one iteration goes from `since`, and not beyond `to_version` (None: towards the newest).

        Raises ChangesUnavailableError if the commits between cannot be read.
        """

    def newest(self, uri: str) -> SourceRange:
        """The empty range at the newest version."""

    def at(self, uri: str, version: int) -> SourceRange:
        """The empty range at `version`; raises ChangesUnavailableError where it is gone."""

    def read_cdf(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """Only `columns` are read; for so many `readers`, so that what several of them read may be kept."""

    def read_appends(
        self, session: SparkSession, uri: str, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        """As `read_cdf`, for a range of `inserts_only`: from the files that it added, so that no feed is needed.

        All rows bear the range's last version.
        """

    def enable_feed(self, session: SparkSession, uri: str) -> None:
        """Alter the table to have a change data feed from its next commit on."""

    def hold(self, session: SparkSession, uri: str, holder: str, hold_s: float) -> bool:
        """Have the table keep removed files and old commits for so long, on behalf of `holder`.

        As iscp.core.job.source_holds has it. True: the table was altered for it.
        """

    def snapshot(self, session: SparkSession, uri: str, version: int, *, listed: bool = False) -> DataFrame:
        """`listed`: several plans are made of it, so few files are listed for all of them at once."""

    def schema(self, session: SparkSession, uri: str, version: int) -> StructType:
        """That of `snapshot`; without opening the table in Spark, as far as its columns are plain."""

    def small_snapshot(self, session: SparkSession, uri: str, version: int) -> SmallSnapshot | None:
        """As `snapshot`, of few rows that can be read without Spark; None: that is for Spark to do."""

    def rows_with(
        self, uri: str, version: int, keys: pa.Table, columns: Sequence[str], rows_max: int
    ) -> pa.Table | None:
        """These `columns` of all rows, as of `version`, that have one of these `keys` (values of some of its columns).

        Without Spark; None: that is for Spark to do, as there may be more than `rows_max`, or they are not plain.
        """

    def size(self, uri: str, version: int, piece_bytes: int = 0) -> SnapshotSize:
        """What the table's files say as of `version`; those of more than `piece_bytes` (0: none is) are several pieces.

        Reads the log, and no rows.
        """

    def columns(self, uri: str, version: int) -> tuple[str, ...]:
        """The columns as of `version`, in order."""
