"""The tables of a view in one refresh, read without Spark: what changed, rows of some keys, and small tables whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import weights_of
from iscp.adapters.duck.duck_engine import NotComputedError
from iscp.core.algebra.algebra import Rel, Table, TableRows
from iscp.core.algebra.lookup_plan import LookupStep
from iscp.core.sql.sql_names import WEIGHT
from iscp.ports.source import ChangeSource
from iscp.views.refresh.refresh_parts import Part, count_read, measured_as
from iscp.views.refresh.table_spans import CHANGED_ROWS_MAX, Spans, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOKED_UP_ROWS_MAX = 500_000
"""Rows of a table that are looked up for a refresh without Spark; a refresh that needs more is left to Spark."""


@dataclass(frozen=True, slots=True)
class ViewTables:
    """The tables by their names in the query. `columns` are those of each that the query reads, at least one.

    `stack` releases what is read.
    """

    session: SparkSession
    source: ChangeSource
    uris: Mapping[str, str]
    spans: Spans
    columns: Mapping[str, Sequence[str]]
    stack: ExitStack

    @property
    def changed(self) -> list[str]:
        """Return the names of the tables that have changed."""
        return [name for name, uri in self.uris.items() if self.spans.by_uri[uri].changes_data]

    def rows(self, leaf: Table, bytes_max: int) -> pa.Table:
        """Return the rows that a leaf stands for; all rows only of a table of so many bytes. Raises
        NotComputedError.
        """
        if leaf.at is TableRows.CHANGES:
            return self._changes(leaf.name)
        uri, columns = self.uris[leaf.name], self.columns[leaf.name]
        rows = self.source.all_rows(uri, self._version(leaf), columns, bytes_max)
        if rows is None:
            raise NotComputedError(f"all rows of {leaf.name} are read by Spark alone")
        return rows

    def look_up(self, step: LookupStep, keys: pa.Table) -> pa.Table:
        """Return the rows of a step, whose keys are computed. Raises NotComputedError."""
        source = step.source
        by = pa.table({own: keys[key] for own, key in step.pairs})
        uri, columns = self.uris[source.name], self.columns[source.name]
        rows = self.source.rows_with(uri, self._version(source), by, columns, LOOKED_UP_ROWS_MAX)
        if rows is None:
            raise NotComputedError(f"the rows of {source.name} are too many, or read by Spark alone")
        return rows

    def _version(self, leaf: Table) -> int:
        span = self.spans.by_uri[self.uris[leaf.name]]
        return span.from_version if leaf.at is TableRows.OLD else span.to.version

    @measured_as(Part.CHANGES)
    def _changes(self, name: str) -> pa.Table:
        """Return the changed rows with WEIGHT."""
        uri, columns = self.uris[name], [*self.columns[name]]
        read = reading(self.session, self.source, uri, self.spans.by_uri[uri], columns, 1)
        rows = self.stack.enter_context(read).table
        if rows is None or len(rows) > CHANGED_ROWS_MAX:
            raise NotComputedError(f"the changes of {name} are too many, or read by Spark alone")
        count_read(len(rows))
        return rows.select(columns).append_column(WEIGHT, weights_of(rows))


def columns_read(root: Rel, schemas: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns of each table that a query reads; `schemas` has those that there are, in their order."""
    needed: dict[str, set[str]] = {}
    for each in root.tables():
        needed.setdefault(each.name, set()).update(column.name for column in each.fields)
    return {
        name: [each for each in schemas[name] if each in few] or [*schemas[name][:1]] for name, few in needed.items()
    }
