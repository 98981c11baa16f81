"""What DuckDB makes of a case's changes, over tables in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.algebra.algebra import Table, TableRows
from iscp.algebra.duck_engine import READ_LIMITS, DuckEngine, NotComputedError, ReadLimits
from iscp.algebra.lookup_plan import LookupStep
from iscp.delta.rows.data_file import part_of
from iscp.delta.rows.row_search import row_codes
from iscp.model.sql.sql_names import path_of
from iscp.views.analysis.query_analysis import AnalyzedQuery
from iscp.views.changes.signed_rows import TableChange
from iscp.views.duck.duck_refresh import DuckRefresh
from iscp.views.refresh.view_memory import read_query
from tests.random_views.row_bags import Bag, countable

ENGINE = DuckEngine()


@dataclass(frozen=True)
class MemoryTables:
    """As ViewTables, of tables in memory."""

    moves: Mapping[str, TableChange]
    schemas: Mapping[str, pa.Schema]
    limits: ReadLimits = READ_LIMITS

    @property
    def changed(self) -> list[str]:
        return [name for name, each in self.moves.items() if each.arrow() is not None]

    def rows(self, leaf: Table, *, is_shared: bool) -> pa.Table:
        if leaf.at is TableRows.CHANGES:
            return _with_fields(self.moves[leaf.name].arrow(), leaf)
        return self._all(leaf)

    def look_up(self, step: LookupStep, keys: pa.Table) -> pa.Table:
        rows, by = self._all(step.source), {own: keys[key] for own, key in step.pairs}
        held_keys = rows.select([*by])
        sought, held = row_codes(pa.table(by).cast(held_keys.schema), held_keys)
        return rows.filter(pa.array(np.isin(held, sought)))

    def _all(self, leaf: Table) -> pa.Table:
        at = TableRows.OLD if leaf.at is TableRows.OLD else TableRows.NEW
        return _with_fields(self.moves[leaf.name].rows(at).toArrow().cast(self.schemas[leaf.name]), leaf)


def _with_fields(rows: pa.Table, leaf: Table) -> pa.Table:
    """Fields of structs that the leaf has as columns stand behind those of the table."""
    for each in leaf.fields:
        if each.name not in rows.schema.names:
            column, *path = path_of(each.name)
            rows = rows.append_column(each.name, part_of(rows[column], path))
    return rows


def changed_by_duckdb(
    analyzed: AnalyzedQuery, moves: Mapping[str, TableChange], schemas: Mapping[str, pa.Schema], was: Bag, large: int
) -> Bag | None:
    """The result after the changes, or None where Spark alone computes them; `large`: no table is read whole."""
    root = read_query(analyzed).root
    tables: Any = MemoryTables(moves, schemas)
    if root is None or not tables.changed:
        return None
    with ENGINE.cursor() as cursor:
        refresh = DuckRefresh(root, cursor, tables, dict.fromkeys(moves, large * 1024**3))
        try:
            touched = refresh.touched_rows()
            if touched is not None:
                places = [root.columns.index(each) for each in root.columns if each.name in touched.keys.schema.names]
                keys = Counter(_rows(touched.keys.select([root.columns[place].name for place in places])))
                left = {row: n for row, n in was.items() if tuple(row[place] for place in places) not in keys}
                return Counter(left) + Counter(_rows(touched.rows))
            found = Counter(was)
            for *row, weight in _rows(refresh.net_rows()):
                found[tuple(row)] += weight
            return Counter({row: number for row, number in found.items() if number})
        except NotComputedError:
            return None


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    zoneless = [each.cast(pa.timestamp("us")) if pa.types.is_timestamp(each.type) else each for each in table.columns]
    columns = [[countable(each) for each in column.to_pylist()] for column in zoneless]
    return [*zip(*columns, strict=True)]
