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

from tests.fakes.tpc_conditions import loosened

MAKE = {"tpch": "CALL dbgen(sf = {})", "tpcds": "CALL dsdgen(sf = {})"}
SCALES = {"tpch": 0.002, "tpcds": 0.01}
"""The least at which each makes its tables."""

QUERIES = {"tpch": range(1, 23), "tpcds": range(1, 100)}

_UNREFERRED = {
    "date_dim": "d_year NOT BETWEEN 1998 AND 2003",
    "time_dim": "t_time_sk NOT IN (SELECT ss_sold_time_sk FROM store_sales WHERE ss_sold_time_sk IS NOT NULL "
    "UNION SELECT ws_sold_time_sk FROM web_sales WHERE ws_sold_time_sk IS NOT NULL)",
    "customer_demographics": "cd_demo_sk NOT IN (SELECT c_current_cdemo_sk FROM customer "
    "WHERE c_current_cdemo_sk IS NOT NULL UNION SELECT ss_cdemo_sk FROM store_sales WHERE ss_cdemo_sk % 4 = 0)",
    "catalog_page": "cp_catalog_page_sk NOT IN (SELECT cs_catalog_page_sk FROM catalog_sales "
    "WHERE cs_catalog_page_sk IS NOT NULL)",
}
"""Rows of TPC-DS that are as many at every scale, and that no row of others, or few, refer to."""

_MORE = (
    *(
        f"INSERT INTO {table} "
        f"SELECT w.* REPLACE ({key} + n AS {key}, {value} AS {name}) FROM {table} w, range(1, 4) t(n)"
        for table, key, name, value in (
            ("warehouse", "w_warehouse_sk", "w_warehouse_name", "'Warehouse ' || n"),
            ("store", "s_store_sk", "s_zip", "(SELECT ca_zip FROM customer_address WHERE ca_address_sk = 7 * n)"),
        )
    ),
    "UPDATE web_sales SET ws_warehouse_sk = 1 + ws_item_sk % 4",
    "UPDATE catalog_sales SET cs_warehouse_sk = 1 + cs_item_sk % 4",
    "UPDATE store_sales SET ss_store_sk = 1 + ss_item_sk % 4 WHERE ss_ticket_number % 9 = 0",
)
"""TPC-DS has one store and one warehouse at its least scale, where some queries compare several."""

_SIGNS = " ,;{}()\n\t="


class Tpc:
    """One of the two. `scale`: by default the least, without most rows that others do not refer to."""

    def __init__(self, suite: str, scale: float | None = None) -> None:
        import_extension(suite)
        self.database = duckdb.connect()
        self.database.execute(f"LOAD {suite}")
        self.database.execute(MAKE[suite].format(scale or SCALES[suite]))
        texts = self.database.execute(f"SELECT query_nr, query FROM {suite}_queries()").fetchall()
        self._texts: dict[int, str] = dict(texts)
        if suite == "tpcds" and scale is None:
            for table, condition in _UNREFERRED.items():
                self.database.execute(f"DELETE FROM {table} WHERE {condition}")
            for statement in _MORE:
                self.database.execute(statement)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        return tuple(name for (name,) in self.database.execute("SHOW TABLES").fetchall())

    def rows(self, table: str) -> pa.Table:
        return pa.table(self.database.execute(f"SELECT * FROM {table}").to_arrow_table())

    def query(self, number: int, *, loosen: bool = False) -> tuple[str, list[str]]:
        """Its text in Spark's dialect, each column under a name that a table can have, and the tables it reads.

        `loosen`: without conditions on single columns that keep it from having a row, and without ties at its LIMIT,
        so that two answers to it can be compared.
        """
        parsed = sqlglot.parse_one(self._texts[number].strip().rstrip(";"), read="duckdb")
        top: exp.Expr = parsed
        while not isinstance(top, exp.Select):
            top = top.this
        _name_columns(top)
        if loosen:
            parsed = loosened(parsed, self.has_rows)
            _order_wholly(parsed, len(top.expressions))
        named = {each.name.lower() for each in parsed.find_all(exp.Table)}
        return parsed.sql(dialect="spark"), [name for name in self.tables if name in named]

    def has_rows(self, query: exp.Expr) -> bool:
        """Whether one has a value other than zero; not where a subquery would give more than its one value."""
        try:
            found = self.database.execute(query.sql(dialect="duckdb")).fetchmany(100)
        except duckdb.InvalidInputException:
            return False
        return any(value for row in found for value in row)


def _name_columns(top: exp.Select) -> None:
    seen: set[str] = set()
    for place, column in enumerate(list(top.expressions)):
        name = column.alias or (column.unnest().name if isinstance(column.unnest(), exp.Column) else "")
        if isinstance(column, exp.Star):
            continue
        if not name or name.lower() in seen or any(sign in name for sign in _SIGNS):
            name = f"col{place}"
            inner = column.this if isinstance(column, exp.Alias) else column
            column.replace(exp.alias_(inner.copy(), name))
        seen.add(name.lower())


def _order_wholly(query: exp.Expr, columns: int) -> None:
    """Rows that tie in the ORDER BY at a LIMIT are then equal."""
    order = query.args.get("order")
    if order is not None and query.args.get("limit") is not None:
        for place in range(1, columns + 1):
            order.append("expressions", exp.Ordered(this=exp.Literal.number(place)))
