"""The table with more of a view than its rows: the input of an operator that is recomputed as a whole, or its groups.

It lies beside the target. It says of itself of which versions of the view's tables it is, and of which instant, and is
of use only where those are the ones that the target is at: after a crash between its commit and the target's, or where
another writer came between, it is written again. So it is never what the view's rows are believed to be, and no seq
depends on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.stored_groups import read_groups
from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.consumers.view.bag_commit import FEW_ROWS_MAX, commit_changes, merge_few, merge_groups
from iscp.core.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.consumer import ConsumeContext, ConsumerEnvironment
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Sink
from iscp.views.changes.group_sums import StoredSums
from iscp.views.changes.signed_rows import ChangedRows
from iscp.views.refresh.refresh_parts import Part, measured_as

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class StoredInput:
    """The stored input of one view, at `target` with a suffix. Its columns are `c0`, `c1`, …"""

    def __init__(self, target: str, environment: ConsumerEnvironment) -> None:
        self._uri = target + VIEW_STATE_SUFFIX
        self._sink: Sink = environment.sink(self._uri)

    def is_at(self, context: ConsumeContext) -> bool:
        """Return whether the view's rows, at their position, were made of it."""
        return _goes_with(self._position(context), context.position)

    def go_on_from(self, context: ConsumeContext) -> None:
        """Make it the job's, if the view's rows, which another registration has made, were made of it.

        Otherwise it stays what it is, and is written again when it is needed.
        """
        there = self._position(context)
        if _goes_with(there, context.position):
            self._sink.renew(self._tag(context, there, context.position))

    def rows(self, context: ConsumeContext) -> DataFrame:
        return self.rows_if_few(context)[0]

    def rows_if_few(self, context: ConsumeContext) -> tuple[DataFrame, bool]:
        """Return all rows, and whether they are few: then they are read here."""
        few = self.few_rows(context)
        if not few:  # of no rows at all Spark's optimizer would make another plan
            return self._sink.rows(context.session), few is not None
        return frame_of_arrow(context.session, few), True

    def sums(self, context: ConsumeContext) -> StoredSums:
        return StoredSums(partial(self.rows, context), partial(self.groups, context))

    def few_rows(self, context: ConsumeContext) -> pa.Table | None:
        """Return all rows if they are few, and can be read here."""
        return self._sink.few_rows(self._position(context).base_version, FEW_ROWS_MAX)

    def is_at_hand(self, context: ConsumeContext, schema_json: str) -> bool:
        """Return whether it has these columns, and the view's rows, at their position, were made of it."""
        return self.is_at(context) and self._sink.schema_matches(schema_json)

    @measured_as(Part.STATE)
    def write(self, context: ConsumeContext, rows: DataFrame, view: CommitTag | Position) -> None:
        """Write all of it, as of the state that the view's rows have, or will have."""
        there, schema = self._position(context), rows.schema.json()
        if there.base_version < 0 or there.job_id != context.row.job_id:
            if there.base_version >= 0 and not there.seq:
                raise PermanentError(
                    f"{self._uri}, where what the view is made of would be kept, is a table of somebody else",
                    remedy="Move it away",
                    code=ErrorCode.TARGET_UNUSABLE,
                )
            context.guard.check()
            there = self._sink.claim(schema, self._tag(context, there, None), marks_rows=True)
        tag = self._tag(context, there, view)
        if self._sink.schema_matches(schema):
            self._sink.publish([self._sink.stage(Rows(lambda: rows), tag)], tag, context.guard)
        else:
            self._sink.replace(rows, tag, context.guard)

    @measured_as(Part.STATE)
    def follow(self, context: ConsumeContext, changes: ChangedRows | None, view: CommitTag) -> None:
        """Commit its changes as `commit_changes` does; without changes only the versions are others."""
        tag = self._tag(context, self._position(context), view)
        if changes is not None:
            commit_changes(context, self._sink, changes, tag)
        elif self._sink.renew(tag) is None:
            self.write(context, self.rows(context), view)

    def groups(self, context: ConsumeContext, keys: pa.Table) -> pa.Table:
        """Return the rows with one of these keys, and perhaps others."""
        version = self._position(context).base_version
        found = self._sink.rows_with(keys, version)
        return read_groups(self._uri, version, keys) if found is None else found

    @measured_as(Part.STATE)
    def merge_groups(self, context: ConsumeContext, changes: ChangedRows, key: Sequence[str], view: CommitTag) -> None:
        """Merge changed groups as `merge_groups` does for tables."""
        merge_groups(context, self._sink, changes, key, self._tag(context, self._position(context), view))

    @measured_as(Part.STATE)
    def merge(self, context: ConsumeContext, rows: pa.Table, key: Sequence[str], view: CommitTag) -> None:
        """Merge few rows with OP."""
        merge_few(context, self._sink, rows, key, self._tag(context, self._position(context), view))

    def tidy(self) -> None:
        """Tidy the table as Consumer does."""
        self._sink.tidy()

    def _position(self, context: ConsumeContext) -> Position:
        return self._sink.position(context.row._replace(seq=0, watermark=Watermark()))

    def _tag(self, context: ConsumeContext, there: Position, view: CommitTag | Position | None) -> CommitTag:
        return CommitTag(
            seq=there.seq + 1,
            job_id=context.row.job_id,
            source_id=context.source_id,
            from_version=NOTHING_APPLIED,
            watermark=Watermark(),
            epoch=context.epoch,
            base_version=there.base_version,
            attempt=uuid.uuid4().hex[:12],
            kind="view_state",
            sources=view.sources if view else {},
            as_of_s=view.as_of_s if view else 0.0,
        )


def _goes_with(there: Position, view: Position) -> bool:
    same = (there.job_id, there.sources, there.as_of_s) == (view.job_id, view.sources, view.as_of_s)
    return bool(there.sources) and same and not there.void
