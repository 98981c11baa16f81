"""Keeps one replica: commits what an iteration hands it to the target, and dead letters beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from iscp.adapters.delta.rows.plain_condition import is_plain, passing_rows
from iscp.adapters.delta.rows.row_difference import differing_rows
from iscp.adapters.delta.spark.kept_frame import kept, release
from iscp.consumers.commit_tag import commit_tag
from iscp.consumers.replica.dead_letter import ROWS_MAX, DeadLetterBox, Shared, find_shared_keys
from iscp.consumers.replica.shared_keys import differing
from iscp.consumers.validation import CONSUMER_PATH, unwritable_name
from iscp.core.build.build_request import BuildId
from iscp.core.job.iteration import DataType
from iscp.core.job.job_row import JobRow
from iscp.core.rows.netting import Op
from iscp.core.spec.spec import JobSpec, OnDuplicate, OnSchemaChange
from iscp.core.sql.sql_names import OP, quoted
from iscp.core.values.column_identity import other_columns
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import NO_DEAD_LETTERS, NOTHING_APPLIED, DeadLetters, Position, Watermark
from iscp.ports.consumer import ConsumeContext, Consumed, Retriever
from iscp.ports.sink import CommitTag, Manifest, Sink, StagedRanges
from iscp.ports.source import Changes, ChangeSource, ChangesUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Of these types, also within others, Spark cannot decide whether two values are equal.
_UNCOMPARED = re.compile(r':"(map|variant)"')


class ReplicaConsumer:
    """Keeps one replica (ports RenewingConsumer, TidyingConsumer, RangeBuiltConsumer)."""

    def __init__(self, spec: JobSpec, sink: Sink, dead: DeadLetterBox | None, tables: ChangeSource) -> None:
        """`tables` reads the target as it reads sources: what is in it need not be ours."""
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
        kept = self._kept(source)
        context.guard.check()
        tag = commit_tag(context, "claim", NOTHING_APPLIED, Watermark())
        return self._sink.claim(kept.schema.json(), tag, first=context.row.watermark.version < 0)

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        if not self._sink.overtaken:
            return context.position
        context.guard.check()
        tag = commit_tag(context, "renewal", watermark.version, watermark)
        return self._sink.renew(tag) or context.position

    def tidy(self) -> None:
        self._sink.tidy()

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        tag = commit_tag(context, retriever.data_type.value, retriever.from_version, retriever.to)
        if retriever.data_type is DataType.TAIL:
            return self._tail(context, retriever, tag)
        if (consumed := self._consume_directly(context, retriever, tag)) is not None:
            return consumed
        wanted = self.kept_of(retriever.snapshot)
        self._refuse_unwritable_name(wanted.columns)
        if retriever.data_type is DataType.DIFFERENCE:
            self._refuse_changed_schema(context, wanted)
        shared = self._find_shared(wanted)
        try:
            letters, rows = None, 0
            if shared is not None:
                (wanted, letters), rows = shared.split(wanted, self._spec.key), shared.rows
            tag = replace(tag, dead=self._keep_dead(context, letters, rows, retriever.to))
            return self._write_whole(context, retriever.data_type, wanted, tag)
        finally:
            if shared is not None:
                shared.release()

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        wanted = self.kept_of(source)
        if unwritable_name(wanted.columns) or self._keeps_all(context, DataType.SNAPSHOT):
            return False
        return self._sink.schema_matches(wanted.schema.json())

    def ranges(self, build: BuildId) -> StagedRanges:
        return self._sink.ranges(build)

    @property
    def takes_held(self) -> bool:
        return not self._spec.where or is_plain(self._spec.where)

    def kept_of_held(self, rows: pa.Table) -> pa.Table | None:
        passing = passing_rows(rows, self._spec.where) if self._spec.where else rows
        return None if passing is None else self._kept_rows(passing)

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        if not self._sink.have_own_keys(context.session, manifests, self._spec.key):
            return None
        tag = commit_tag(context, retriever.data_type.value, retriever.from_version, retriever.to)
        tag = replace(tag, dead=self._keep_dead(context, None, 0, retriever.to))
        rows, size = (sum(getattr(each, name) for each in manifests) for name in ("rows", "bytes"))
        return Consumed(self._sink.publish(manifests, tag, context.guard), rows, size)

    def _consume_directly(self, context: ConsumeContext, retriever: Retriever, tag: CommitTag) -> Consumed | None:
        """Few rows, without Spark; None where that cannot be."""
        snapshot = retriever.small_snapshot
        if snapshot is None or self._keeps_all(context, retriever.data_type):
            return None
        if (rows := self.kept_of_held(snapshot)) is None:
            return None
        self._refuse_unwritable_name(rows.column_names)
        if not self._sink.schema_matches(from_arrow_schema(rows.schema, prefer_timestamp_ntz=True).json()):
            return None
        if retriever.data_type is DataType.DIFFERENCE:
            return self._differ_directly(context, rows, tag)
        manifest = self._sink.stage_rows(rows, self._spec.key, tag)
        if manifest is None:
            return None
        tag = replace(tag, dead=self._keep_dead(context, None, 0, retriever.to))
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _differ_directly(self, context: ConsumeContext, rows: pa.Table, tag: CommitTag) -> Consumed | None:
        """As `_difference`. Whether a column is another one, and which rows were dead-lettered, Spark finds out."""
        stops = self._policies.on_schema_change is OnSchemaChange.STOP and not context.position.void
        if stops or context.position.dead.rows:
            return None
        try:
            held = self._tables.small_snapshot(context.session, self._spec.target, tag.base_version)
        except ChangesUnavailableError:
            return None
        changes = None if held is None else differing_rows(rows, held.rows, self._spec.key)
        if changes is None:
            return None
        tag = replace(tag, dead=self._keep_dead(context, None, 0, tag.watermark))
        position = self._sink.merge_rows(changes, self._spec.key, tag, context.guard)
        return None if position is None else Consumed(position, len(changes), 0)

    def _keeps_all(self, context: ConsumeContext, kind: DataType) -> bool:
        """Without a key a target that was built once loses no row any more, whatever became of its log.

        A resync is another registration.
        """
        return not self._spec.key and (kind is DataType.DIFFERENCE or context.row.watermark.version >= 0)

    def _write_whole(self, context: ConsumeContext, kind: DataType, wanted: DataFrame, tag: CommitTag) -> Consumed:
        if self._keeps_all(context, kind):
            position, rows = self._sink.append_lacking(wanted, tag, context.guard)
            return Consumed(position, rows, 0)
        schema = wanted.schema.json()
        if not self._sink.schema_matches(schema):
            return Consumed(self._sink.replace(wanted, tag, context.guard), 0, 0)
        if kind is DataType.DIFFERENCE and not _UNCOMPARED.search(schema):
            return self._difference(context, wanted, tag)
        manifest = self._sink.stage(wanted, tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _tail(self, context: ConsumeContext, retriever: Retriever, tag: CommitTag) -> Consumed:
        changes = retriever.changes(self._spec.key, self._spec.where)
        if (
            self._dead
            and context.position.dead.rows
            and self._dead.holds_keys_of(context, changes.frame, self._spec.key)
        ):
            # Which of the rows is left, if any, only the source knows.
            raise ChangesUnavailableError("a key has changed that rows shared")
        append = self._appendable(changes, tag)
        position = self._write_directly(context, changes, tag, append)
        if position is None:
            frame = self._kept(changes.frame, OP)
            self._refuse_unlike(frame.drop(OP).schema)
            if append:
                new = frame.where(F.col(OP) == Op.INSERT).drop(OP)
                position = self._sink.append(new, tag, context.guard, changes.reread)
            else:
                position = self._sink.merge(context.session, frame, self._spec.key, tag, context.guard, changes.reread)
        return Consumed(position, changes.rows, 0)

    def _write_directly(
        self, context: ConsumeContext, changes: Changes, tag: CommitTag, append: bool
    ) -> Position | None:
        """Few rows, without Spark; None where that cannot be."""
        if changes.table is None:
            return None
        rows = self._kept_rows(changes.table, OP)
        self._refuse_unlike(from_arrow_schema(rows.drop_columns([OP]).schema, prefer_timestamp_ntz=True))
        if append:
            return self._sink.append_rows(rows, tag, context.guard)
        return self._sink.merge_rows(rows, self._spec.key, tag, context.guard)

    def _refuse_unlike(self, schema: StructType) -> None:
        fits = self._sink.schema_matches if self._spec.key else self._sink.takes
        if not fits(schema.json()):
            raise ChangesUnavailableError("the source's columns are not the target's any more")

    def _appendable(self, changes: Changes, tag: CommitTag) -> bool:
        """Whether rows can be added without reading those that are there: no changed key can be among them."""
        if changes.updates or changes.deletes:
            return False
        return not self._spec.key or self._sink.lacks(changes.bounds, tag.base_version)

    def _difference(self, context: ConsumeContext, wanted: DataFrame, tag: CommitTag) -> Consumed:
        """What the target lacks, has too much, or has otherwise than the source, as ordinary changes."""
        key = self._spec.key
        held = self._read_held(context, wanted)
        if (doubled := find_shared_keys(held, key)) is not None:
            # A merge cannot take away one of two rows with one key.
            doubled.release()
            return Consumed(self._sink.replace(wanted, tag, context.guard), 0, 0)
        frame = kept(differing(wanted, held, key))
        try:
            rows = frame.count()
            position = self._sink.merge(context.session, frame, key, tag, context.guard)
        finally:
            release(frame)
        return Consumed(position, rows, 0)

    def _read_held(self, context: ConsumeContext, wanted: DataFrame) -> DataFrame:
        return self._sink.rows(context.session).select(*[F.col(quoted(name)) for name in wanted.columns])

    def _kept(self, frame: DataFrame, *more: str) -> DataFrame:
        """The job's columns, and those of `more`."""
        if not self._spec.columns:
            return frame
        return frame.select(*[F.col(quoted(name)) for name in (*self._spec.columns, *more)])

    def _kept_rows(self, rows: pa.Table, *besides: str) -> pa.Table:
        if not self._spec.columns:
            return rows
        names = {name.lower(): name for name in rows.schema.names}
        kept = [*self._spec.columns, *besides]
        return rows.select([names[name.lower()] for name in kept]).rename_columns(kept)

    def kept_of(self, frame: DataFrame) -> DataFrame:
        return self._kept(frame.where(self._spec.where) if self._spec.where else frame)

    def _find_shared(self, frame: DataFrame) -> Shared | None:
        """The keys that rows share, if they are to be dead-lettered; raises PermanentError where the job is to stop."""
        shared = find_shared_keys(frame, self._spec.key) if self._spec.key else None
        stops = self._policies.on_duplicate is OnDuplicate.STOP
        if shared is None or (not stops and shared.rows <= ROWS_MAX):
            return shared
        shared.release()
        raise PermanentError(
            f"{shared.rows} rows of the source share a key, as {shared.examples}"
            + ("" if stops else f"; at most {ROWS_MAX} are dead-lettered"),
            field=f"{CONSUMER_PATH}.key",
            remedy="Choose a key that is unique, or repair the source",
            code=ErrorCode.DUPLICATE_KEY,
        )

    def _keep_dead(self, context: ConsumeContext, letters: DataFrame | None, rows: int, to: Watermark) -> DeadLetters:
        return self._dead.keep(context, letters, rows, to) if self._dead else NO_DEAD_LETTERS

    def _refuse_unwritable_name(self, columns: Sequence[str]) -> None:
        if unwritable := unwritable_name(columns):
            raise PermanentError(
                f"the source has a column {unwritable!r} now, whose name a target cannot have",
                field=f"{CONSUMER_PATH}.columns",
                remedy="Rename it; or register the job again with the columns to keep",
                code=ErrorCode.SCHEMA_CHANGED,
            )

    def _refuse_changed_schema(self, context: ConsumeContext, wanted: DataFrame) -> None:
        """With `on_schema_change` stop: a column that is gone, or of another type; new ones are always followed."""
        # Where others wrote to the target it may be the target's columns that have changed.
        if self._policies.on_schema_change is not OnSchemaChange.STOP or context.position.void:
            return
        now = {field.name.lower(): field.dataType.simpleString() for field in wanted.schema.fields}
        held = {field.name: field.dataType.simpleString() for field in self._sink.rows(context.session).schema.fields}
        before = context.position.column_ids
        others = () if before is None else other_columns(before, context.column_ids, held)
        changed = [f"{name} {kind}" for name, kind in held.items() if now.get(name.lower()) != kind or name in others]
        if changed:
            raise PermanentError(
                f"the source has no column {', '.join(changed)} any more"
                + (", but another one of that name" if others else ""),
                field="spec.iteration.on_schema_change",
                remedy="Bring it back; or rebuild the target with `iscp-admin job resync`; or set it to evolve",
                code=ErrorCode.SCHEMA_CHANGED,
            )
