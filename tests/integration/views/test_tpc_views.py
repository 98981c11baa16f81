"""TPC-H's and TPC-DS's queries as views: each equals Spark's own answer after its tables were changed at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.spark.session import SparkRuntime
from tests.fakes.tpc import QUERIES, Tpc

from .conftest import Lake, ViewBench

REFRESHES = 2

SOME = {"tpch": (13, 21), "tpcds": (65,)}
"""Queries that stand for the others: an outer join below groups of groups, EXISTS and NOT EXISTS below a LIMIT, groups
joined with groups."""


class TpcLake(Lake):
    """Tables of a suite's, and random inserts, updates and deletes on them."""

    def __init__(self, root: Path, tpc: Tpc, tables: Sequence[str], seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.uris = {name: str(root / name) for name in tables}
        for name, uri in self.uris.items():
            write_deltalake(uri, tpc.rows(name), configuration={"delta.enableChangeDataFeed": "true"})

    def change(self) -> None:
        """Of each table rows come again, rows go, and values of rows become null."""
        for uri in self.uris.values():
            rows = DeltaTable(uri).to_pyarrow_table()
            some = rows.take(pa.array(self.draw.choices(range(len(rows)), k=6) if len(rows) else [], pa.int64()))
            write_deltalake(uri, some, mode="append")
            key = rows.schema.names[0]
            values = [each for each in rows[key].unique().to_pylist() if each is not None] or [0]
            one, other = (_literal(self.draw.choice(values)) for _ in range(2))
            column = self.draw.choice(rows.schema.names[1:] or [key])
            DeltaTable(uri).update(updates={column: "NULL"}, predicate=f"{key} = {one}")
            DeltaTable(uri).delete(f"{key} = {other}")


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


@lru_cache(maxsize=2)
def made(suite: str) -> Tpc:
    return Tpc(suite)


def follow(root: Path, runtime: SparkRuntime, suite: str, number: int) -> None:
    sql, tables = made(suite).query(number)
    lake = TpcLake(root, made(suite), tables, number)
    view = ViewBench(lake, runtime, sql, tables, refresh="incremental")
    assert view.refresh().strategy == "full"
    view.assert_equal()
    for _ in range(REFRESHES):
        lake.change()
        done = view.refresh()
        assert done.strategy != "full", done.reason
        view.assert_equal()


@pytest.mark.parametrize(("suite", "number"), [(suite, number) for suite, few in SOME.items() for number in few])
def test_some_queries_follow_changes_of_all_their_tables(
    tmp_path: Path, spark_runtime: SparkRuntime, suite: str, number: int
) -> None:
    follow(tmp_path, spark_runtime, suite, number)


@pytest.mark.full
@pytest.mark.parametrize(("suite", "number"), [(suite, number) for suite, every in QUERIES.items() for number in every])
def test_all_queries_follow_changes_of_all_their_tables(
    tmp_path: Path, spark_runtime: SparkRuntime, suite: str, number: int
) -> None:
    follow(tmp_path, spark_runtime, suite, number)
