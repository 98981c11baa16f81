"""Maintains one replica: commits what an iteration hands it to the target, and dead letters beside it; and compares a
replica with its source.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from iscp.consumers.source_rows import (
    commit_tag,
    differing,
    find_shared_keys,
    frame_of_keys,
    matches,
    refuse_shared,
    rows_passing,
    split_by_key,
    takeover_tag,
)
from iscp.consumers.validation import CONSUMER_PATH, unwritable_name
from iscp.delta.rows.net_changes import changes_of_keys, differing_rows, having_keys, inserts_of
from iscp.model.build.build_task import BuildId
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Comparison
from iscp.model.rows.key_ranges import ranges_for
from iscp.model.spec.spec import ConsumerSpec, JobSpec, OnDuplicate, OnSchemaChange
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX, OP, quoted
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.watermark import (
    NO_DEAD_LETTERS,
    NOTHING_APPLIED,
    DeadLetters,
    Position,
    Watermark,
    other_columns,
)
from iscp.ports.consumer import AdoptingCheck, ConsumeContext, Consumed, Consumer, ConsumerEnvironment, Retriever
from iscp.ports.engine import leave_to_spark
from iscp.ports.sink import CommitTag, Compared, Manifest, Sink, StagedRanges
from iscp.ports.source import Changes, ChangeSource, ChangesUnavailableError, KeysSharedError, Rows
from iscp.spark.spark_errors import spark_faults
from iscp.spark.spark_frames import cached, columns_of, release, rows_of_table, spark_schema
from iscp.system.late_imports import F, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


# --- dead letters -----------------------------------------------------------------------------------------------------


def dead_letter_uri(target: str) -> str:
    return target + DEAD_LETTER_SUFFIX


class DeadLetterBox:
    """The dead letters of one job, in a table of their own beside the target, with a seq of its own.

    Dead letters are the rows of a source that share a key; the target has all others. The table is a state, not a log:
    what shares a key as of the target's watermark. The dead letters are committed first, and the target's commit names
    the seq at which they then stand. If the two do not agree (a crash between the commits, another writer, a table that
    was removed), the target has diverged: a difference writes both again.
    """

    def __init__(self, target: str, key: Sequence[str], environment: ConsumerEnvironment) -> None:
        self._uri = dead_letter_uri(target)
        self._key = key
        self._tables = environment.source
        self._sink: Sink = environment.sink(self._uri)

    def check_position(self, row: JobRow, position: Position) -> Position:
        """Return the target's `position`.

        The position is void if the dead letters are not those that its rows go with.
        """
        there = self._position(row, position.dead)
        # That of a target whose own commit was cleaned away nobody knows; mostly there is no such table.
        agrees = there.seq == position.dead.seq or (position.dead.seq < 0 and there.seq == 0)
        if position.void or (agrees and not there.void):
            return position
        return replace(position, void=f"the dead letters are at {there.seq}, not at {position.dead.seq}")

    def holds_keys_of(self, context: ConsumeContext, changes: Rows) -> bool:
        """Return whether one of the keys of `changes` is one of those that rows share."""
        if not context.position.dead.rows:
            return False
        stored = self._stored(context)
        if stored.table is not None and changes.table is not None:
            return bool(having_keys(changes.table, stored.table, self._key).any())
        shared = stored.frame.alias("k")
        return not changes.frame.alias("c").join(shared, matches("c", "k", self._key), "left_semi").isEmpty()

    def replaced(self, context: ConsumeContext, keys: Rows, letters: Rows | None) -> Rows | None:
        """Return all dead letters once `letters` are those of `keys`; None: there are none.

        Raises ChangesUnavailableError if those that are there have other columns.
        """
        if not context.position.dead.rows:
            return letters
        stored = self._stored(context)
        kept = stored.transformed(
            lambda frame: frame.alias("s").join(keys.frame.alias("k"), matches("s", "k", self._key), "left_anti"),
            lambda table: (
                None if keys.table is None else table.filter(pa.array(~having_keys(table, keys.table, self._key)))
            ),
        )
        if letters is None:
            return kept
        names, types = ({each.name: each.dataType for each in columns_of(rows).fields} for rows in (letters, kept))
        if names != types:
            raise ChangesUnavailableError("the dead letters have other columns than the source's rows")

        def joined() -> pa.Table | None:
            if kept.table is None or letters.table is None:
                return None
            return pa.concat_tables([letters.table, kept.table.select([*names]).cast(letters.table.schema)])

        return Rows(lambda: letters.frame.unionByName(kept.frame), joined)

    def _stored(self, context: ConsumeContext) -> Rows:
        def read_few() -> pa.Table | None:
            version = self._position(context.row, context.position.dead).base_version
            few = self._tables.small_snapshot(self._uri, version)
            return None if few is None else few.rows

        return Rows(lambda: self._sink.rows(context.session), read_few)

    def keep(self, context: ConsumeContext, letters: Rows | None, rows: int, to: Watermark) -> DeadLetters:
        """Make `letters` all that the table has (None: there are none), and return its seq and how many rows these are.

        A table that need not be there is not made.
        """
        known = context.position.dead
        there = self._position(context.row, known)
        if there.seq == 0 and there.base_version >= 0:
            raise PermanentError(
                f"{self._uri}, where rows that share a key would be kept, is a table of somebody else",
                remedy="Move it away, or set on_duplicate to stop",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        certain = there.seq == known.seq and not there.void
        if letters is None and there.base_version < 0:
            return NO_DEAD_LETTERS
        if letters is None and certain and not known.rows:
            return DeadLetters(there.seq, 0)
        seq = max(there.seq, known.seq) + 1
        if there.base_version < 0:
            # Made by a step that fails where a table came to be meanwhile; the overwrite would not.
            context.guard.check()
            assert letters is not None  # else it need not be made
            there = self._sink.claim(columns_of(letters).json(), self._tag(context, seq, -1, to), first=True)
            seq += 1
        self._write(context, letters, self._tag(context, seq, there.base_version, to))
        return DeadLetters(seq, rows)

    def _write(self, context: ConsumeContext, letters: Rows | None, tag: CommitTag) -> None:
        if letters is None:
            self._sink.publish([], tag, context.guard)
        elif letters.table is not None and self._sink.schema_matches(columns_of(letters).json()):
            self._sink.publish([self._sink.stage(letters, tag)], tag, context.guard)
        else:
            self._sink.replace(letters.frame, tag, context.guard)

    def _position(self, row: JobRow, known: DeadLetters) -> Position:
        # Its commits may have been cleaned away too: then the one that the target knows of counts.
        return self._sink.position(row._replace(seq=max(known.seq, 0)))

    def _tag(self, context: ConsumeContext, seq: int, base_version: int, to: Watermark) -> CommitTag:
        return CommitTag(
            seq=seq,
            job_id=context.row.job_id,
            source_id=context.source_id,
            from_version=-1,
            watermark=to,
            epoch=context.epoch,
            base_version=base_version,
            attempt=uuid.uuid4().hex[:12],
            kind="dead_letter",
        )


# --- the consumer -----------------------------------------------------------------------------------------------------

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


# --- the comparison and the repair ------------------------------------------------------------------------------------


class Filtering(Protocol):
    """Chooses those of the source's rows that the target should have."""

    def wanted(self, rows: Rows) -> Rows: ...


class ReplicaCheck(AdoptingCheck):
    """Compares one replica with its source's rows, repairs what differs, and takes over a table that has them already.

    `tables` are read as sources are.
    """

    def __init__(self, spec: ConsumerSpec, sink: Sink, filtering: Filtering, tables: ChangeSource) -> None:
        self._spec = spec
        self._sink = sink
        self._filtering = filtering
        self._tables = tables

    def compare_small(
        self, session: SparkSession, position: Position, source: DataFrame, schema: pa.Schema
    ) -> Comparison | None:
        key = self._spec.key
        if not key or position.dead.rows:
            return None
        try:
            with spark_faults("read the source's rows"):
                rows = source.toArrow().select(schema.names).cast(schema)
        except (pa.ArrowException, KeyError):
            return None
        wanted = self._filtering.wanted(Rows(lambda: source, lambda: rows)).table
        if wanted is None or not self._sink.schema_matches(spark_schema(wanted.schema).json()):
            return None
        try:
            target = self._tables.small_snapshot(self._spec.target, position.base_version)
        except ChangesUnavailableError:
            return None
        changes = None if target is None else differing_rows(wanted, target.rows, key)
        if target is None or changes is None or len(changes):
            return None
        return Comparison(len(wanted), len(target.rows), ranges=ranges_for(len(target.rows)).number)

    @contextmanager
    def compare(self, context: ConsumeContext, source: DataFrame) -> Iterator[Compared]:
        wanted = self._select_wanted(context, source)
        fits = self._sink.schema_matches if self._spec.key else self._sink.takes
        if not fits(wanted.schema.json()):
            raise PermanentError(
                f"the target's columns are not {', '.join(wanted.columns)}, or have other types",
                remedy="`iscp-admin notify` has a target of iscp brought to the source's columns",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        with self._sink.compare(wanted, self._spec.key, context.position.base_version) as compared:
            yield compared

    def _select_wanted(self, context: ConsumeContext, source: DataFrame) -> DataFrame:
        wanted, key = self._filtering.wanted(Rows(lambda: source)).frame, self._spec.key
        if not context.position.dead.rows or (shared := find_shared_keys(wanted, key)) is None:
            return wanted
        shared.release()
        return shared.split(wanted, key)[0]

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        said, frame = compared.comparison, compared.repair
        if not self._spec.key and said.extra:
            raise PermanentError(
                f"{said.extra} rows are too many, and without a key none of them can be removed alone",
                about="repair",
                remedy="Have the target rebuilt with `iscp-admin job resync`",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        tag = commit_tag(context, "repair", watermark.version, watermark)
        if frame is None:
            # Others have written, and all is equal again: the commit says so.
            return Consumed(self._sink.claim("", tag), 0, 0)
        rows = said.missing + said.extra + said.different
        return Consumed(self._sink.repair(context.session, frame, self._spec.key, tag, context.guard), rows, 0)

    def adopt(self, context: ConsumeContext, watermark: Watermark) -> Position:
        context.guard.check()
        return self._sink.claim("", commit_tag(context, "adopt", watermark.version, watermark))
