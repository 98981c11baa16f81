"""TPC-H's and TPC-DS's queries as views: each equals Spark's own answer after its tables were changed at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.spark.session import SparkRuntime
from tests.fakes.tpc import QUERIES, Tpc

from .conftest import Lake, ViewBench

KEYS_FEW = 3
"""Keys of a table up to which no row of it goes: some have a row or two, without which most queries have none."""

SOME = {"tpch": (21,)}
"""A query that stands for the others: EXISTS and NOT EXISTS below a LIMIT."""

WITHOUT_ROWS = {("tpcds", 24), ("tpcds", 38), ("tpcds", 54), ("tpcds", 58)}
"""Queries that have no row at the least scale, whatever is left out of their conditions on single columns."""


class TpcLake(Lake):
    """Tables of a suite's, and random inserts, updates and deletes on them."""

    def __init__(self, root: Path, tpc: Tpc, tables: Sequence[str], seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.uris = {name: str(root / name) for name in tables}
        for name, uri in self.uris.items():
            write_deltalake(uri, tpc.rows(name), configuration={"delta.enableChangeDataFeed": "true"})

    def change(self) -> None:
        """Every table."""
        for uri in self.uris.values():
            self._change_table(uri)

    def change_some(self) -> None:
        for uri in self.draw.sample(list(self.uris.values()), (len(self.uris) + 1) // 2):
            self._change_table(uri)

    def _change_table(self, uri: str) -> None:
        """Rows come again, and with a value of other rows in one column; rows go, and values of rows become others."""
        rows = DeltaTable(uri).to_pyarrow_table()
        names = rows.schema.names
        write_deltalake(uri, self._mixed(rows, self.draw.choice(names)), mode="append")
        values = [each for each in rows[names[0]].unique().to_pylist() if each is not None]
        one, other = (_literal(self.draw.choice(values)) for _ in range(2))
        column = self.draw.choice(names[1:] or names)
        value = _literal(self.draw.choice([None, *rows[column].unique().to_pylist()[:5]]))
        DeltaTable(uri).update(updates={column: value}, predicate=f"{names[0]} = {one}")
        if len(values) > KEYS_FEW:
            DeltaTable(uri).delete(f"{names[0]} = {other}")

    def _mixed(self, rows: pa.Table, column: str) -> pa.Table:
        again, others, values = (rows.take(pa.array(self.draw.choices(range(len(rows)), k=k))) for k in (4, 2, 2))
        place = rows.schema.get_field_index(column)
        return pa.concat_tables([again, others.set_column(place, rows.schema.field(place), values[column])])


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'{}'".format(str(value).replace("'", "''"))


@lru_cache(maxsize=2)
def made(suite: str) -> Tpc:
    return Tpc(suite)


def follow(root: Path, runtime: SparkRuntime, suite: str, number: int) -> list[int]:
    """The view's rows at first, and after each refresh."""
    sql, tables = made(suite).query(number, loosen=True)
    lake = TpcLake(root, made(suite), tables, number)
    view = ViewBench(lake, runtime, sql, tables, refresh="incremental")
    assert view.refresh().strategy == "full"
    rows = [DeltaTable(view.target).count()]
    for change in (lake.change_some, lake.change):
        change()
        done = view.refresh()
        assert done.strategy != "full", done.reason
        view.assert_equal()
        rows.append(DeltaTable(view.target).count())
    assert rows[0] > 0 or (suite, number) in WITHOUT_ROWS
    return rows


@pytest.mark.further  # each time: test_random_views.py
@pytest.mark.parametrize(("suite", "number"), [(suite, number) for suite, few in SOME.items() for number in few])
def test_some_queries_follow_changes_of_all_their_tables(
    tmp_path: Path, spark_runtime: SparkRuntime, suite: str, number: int
) -> None:
    follow(tmp_path, spark_runtime, suite, number)


@pytest.mark.full
@pytest.mark.timeout(1_800)  # a query of 36 tables takes minutes
@pytest.mark.parametrize(("suite", "number"), [(suite, number) for suite, every in QUERIES.items() for number in every])
def test_all_queries_follow_changes_of_all_their_tables(
    tmp_path: Path, spark_runtime: SparkRuntime, suite: str, number: int
) -> None:
    follow(tmp_path, spark_runtime, suite, number)
