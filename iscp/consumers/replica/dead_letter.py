"""Stores the rows of a source that share a key in a table beside the target, which has all others.

The table is a state, not a log: what shares a key as of the target's watermark. The dead letters are committed first,
and the target's commit names the seq at which they then stand. If the two do not agree (a crash between the commits,
another writer, a table that was removed), the target has diverged: a difference writes both again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from iscp.adapters.delta.rows.row_difference import having_keys
from iscp.adapters.delta.spark.arrow_frame import columns_of
from iscp.consumers.shared_keys import matches
from iscp.core.job.job_row import JobRow
from iscp.core.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import NO_DEAD_LETTERS, DeadLetters, Position, Watermark
from iscp.ports.consumer import ConsumeContext, ConsumerEnvironment
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Sink
from iscp.ports.source import ChangesUnavailableError


def dead_letter_uri(target: str) -> str:
    return target + DEAD_LETTER_SUFFIX


class DeadLetterBox:
    """The dead letters of one job, in a table of their own with a seq of its own."""

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
