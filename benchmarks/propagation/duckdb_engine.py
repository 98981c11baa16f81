"""Plain recomputation by DuckDB: sources and derived tables are read, and written, by deltalake."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.propagation.engine import Engine, Tables
from benchmarks.propagation.medallion import below


class DuckdbEngine(Engine):
    """Each refresh overwrites all tables below the changed ones. What is above a result takes it from memory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def create(self) -> None:
        self.recompute(self._tables.sources)

    def resume(self) -> None:
        """There is nothing that it would have to know."""

    def recompute(self, changed: Iterable[str]) -> None:
        results: dict[str, pa.Table] = {}
        for each in below(changed, self._tables.derived):
            with duckdb.connect() as database:
                for name in each.inputs:
                    rows = results.get(name)
                    dataset = DeltaTable(self._tables.uri(name)).to_pyarrow_dataset() if rows is None else rows
                    database.register(name, dataset)
                results[each.name] = _with_longs(database.sql(each.sql))
            write_deltalake(self._tables.uri(each.name), results[each.name], mode="overwrite")

    def settle(self) -> None:
        """A refresh has ended when it is answered."""

    def stop(self) -> None:
        """There is nothing that would go on."""


def _with_longs(result: duckdb.DuckDBPyRelation) -> pa.Table:
    """Return the rows; sums of whole numbers as Delta has them, and not in 128 bits."""
    columns = (
        f'"{name}"::BIGINT AS "{name}"' if kind == "HUGEINT" else f'"{name}"'
        for name, kind in zip(result.columns, map(str, result.types), strict=True)
    )
    return pa.table(result.project(", ".join(columns)).to_arrow_table())
