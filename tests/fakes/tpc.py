"""The tables and queries of TPC-H and TPC-DS, as DuckDB's extensions make them, in Spark's dialect.

The text of TPC's queries, and the rows, are DuckDB's; they are made here, and nothing of them is kept in the project.
"""

from __future__ import annotations

from functools import cached_property

import duckdb
import pyarrow as pa
import sqlglot
from duckdb_extensions import import_extension
from sqlglot import exp

MAKE = {"tpch": "CALL dbgen(sf = 0.002)", "tpcds": "CALL dsdgen(sf = 0.01)"}
"""With the least scale at which each makes its tables."""

QUERIES = {"tpch": range(1, 23), "tpcds": range(1, 100)}
ROWS_MAX = 2_000
"""Of a table, so that a query's cross joins end: more are left out, the same ones each time."""

_SIGNS = " ,;{}()\n\t="


class Tpc:
    """One of the two."""

    def __init__(self, suite: str) -> None:
        import_extension(suite)
        self._database = duckdb.connect()
        self._database.execute(f"LOAD {suite}")
        self._database.execute(MAKE[suite])
        texts = self._database.execute(f"SELECT query_nr, query FROM {suite}_queries()").fetchall()
        self._texts: dict[int, str] = dict(texts)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        return tuple(name for (name,) in self._database.execute("SHOW TABLES").fetchall())

    def rows(self, table: str) -> pa.Table:
        found = self._database.execute(f"SELECT * FROM {table} USING SAMPLE {ROWS_MAX} ROWS (reservoir, 1)")
        return pa.table(found.to_arrow_table())

    def query(self, number: int) -> tuple[str, list[str]]:
        """Its text in Spark's dialect, each column under a name that a table can have, and the tables it reads."""
        parsed = sqlglot.parse_one(self._texts[number].strip().rstrip(";"), read="duckdb")
        top = parsed
        while not isinstance(top, exp.Select):
            top = top.this
        _name_columns(top)
        named = {each.name.lower() for each in parsed.find_all(exp.Table)}
        return parsed.sql(dialect="spark"), [name for name in self.tables if name in named]


def _name_columns(top: exp.Select) -> None:
    seen: set[str] = set()
    for place, column in enumerate(list(top.expressions)):
        name = column.alias_or_name or column.unnest().alias_or_name
        if isinstance(column, exp.Star):
            continue
        if not name or name.lower() in seen or any(sign in name for sign in _SIGNS):
            name = f"col{place}"
            inner = column.this if isinstance(column, exp.Alias) else column
            column.replace(exp.alias_(inner.copy(), name))
        seen.add(name.lower())
