"""Writes a Delta table that a job maintains, by compare-and-set on its seq (port Sink).

Data and watermark go into one commit: `txn` (iscp, seq) and user metadata with the range. If two writers commit one
seq, one of them wins; Delta reports a conflict to the other if they overlap, and skips it silently if it comes later.
So after every commit the log is read for the one that carries the seq. Spark writes the rows of merges and appends;
claims and the publishing of staged files go through deltalake, which commits at exactly the next version or not at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from deltalake.transaction import AddAction

from iscp.delta.log.commits import table_exists
from iscp.delta.log.live_files import LoadState, load_plain_state
from iscp.delta.log.table_opening import (
    COMMITS,
    PROPERTIES,
    Checkpoints,
    expiry_fault,
    open_delta,
    refuse_fault,
    refuse_somebody_elses,
    refuse_unusable,
    target_fault,
)
from iscp.delta.rows.net_changes import OP, conformed
from iscp.delta.rows.row_keys import TableKeys
from iscp.delta.sink.bag_write import VECTORS, BagWriter
from iscp.delta.sink.sink_position import Columns, PositionReader, plain
from iscp.delta.sink.staging import FileStagedRanges, add_actions, have_own_keys, stage, staged_rows
from iscp.delta.sink.table_diff import comparing
from iscp.delta.sink.target_deletion import TargetDeletion, delete_beside
from iscp.delta.sink.target_write import (
    DirectWriter,
    Lacking,
    Way,
    append_by_spark,
    commit_properties,
    comparable,
    create_target,
    enable_features,
    is_plain,
    lacking,
    merge_by_spark,
    overwrite_by_spark,
)
from iscp.delta.source.spark_read import load_version
from iscp.model.build.build_task import BuildId
from iscp.model.job.iteration import UsagePart
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import Conflict, EngineError, StorageError, TableNotFound
from iscp.model.values.watermark import Position
from iscp.ports.engine import charged_as, charging, leave_to_spark
from iscp.ports.sink import CommitTag, Compared, Deleted, DeletionOrder, Manifest
from iscp.ports.source import KeyBounds, Rows
from iscp.ports.system import Failpoints, Guard
from iscp.spark.spark_errors import spark_faults
from iscp.storage.delta_errors import delta_faults
from iscp.storage.table_files import read_note, write_note

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_CDF = {"delta.enableChangeDataFeed": "true"}


class DeltaSink:
    """One target table. Not thread safe: one consumer at work has one."""

    def __init__(self, uri: str, failpoints: Failpoints, load_state: LoadState = load_plain_state) -> None:
        self._uri = uri
        self._failpoints = failpoints
        self._reader = PositionReader(uri)
        self._target_keys = TableKeys(uri)
        self._direct = DirectWriter(uri, self._target_keys)
        self._bag = BagWriter(uri, load_state=load_state)
        self._columns: Columns | None = None
        self._shape = -1  # that of the table whose columns they are
        self._checkpoints = Checkpoints(uri, COMMITS, only_with=PROPERTIES)

    @charged_as(UsagePart.READ)
    def position(self, row: JobRow) -> Position:
        return self._reader.read(row)

    @property
    def overtaken(self) -> bool:
        return self._reader.overtaken

    @charged_as(UsagePart.COMMIT)
    def claim(
        self,
        schema_json: str,
        tag: CommitTag,
        *,
        first: bool = False,
        with_cdf: bool = False,
        marks_rows: bool = False,
    ) -> Position:
        """Commit the tag's seq without rows; create the table if it is not there."""
        if tag.base_version >= 0:
            refuse_unusable(self._uri)
            if first:
                refuse_somebody_elses(self._uri, tag.base_version)
            self._commit_actions([], "append", tag)
        elif table_exists(self._uri):
            raise Conflict(f"{self._uri} has come to be meanwhile")
        else:
            with self._find_own_commit(tag), delta_faults(f"create {self._uri}"):
                properties = PROPERTIES | (_CDF if with_cdf else {}) | (VECTORS if marks_rows else {})
                create_target(self._uri, plain(json.loads(schema_json)), properties, tag)
        return self._confirm_commit(tag)

    @charged_as(UsagePart.COMMIT)
    def renew(self, tag: CommitTag) -> Position | None:
        with delta_faults(f"open {self._uri}"):
            table = open_delta(self._uri)
            if target_fault(table)[0] or not is_plain(table, adds_only=True):
                return None
        self._commit_actions([], "append", tag)
        return self._confirm_commit(tag)

    def schema_matches(self, schema_json: str) -> bool:
        return self._load_columns().match(schema_json)

    def takes(self, schema_json: str) -> bool:
        return self._load_columns().take(schema_json)

    def _load_columns(self) -> Columns:
        """Return the target's columns.

        They are cached until a commit is seen that may have changed them, since opening a table costs with its size.
        """
        if self._columns is None or self._shape != self._reader.shape:
            with delta_faults(f"open {self._uri}"):
                table = open_delta(self._uri)
            refuse_fault(*expiry_fault(table))
            self._columns, self._shape = Columns(table.schema().to_json()), self._reader.shape
        return self._columns

    def lacks(self, bounds: KeyBounds, version: int) -> bool:
        return self._target_keys.lack(bounds, version)

    def rows(self, session: SparkSession) -> DataFrame:
        with spark_faults(f"open {self._uri}"):
            return load_version(session, self._uri)

    @contextmanager
    def compare(self, wanted: DataFrame, key: Sequence[str], version: int) -> Iterator[Compared]:
        # An append-only target may have more columns, and wider ones.
        with comparing(*comparable(wanted, self._rows_at(wanted.sparkSession, version)), key) as compared:
            yield compared

    @charged_as(UsagePart.COMMIT)
    def append(self, rows: Rows, tag: CommitTag, guard: Guard) -> Position:
        self._ready_to_commit(guard)
        with self._find_own_commit(tag):
            if not self._append_directly(rows, tag):
                frame = rows.frame
                if not self.schema_matches(frame.schema.json()):
                    frame = conformed(frame, self._load_columns().schema)
                append_by_spark(frame, self._uri, tag, rows.reread)
        return self._confirm_commit(tag)

    def _append_directly(self, rows: Rows, tag: CommitTag) -> bool:
        if rows.table is None:
            return False
        fitted = self._load_columns().fitted(rows.table)
        done = self._direct.append(fitted, tag.base_version, commit_properties(tag))
        if not done:
            leave_to_spark(f"{self._uri}, or what comes into it, is such as is written by Spark alone")
        return done

    def append_lacking(self, wanted: DataFrame, tag: CommitTag, guard: Guard) -> tuple[Position, int]:
        with lacking(wanted, self._rows_at(wanted.sparkSession, tag.base_version)) as found:
            if found.way is Way.REWRITE:
                return self.replace(found.frame, tag, guard), found.rows
            with charging(UsagePart.COMMIT):
                return self._append_found(found, tag, guard), found.rows

    def _append_found(self, found: Lacking, tag: CommitTag, guard: Guard) -> Position:
        self._ready_to_commit(guard)
        if found.way is Way.WIDEN:
            self._columns = None
            enable_features(found.frame.sparkSession, self._uri, found.frame.schema)
        with self._find_own_commit(tag):
            append_by_spark(found.frame, self._uri, tag, reread=True, widen=found.way is Way.WIDEN)
        return self._confirm_commit(tag)

    def _rows_at(self, session: SparkSession, version: int) -> DataFrame:
        with spark_faults(f"open {self._uri} at version {version}"):
            return load_version(session, self._uri, version)

    def marks_rows(self, tag: CommitTag) -> bool:
        return self._bag.marks_rows(tag.base_version)

    @charged_as(UsagePart.COMMIT)
    def change_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard) -> Position | None:
        self._ready_to_commit(guard)
        return None if self._bag.change(rows, tag) is None else self._confirm_commit(tag)

    def rows_with(self, keys: pa.Table, version: int) -> pa.Table | None:
        return self._bag.rows_with(keys, version)

    @charged_as(UsagePart.COMMIT)
    def replace_keys(self, rows: pa.Table, keys: pa.Table, tag: CommitTag, guard: Guard) -> tuple[Position, int] | None:
        self._ready_to_commit(guard)
        changed = self._bag.replace_keys(rows, keys, tag)
        return None if changed is None else (self._confirm_commit(tag), changed)

    def few_rows(self, version: int, rows_max: int) -> pa.Table | None:
        return self._bag.few_rows(version, rows_max)

    @charged_as(UsagePart.COMMIT)
    def replace_rows(self, rows: pa.Table, tag: CommitTag, guard: Guard, rows_max: int) -> tuple[Position, int] | None:
        self._ready_to_commit(guard)
        changed = self._bag.replace_all(rows, tag, rows_max)
        return None if changed is None else (self._confirm_commit(tag), changed)

    @charged_as(UsagePart.COMMIT)
    def replace(self, frame: DataFrame, tag: CommitTag, guard: Guard) -> Position:
        self._ready_to_commit(guard)
        self._columns = None
        enable_features(frame.sparkSession, self._uri, frame.schema)
        with self._find_own_commit(tag):
            overwrite_by_spark(frame, self._uri, tag)
        return self._confirm_commit(tag)

    @charged_as(UsagePart.COMMIT)
    def merge(self, session: SparkSession, rows: Rows, key: Sequence[str], tag: CommitTag, guard: Guard) -> Position:
        """Upsert and delete by key; null equals null."""
        self._ready_to_commit(guard)
        table = rows.table
        with self._find_own_commit(tag):
            if table is None or not self._direct.merge(table, key, tag.base_version, commit_properties(tag)):
                leave_to_spark(f"rows are merged into {self._uri} by Spark", unless_known=table is None)
                merge_by_spark(session, self._uri, rows.frame, key, tag, rows.reread)
        return self._confirm_commit(tag)

    @charged_as(UsagePart.COMMIT)
    def repair(
        self, session: SparkSession, frame: DataFrame, key: Sequence[str], tag: CommitTag, guard: Guard
    ) -> Position:
        if not key:
            return self.append(Rows(lambda: frame.drop(OP)), tag, guard)
        self._ready_to_commit(guard)
        with self._find_own_commit(tag):
            # A row that matches nothing is inserted, whatever there is.
            merge_by_spark(session, self._uri, frame, key, tag, only_where=f" AND s.{OP} <> 'n'")
        return self._confirm_commit(tag)

    def stage(self, rows: Rows, tag: CommitTag) -> Manifest:
        """Write the rows under the target as a table of their own, whose log is the manifest."""
        return stage(rows, self._uri, tag, self._failpoints)

    def ranges(self, build: BuildId) -> FileStagedRanges:
        return FileStagedRanges(self._uri, build, self._failpoints)

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        with spark_faults(f"open what is staged for {self._uri}"):
            return staged_rows(session, self._uri, manifests)

    def have_own_keys(self, session: SparkSession, manifests: Sequence[Manifest], key: Sequence[str]) -> bool:
        return have_own_keys(session, self._uri, manifests, key)

    @charged_as(UsagePart.COMMIT)
    def publish(self, manifests: Sequence[Manifest], tag: CommitTag, guard: Guard) -> Position:
        refuse_unusable(self._uri)  # it may have become so since the claim
        with delta_faults(f"open {self._uri}"):
            target = open_delta(self._uri, version=tag.base_version)
        actions = [add for manifest in manifests for add in add_actions(manifest, target)]
        self._failpoints.reach("publish.before")
        self._ready_to_commit(guard)
        self._commit_actions(actions, "overwrite", tag)
        self._failpoints.reach("publish.after")
        return self._confirm_commit(tag)

    def read_note(self, name: str, bytes_max: int) -> bytes | None:
        return read_note(self._uri, name, bytes_max)

    def write_note(self, name: str, content: bytes) -> None:
        write_note(self._uri, name, content)

    def delete(self, order: DeletionOrder, beside: Sequence[str]) -> Deleted:
        others = [DeltaSink(uri, self._failpoints)._deletion(order.guard) for uri in beside]
        return self._deletion(order.guard).run(order, lambda: tuple(delete_beside(order, others)))

    def _deletion(self, guard: Guard) -> TargetDeletion:
        return TargetDeletion(self._uri, self._failpoints, lambda tag: self.publish([], tag, guard))

    def tidy(self) -> None:
        self._checkpoints.make()

    def _ready_to_commit(self, guard: Guard) -> None:
        self._failpoints.reach("commit.before")
        # Only avoids a useless commit: between two writers the seq decides, whatever the guard says.
        guard.check()

    def _commit_actions(self, actions: Sequence[AddAction], mode: str, tag: CommitTag) -> None:
        """Commit through deltalake at exactly `tag.base_version` + 1; raises Conflict if that is taken."""
        with self._find_own_commit(tag), delta_faults(f"commit seq {tag.seq} to {self._uri}"):
            table = open_delta(self._uri, version=tag.base_version)
            table.create_write_transaction([*actions], mode, table.schema(), commit_properties=commit_properties(tag))

    @contextmanager
    def _find_own_commit(self, tag: CommitTag) -> Iterator[None]:
        """Pass over a fault of a commit that is there none the less: the answer to it was lost, or what came after it
        has failed.

        A store that answers a write by 500 may have done it, and refuses its repetition as another writer's.
        """
        try:
            yield
        except (Conflict, StorageError, EngineError) as error:
            with suppress(StorageError, TableNotFound):
                if self._reader.find(tag) is not None:
                    log.info("commit.answer_lost", extra={"table": self._uri, "seq": tag.seq, "error": str(error)})
                    return
            raise

    def _confirm_commit(self, tag: CommitTag) -> Position:
        """Return the position after our commit; raises Conflict if another writer's carries the seq."""
        version = self._reader.confirm(tag)
        self._failpoints.reach("commit.after")
        self._checkpoints.note_commit(version)
        return Position(
            seq=tag.seq,
            watermark=tag.watermark,
            job_id=tag.job_id,
            source_id=tag.source_id,
            base_version=version,
            dead=tag.dead,
            column_ids=tag.column_ids,
            sources=tag.sources,
            as_of_s=tag.as_of_s,
            totals=tag.totals,
        )
