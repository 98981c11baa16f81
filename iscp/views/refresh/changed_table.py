"""A table that a view reads, in one refresh: its rows before and after, what changed, and rows that have some keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.rows.net_changes import weights_of
from iscp.adapters.delta.rows.value_codes import beyond, row_codes
from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.system.late_imports import T
from iscp.core.algebra.algebra import TableRows
from iscp.ports.source import ChangeSource, SourceRange
from iscp.views.changes.signed_rows import FoundRows, TableChange
from iscp.views.refresh.table_spans import WeightedRows, read_weighted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOUND_ROWS_MAX = 50_000
"""Rows of a table that are looked up by the values of changed rows; more are for Spark to find."""


@dataclass
class ChangedTable:
    """A table in a refresh. `to_version` is that of the rows afterwards; `columns` are those, of `schema`, that the
    result follows from.

    `opened` gives all rows at one of both versions. `stack` releases what is read.
    """

    session: SparkSession
    source: ChangeSource
    uri: str
    span: SourceRange
    to_version: int
    schema: T.StructType
    columns: Sequence[str]
    opened: Callable[[TableRows], DataFrame]
    stack: ExitStack
    _changes: WeightedRows | None = None
    _found: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    def as_change(self, size: int) -> TableChange:
        return TableChange(self.opened, self.changes, size, self.arrow, self.find)

    def changes(self) -> DataFrame | None:
        changes = self._read()
        return None if changes is None else changes.frame

    def arrow(self) -> pa.Table | None:
        changes = self._read()
        return None if changes is None else changes.arrow

    def _read(self) -> WeightedRows | None:
        if self._changes is None and self.span.changes_data:
            self._changes = read_weighted(self.stack, self.session, self.source, self.uri, self.span, self.columns)
        return self._changes

    def find(self, at: TableRows, keys: pa.Table) -> FoundRows | None:
        """Return the rows that have one of these keys before or after the changes, or None if they are not few."""
        rows = self._rows_before(keys) if at is TableRows.OLD else self._rows_now(keys)
        if rows is None:
            return None
        schema = T.StructType([self.schema[each] for each in self.columns])
        return FoundRows(frame_of_arrow(self.session, rows, schema), rows)

    def _rows_now(self, keys: pa.Table) -> pa.Table | None:
        for known, rows in self._found:
            if known.equals(keys):
                return rows
        rows = self._search(self.to_version, keys)
        if rows is not None:
            self._found.append((keys, rows))
        return rows

    def _rows_before(self, keys: pa.Table) -> pa.Table | None:
        """Return the rows before: those of now without what came, and with what went."""
        changed = self.arrow()
        if changed is not None and not any(map(_is_told_apart_by_more, changed.select(self.columns).schema.types)):
            now = self._rows_now(keys)
            rows = None if now is None else rows_before(now, changed, keys)
            if rows is not None:
                return rows
        return self._search(self.span.from_version, keys)

    def _search(self, version: int, keys: pa.Table) -> pa.Table | None:
        return self.source.rows_with(self.uri, version, keys, self.columns, FOUND_ROWS_MAX)


def _is_told_apart_by_more(kind: pa.DataType) -> bool:
    """Return whether something distinguishes values of the type that are equal."""
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def rows_before(rows: pa.Table, changed: pa.Table, keys: pa.Table) -> pa.Table | None:
    """Return the rows that have one of the keys before they were `changed`, or None if `rows` are not those
    afterwards.
    """
    names, weights = keys.schema.names, weights_of(changed)
    theirs, wanted = row_codes(changed.select(names), keys)
    mine = pa.array(pc.is_in(pa.array(theirs), value_set=pa.array(wanted)))
    changed, weights = changed.select(rows.schema.names).cast(rows.schema).filter(mine), weights.filter(mine)
    came = changed.filter(pc.greater(weights, 0))
    every = pa.concat_tables([rows, changed.filter(pc.less(weights, 0))])
    left = beyond(*row_codes(every, came))
    before = every.filter(pa.array(left))
    return before if len(before) == len(every) - len(came) else None
