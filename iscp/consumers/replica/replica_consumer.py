"""Maintains one replica: commits what an iteration hands it to the target, and dead letters beside it."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.net_changes import inserts_of
from iscp.adapters.delta.rows.row_difference import changes_of_keys, differing_rows
from iscp.adapters.delta.spark.arrow_frame import columns_of, rows_of_table
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.adapters.system.late_imports import F, T
from iscp.consumers.commit_tag import commit_tag, takeover_tag
from iscp.consumers.replica.dead_letter import DeadLetterBox
from iscp.consumers.shared_keys import differing, find_shared_keys, frame_of_keys
from iscp.consumers.source_rows import refuse_shared, rows_passing, split_by_key
from iscp.consumers.validation import CONSUMER_PATH, unwritable_name
from iscp.core.build.build_request import BuildId
from iscp.core.job.iteration import DataType
from iscp.core.job.job_row import JobRow
from iscp.core.spec.spec import JobSpec, OnDuplicate, OnSchemaChange
from iscp.core.sql.sql_names import OP, quoted
from iscp.core.values.column_identity import other_columns
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import NO_DEAD_LETTERS, NOTHING_APPLIED, DeadLetters, Position, Watermark
from iscp.ports.consumer import ConsumeContext, Consumed, Consumer, Retriever
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Manifest, Sink, StagedRanges
from iscp.ports.source import Changes, ChangeSource, ChangesUnavailableError, KeysSharedError
from iscp.ports.work_timer import leave_to_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# Spark cannot decide whether two values of these types, also within others, are equal.
_UNCOMPARED = re.compile(r':"(map|variant)"')


class ReplicaConsumer(Consumer):
    """Maintains one replica (also port RangeBuilt)."""

    def __init__(self, spec: JobSpec, sink: Sink, dead: DeadLetterBox | None, tables: ChangeSource) -> None:
        """Make a consumer; `tables` reads the target as it reads sources: what is in it need not be ours."""
        self._policies = spec
        self._spec = spec.consumer
        self._sink = sink
        self._tables = tables
        self._dead = dead

    def position(self, row: JobRow) -> Position:
        position = self._sink.position(row)
        if self._dead is None:
            return position
        if position.dead.rows and self._policies.on_duplicate is OnDuplicate.STOP and not position.void:
            return replace(position, void="rows were left out, which is not allowed any more")
        return self._dead.check_position(row, position)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        schema = self._selected(source.schema)
        context.guard.check()
        tag = commit_tag(context, "claim", NOTHING_APPLIED, Watermark())
        return self._sink.claim(schema.json(), tag, first=context.row.watermark.version < 0)

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        if not self._sink.overtaken:
            return context.position
        context.guard.check()
        tag = commit_tag(context, "renewal", watermark.version, watermark)
        return self._sink.renew(tag) or context.position

    def settled(self, position: Position) -> bool:
        return not (self._sink.overtaken or position.void or position.dead.rows)

    def go_on_from(self, context: ConsumeContext) -> Position | None:
        context.guard.check()
        return self._sink.renew(takeover_tag(context))

    def tidy(self) -> None:
        self._sink.tidy()

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        tag = commit_tag(context, retriever.data_type.value, retriever.from_version, retriever.to)
        if retriever.data_type is DataType.TAIL:
            return self._tail(context, retriever, tag)
        rows = self._wanted_whole(context, retriever)
        with split_by_key(context.session, rows, self._policies) as split:
            changes = None
            if retriever.data_type is DataType.DIFFERENCE:
                changes = self._find_small_difference(context, split.own, tag)
                if changes is None:
                    self._refuse_changed_schema(context, rows.frame)
            tag = replace(tag, dead=self._keep_dead(context, split.letters, split.shared, retriever.to))
            if changes is not None:
                return self._merge(context, rows_of_table(context.session, changes), tag)
            return self._write_whole(context, retriever.data_type, split.own, tag)

    @property
    def range_built(self) -> ReplicaConsumer:
        return self

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        wanted = self.wanted(Rows(lambda: source)).frame
        if unwritable_name(wanted.columns) or self._keeps_all(context, DataType.SNAPSHOT):
            return False
        return self._sink.schema_matches(wanted.schema.json())

    def ranges(self, build: BuildId) -> StagedRanges:
        return self._sink.ranges(build)

    def wanted(self, rows: Rows) -> Rows:
        return self._select(rows_passing(rows, self._spec.where))

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        if not self._sink.have_own_keys(context.session, manifests, self._spec.key):
            return None
        tag = commit_tag(context, retriever.data_type.value, retriever.from_version, retriever.to)
        tag = replace(tag, dead=self._keep_dead(context, None, 0, retriever.to))
        rows, size = (sum(getattr(each, name) for each in manifests) for name in ("rows", "bytes"))
        return Consumed(self._sink.publish(manifests, tag, context.guard), rows, size)

    def _wanted_whole(self, context: ConsumeContext, retriever: Retriever) -> Rows:
        """Return all rows that the target is to have.

        They are there as a table only if the target has their columns, and loses the rows that it has besides.
        """
        rows = self.wanted(retriever.snapshot_rows)
        table = None if self._keeps_all(context, retriever.data_type) else rows.table
        if table is not None:
            self._refuse_unwritable_name(table.column_names)
            if self._sink.schema_matches(columns_of(rows).json()):
                return rows
            leave_to_spark("the target has other columns than the rows")
        self._refuse_unwritable_name(rows.frame.columns)
        return rows.for_spark()

    def _find_small_difference(self, context: ConsumeContext, rows: Rows, tag: CommitTag) -> pa.Table | None:
        """Return the changes that make the target have these rows, or None if Spark has to find them.

        Spark finds out whether a column is another one.
        """
        stops = self._policies.on_schema_change is OnSchemaChange.STOP and not context.position.void
        if rows.table is None or stops:
            return None
        try:
            there = self._tables.small_snapshot(self._spec.target, tag.base_version)
        except ChangesUnavailableError:
            return None
        return None if there is None else differing_rows(rows.table, there.rows, self._spec.key)

    def _merge(self, context: ConsumeContext, changes: Rows, tag: CommitTag) -> Consumed:
        """Commit changes with OP."""
        if changes.table is not None:
            position = self._sink.merge(context.session, changes, self._spec.key, tag, context.guard)
            return Consumed(position, len(changes.table), 0)
        frame = cached(changes.frame)
        try:
            rows = frame.count()
            position = self._sink.merge(context.session, Rows(lambda: frame), self._spec.key, tag, context.guard)
        finally:
            release(frame)
        return Consumed(position, rows, 0)

    def _keeps_all(self, context: ConsumeContext, kind: DataType) -> bool:
        """Return whether the target retains all rows that it has.

        A target without a key that was built once loses no row any more, whatever became of its log. A resync is
        another registration.
        """
        return not self._spec.key and (kind is DataType.DIFFERENCE or context.row.watermark.version >= 0)

    def _write_whole(self, context: ConsumeContext, kind: DataType, rows: Rows, tag: CommitTag) -> Consumed:
        if self._keeps_all(context, kind):
            position, lacking = self._sink.append_lacking(rows.frame, tag, context.guard)
            return Consumed(position, lacking, 0)
        schema = columns_of(rows).json()
        if not self._sink.schema_matches(schema):
            return Consumed(self._sink.replace(rows.frame, tag, context.guard), 0, 0)
        if kind is DataType.DIFFERENCE and not _UNCOMPARED.search(schema):
            return self._difference(context, rows.frame, tag)
        manifest = self._sink.stage(rows, tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _tail(self, context: ConsumeContext, retriever: Retriever, tag: CommitTag) -> Consumed:
        try:
            return self._apply_net(context, retriever, tag)
        except KeysSharedError as shared:
            assert self._dead is not None  # rows without a key share none
            log.info("keys.shared", extra={"target": self._spec.target, "reason": str(shared)})
            return self._apply_keys(context, retriever, tag, self._dead)

    def _apply_keys(
        self, context: ConsumeContext, retriever: Retriever, tag: CommitTag, dead: DeadLetterBox
    ) -> Consumed:
        """Make the target, and the dead letters, have what the source has of the keys that have changed."""
        keyed = retriever.rows_of_changed_keys()
        rows = self.wanted(keyed.rows)
        self._refuse_unlike(rows)
        with split_by_key(context.session, rows, self._policies) as split:
            letters = dead.replaced(context, keyed.keys, split.letters)
            count = 0 if letters is None else letters.frame.count() if letters.table is None else len(letters.table)
            refuse_shared(count, "those that are dead-lettered", self._policies)
            tag = replace(tag, dead=self._keep_dead(context, letters if count else None, count, tag.watermark))
            key, own = self._spec.key, split.own
            changes = Rows(
                lambda: frame_of_keys(keyed.keys.frame, own.frame, key),
                lambda: (
                    None if None in (keyed.keys.table, own.table) else changes_of_keys(keyed.keys.table, own.table, key)
                ),
            )
            return self._merge(context, changes, tag)

    def _apply_net(self, context: ConsumeContext, retriever: Retriever, tag: CommitTag) -> Consumed:
        changes = retriever.changes(self._spec.key, self._spec.where)
        if self._dead and self._dead.holds_keys_of(context, changes.net):
            # Which of the rows is left, if any, only the source knows.
            raise KeysSharedError("a key has changed that rows shared")
        rows = self._select(changes.net, OP)
        self._refuse_unlike(rows)
        if self._appendable(changes, tag):
            position = self._sink.append(inserts_of(rows), tag, context.guard)
        else:
            position = self._sink.merge(context.session, rows, self._spec.key, tag, context.guard)
        return Consumed(position, changes.rows, 0)

    def _refuse_unlike(self, rows: Rows) -> None:
        """Refuse changes, with OP, whose columns the target does not have."""
        schema = T.StructType([field for field in columns_of(rows).fields if field.name != OP])
        fits = self._sink.schema_matches if self._spec.key else self._sink.takes
        if not fits(schema.json()):
            raise ChangesUnavailableError("the source's columns are not the target's any more")

    def _appendable(self, changes: Changes, tag: CommitTag) -> bool:
        """Return whether rows can be added without reading those that are there.

        This is so if no changed key can be among them.
        """
        if changes.updates or changes.deletes:
            return False
        return not self._spec.key or self._sink.lacks(changes.bounds, tag.base_version)

    def _difference(self, context: ConsumeContext, wanted: DataFrame, tag: CommitTag) -> Consumed:
        """Commit what the target lacks, has too much, or has otherwise than the source, as ordinary changes."""
        key = self._spec.key
        target = self._target_rows(context, wanted)
        if (doubled := find_shared_keys(target, key)) is not None:
            # A merge cannot take away one of two rows with one key.
            doubled.release()
            return Consumed(self._sink.replace(wanted, tag, context.guard), 0, 0)
        return self._merge(context, Rows(lambda: differing(wanted, target, key)), tag)

    def _target_rows(self, context: ConsumeContext, wanted: DataFrame) -> DataFrame:
        return self._sink.rows(context.session).select(*[F.col(quoted(name)) for name in wanted.columns])

    def _select(self, rows: Rows, *more: str) -> Rows:
        """Return the job's columns, and those of `more`."""
        if not self._spec.columns:
            return rows
        wanted = [*self._spec.columns, *more]

        def of_table(table: pa.Table) -> pa.Table:
            names = {name.lower(): name for name in table.schema.names}
            return table.select([names[name.lower()] for name in wanted]).rename_columns(wanted)

        return rows.transformed(lambda frame: frame.select(*[F.col(quoted(name)) for name in wanted]), of_table)

    def _selected(self, schema: T.StructType) -> T.StructType:
        """Return the job's columns of these, as `_select` does."""
        fields = {field.name.lower(): field for field in schema.fields}
        wanted = [(name, fields[name.lower()]) for name in self._spec.columns]
        named = [T.StructField(name, field.dataType, field.nullable, field.metadata) for name, field in wanted]
        return T.StructType(named) if named else schema

    def _keep_dead(self, context: ConsumeContext, letters: Rows | None, rows: int, to: Watermark) -> DeadLetters:
        return self._dead.keep(context, letters, rows, to) if self._dead else NO_DEAD_LETTERS

    def _refuse_unwritable_name(self, columns: Sequence[str]) -> None:
        if unwritable := unwritable_name(columns):
            raise PermanentError(
                f"the source has a column {unwritable!r} now, whose name a target cannot have",
                about=f"{CONSUMER_PATH}.columns",
                remedy="Rename it; or register the job again with the columns to keep",
                code=ErrorCode.SCHEMA_CHANGED,
            )

    def _refuse_changed_schema(self, context: ConsumeContext, wanted: DataFrame) -> None:
        """Raise PermanentError if a column is gone, or has another type, and `on_schema_change` is stop.

        New columns are always followed.
        """
        # If others wrote to the target, its columns may be those that have changed.
        if self._policies.on_schema_change is not OnSchemaChange.STOP or context.position.void:
            return
        now = {field.name.lower(): field.dataType.simpleString() for field in wanted.schema.fields}
        target_types = {
            field.name: field.dataType.simpleString() for field in self._sink.rows(context.session).schema.fields
        }
        before = context.position.column_ids
        others = () if before is None else other_columns(before, context.column_ids, target_types)
        changed = [
            f"{name} {kind}" for name, kind in target_types.items() if now.get(name.lower()) != kind or name in others
        ]
        if changed:
            raise PermanentError(
                f"the source has no column {', '.join(changed)} any more"
                + (", but another one of that name" if others else ""),
                about="spec.iteration.on_schema_change",
                remedy="Bring it back; or rebuild the target with `iscp-admin job resync`; or set it to evolve",
                code=ErrorCode.SCHEMA_CHANGED,
            )
