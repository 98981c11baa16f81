"""Hands a consumer the data of one iteration (port Retriever).

Nothing is cached here: frames are made on demand, from what the runner has read once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.core.job.iteration import ChangeDetail, DataType
from iscp.core.job.range_lineage import fenced
from iscp.core.job.usage import UsagePart
from iscp.core.job.watermark_record import WatermarkRecord, position_of, record_key
from iscp.core.rows.key_ranges import condition_sql, hash_sql
from iscp.core.rows.netting import Op
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.sql.sql_names import KEY_HASH, OP, quoted
from iscp.core.values.errors import Conflict
from iscp.core.values.watermark import Watermark
from iscp.ports.consumer import WatermarkTxn
from iscp.ports.rows import Rows
from iscp.ports.source import Changes, ChangeSet, KeyedRows, SmallSnapshot
from iscp.ports.system import Guard
from iscp.ports.work_timer import charge_rest_as, charged_as
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_run import JobRun

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BATCH_ROWS_MAX = 10_000
"""Rows in one batch for a custom consumer; more come in further batches."""

_STAMPS = ("_commit_version", "_commit_timestamp")
_OF_CHANGES = frozenset({OP, "_change_type", *_STAMPS})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows of a source at one version; `small`: they are few, and in memory."""

    make_frame: Callable[[], DataFrame]
    small: SmallSnapshot | None = None


class IterationRetriever:
    """Hands a consumer `rows`, the source at the record's version, or `feed`, what changed up to it: one of the two.

    Rows and changes are those of the job's range alone.
    """

    def __init__(
        self,
        data_type: DataType,
        job_run: JobRun,
        record: WatermarkRecord,
        ports: IterationPorts,
        guard: Guard,
        rows: Snapshot | None = None,
        feed: ChangeSet | None = None,
    ) -> None:
        self.data_type = data_type
        self.record = record
        self.rows_given = 0
        self._rows_changed = 0
        self._row = job_run.row
        self._spec: ConsumerSpec = job_run.row.spec.consumer
        self._needs, self._sharded = job_run.kind.needs, job_run.kind.sharded
        self._base_seq = job_run.position.base_version
        """The seq at which the sink said that it is, -1 if it said nothing."""
        self._takeover = job_run.takeover
        self._engine = ports.engine
        self._failpoints = ports.failpoints
        self._guard = guard
        self._rows = rows
        self._feed = feed
        self._range = condition_sql(self._spec.key, job_run.row.key.range_id)
        self._hash = [f"{hash_sql(self._spec.key)} AS _key_hash"] if self._sharded else []
        self._given: Iterator[tuple[pa.Table, pa.Table]] | None = None

    @property
    def from_version(self) -> int:
        return self.record.from_version

    @property
    def to(self) -> Watermark:
        return self.record.watermark

    @property
    def to_version(self) -> int:
        return self.record.watermark.version

    @property
    def seq(self) -> int:
        return self.record.seq

    @cached_property
    def snapshot(self) -> DataFrame:
        assert self._rows is not None
        frame = self._rows.make_frame()
        return frame.where(self._range) if self._range else frame

    @property
    def snapshot_rows(self) -> Rows:
        small = None if self._rows is None or self._range else self._rows.small
        return Rows(lambda: self.snapshot, lambda: None if small is None else small.rows)

    def changes(self, key: Sequence[str], where: str = "") -> Changes:
        assert self._feed is not None
        conditions = [each for each in (where, self._range) if each]
        return self._count_changed(self._feed.net(key, conditions, columns=self._compared_columns))

    def rows_of_changed_keys(self) -> KeyedRows:
        assert self._feed is not None
        found = self._feed.of_keys(self._spec.key)
        if found.keys.table is not None:
            self._rows_changed = len(found.keys.table)
        return KeyedRows(self._in_range(found.keys), self._in_range(found.rows)) if self._range else found

    def _in_range(self, rows: Rows) -> Rows:
        return rows.transformed(lambda frame: frame.where(self._range), None)

    @property
    def inserts(self) -> DataFrame:
        if self._feed is None:
            present = self._present()
            return present.selectExpr(*self._columns(present), *self._hash, *_STAMPS) if self._hash else present
        frame = self._net().where(f"{OP} IN ('{Op.INSERT}', '{Op.UPDATE}')")
        return frame.selectExpr(*self._columns(frame), *self._hash, *_STAMPS)

    @property
    def deletes(self) -> DataFrame:
        key = [*map(quoted, self._spec.key), *self._hash]
        if self._feed is None:
            return self.snapshot.where("false").selectExpr(*key, *self._snapshot_stamps())
        return self._net().where(f"{OP} = '{Op.DELETE}'").selectExpr(*key, *_STAMPS)

    def all(self) -> DataFrame:
        if self._feed is None:
            present = self._present()
            return present.selectExpr(*self._columns(present), *self._hash, "'insert' AS _change_type", *_STAMPS)
        frame = self._feed.all(self._spec.key)
        for condition in self._row.conditions:
            frame = frame.where(condition)
        return frame.selectExpr(*self._columns(frame), *self._hash, "_change_type", *_STAMPS)

    @property
    def rows_read(self) -> int:
        """Return how many rows of a TAIL were handed over: keys that have changed, or every change.

        The number is 0 for a consumer that has read every change as a frame, which nobody has counted.
        """
        return self._rows_changed or (self.rows_given if self._feed is not None else 0)

    def _count_changed(self, changes: Changes) -> Changes:
        """Return the changes, of which it is known from now on how many they are."""
        self._rows_changed = changes.rows + changes.passed
        return changes

    @charged_as(UsagePart.READ)
    def next(self) -> tuple[pa.Table, pa.Table] | None:
        if self._given is None:
            self._given = self._every() if self._needs.changes is ChangeDetail.ALL else self._pairs()
        for inserts, deletes in self._given:
            if len(inserts) or len(deletes):
                self.rows_given += len(inserts) + len(deletes)
                return inserts, deletes
        return None

    def update_watermark(self, txn: WatermarkTxn) -> None:
        charge_rest_as(UsagePart.COMMIT)
        self._failpoints.reach("commit.before")
        # Only avoids useless work: another writer is excluded by the compare below, in the sink's transaction.
        self._guard.check()
        key = record_key(self._row.key, self._spec.target)
        if self._takeover:
            self._take_over(key, txn)
        else:
            found = position_of(txn.get(key))
            # A later registration has marked it where it has taken over keys of the range.
            if found.base_version != self._base_seq or (self._sharded and found.job_id > self._row.job_id):
                raise Conflict(f"the sink of {key} is at seq {found.seq}: another writer has committed")
        txn.put(key, self.record.to_json())

    def _take_over(self, own: str, txn: WatermarkTxn) -> None:
        """Fence the records that the range takes over, in its first commit.

        Nobody who wrote keys of it before writes them after it.
        """
        for key, text in self._takeover.items():
            if txn.get(key) != text:
                raise Conflict(f"{key} has moved: another writer has committed")
            if text and key != own:
                txn.put(key, fenced(text, self._row.job_id))

    def _present(self) -> DataFrame:
        frame = self.snapshot.where(self._spec.where) if self._spec.where else self.snapshot
        return frame.selectExpr(*self._columns(frame), *self._snapshot_stamps())

    def _net(self) -> DataFrame:
        assert self._feed is not None
        columns = self._compared_columns
        return self._count_changed(
            self._feed.net(self._spec.key, self._row.conditions, stamped=True, columns=columns)
        ).frame

    @property
    def _compared_columns(self) -> tuple[str, ...]:
        """Return the columns by which rows without a key are distinguished."""
        return () if self._spec.key else self._spec.columns

    def _columns(self, frame: DataFrame) -> list[str]:
        names = self._spec.columns or [name for name in frame.columns if name not in _OF_CHANGES]
        return [quoted(name) for name in names]

    def _snapshot_stamps(self) -> tuple[str, str]:
        version, micros = self.to.version, round(self.to.at_s * 1_000_000)
        return (
            f"CAST({version} AS BIGINT) AS _commit_version",
            f"timestamp_micros(CAST({micros} AS BIGINT)) AS _commit_timestamp",
        )

    def _batches(self, frame: DataFrame) -> Iterator[pa.Table]:
        return (self._feed or self._engine).batches(frame, BATCH_ROWS_MAX)

    def _every(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        few = self._few_changes()
        for table in self._batches(self.all()) if few is None else _cut(few):
            yield table, table.slice(0, 0)

    def _few_changes(self) -> pa.Table | None:
        """Return what `all` has, if Spark is not needed for it."""
        if self._feed is None:
            return None
        rows = self._feed.ordered(self._spec.key, self._row.conditions, hashed=self._sharded)
        if rows is None:
            return None
        names = {name.lower(): name for name in rows.column_names}
        marks = [*([KEY_HASH] if self._sharded else []), "_change_type", *_STAMPS]
        own = [name for name in rows.column_names if name not in (*_OF_CHANGES, *marks)]
        wanted = [*(self._spec.columns or own), *marks]
        return rows.select([names[name.lower()] for name in wanted]).rename_columns(wanted)

    def _pairs(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield deletes before inserts.

        The last deletes come with the first inserts; mostly these are the only ones.
        """
        inserts = self._batches(self.inserts)
        first = next(inserts)
        last: pa.Table | None = None
        for deletes in self._batches(self.deletes):
            if last is not None:
                yield first.slice(0, 0), last
            last = deletes
        assert last is not None  # even where there is none
        yield first, last
        for more in inserts:
            yield more, last.slice(0, 0)


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in tables of up to BATCH_ROWS_MAX, at least one."""
    for start in range(0, max(1, len(rows)), BATCH_ROWS_MAX):
        yield rows.slice(start, BATCH_ROWS_MAX)
