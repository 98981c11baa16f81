"""A dbt project on a real cluster: what `dbt compile` has made is imported, built, and follows its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests import quick_spark
from tests.dbt_project import GOLDEN, PROJECT, compiled, lasting
from tests.e2e.evidence import admin
from tests.e2e.harness import SETTLE_WAIT_S, Cluster, append, delete, read
from tests.selection import in_full

FOLLOWING, PERIODIC = ("orders_by_day", "paid_orders"), "revenue_by_country"
VIEWS = (*FOLLOWING, PERIODIC)
CUSTOMERS = {1: "fr", 2: "de", 3: "fr"}
ISCP = str(Path(sys.executable).parent / "iscp")
RUN_WAIT_S = 300.0


def orders(*rows: tuple[int, int, int, int, str | None, str]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(("id", "customer", "day", "amount", "note", "status"), map(list, columns), strict=True)))


def expected(source: str, customers: dict[int, str]) -> dict[str, Counter[tuple[Any, ...]]]:
    """The rows of the models, computed from their tables."""
    rows = read(source).to_pylist()
    paid = [each for each in rows if each["status"] == "paid"]
    by_day, last = Counter((each["day"], each["status"]) for each in rows), dict[tuple[Any, ...], int]()
    for each in rows:
        last[each["day"], each["status"]] = max(each["id"], last.get((each["day"], each["status"]), 0))
    number, revenue = Counter[str](), Counter[str]()
    for each in paid:
        number[customers[each["customer"]]] += 1
        revenue[customers[each["customer"]]] += each["amount"]
    return {
        "orders_by_day": Counter((*key, count, last[key]) for key, count in by_day.items()),
        "paid_orders": Counter(
            (each["id"], each["customer"], each["day"], Decimal(each["amount"]) / 100, each["note"] or "isn't said")
            for each in paid
        ),
        "revenue_by_country": Counter((name, number[name], Decimal(revenue[name]) / 100) for name in number),
    }


@dataclass(frozen=True, slots=True)
class Shop:
    """The tables that the project's models read, and the directory of its targets."""

    orders: str
    customers: str
    derived: str

    @property
    def arguments(self) -> tuple[str, ...]:
        tables = ("--table", f"orders={self.orders}", "--table", f"customers={self.customers}")
        return (str(PROJECT), *tables, "--target-root", self.derived)

    def change(self) -> None:
        append(self.orders, orders((3, 3, 8, 1001, None, "paid"), (4, 2, 8, 5, "y", "paid")))
        delete(self.orders, "id = 2")

    def assert_right(self, names: Sequence[str] = VIEWS) -> None:
        wanted = expected(self.orders, CUSTOMERS)
        for name in names:
            found = Counter(tuple(row.values()) for row in read(str(Path(self.derived) / name)).to_pylist())
            assert found == wanted[name], name


def shop(lake: Path, derived: str) -> Shop:
    found = Shop(str(lake / "orders"), str(lake / "customers"), derived)
    cdf = {"delta.enableChangeDataFeed": "true"}
    rows = orders((1, 1, 7, 250, None, "paid"), (2, 2, 7, 199, "x", "open"))
    write_deltalake(found.orders, rows, configuration=cdf)
    countries = pa.table({"id": list(CUSTOMERS), "country": list(CUSTOMERS.values())})
    write_deltalake(found.customers, countries, configuration=cdf)
    return found


@pytest.mark.slow
def test_a_project_that_dbt_has_compiled_is_imported_and_followed(cluster: Cluster) -> None:
    """Every name in its queries has three parts in quotes, as DuckDB's adapter writes them."""
    cluster.start()
    made = shop(cluster.lake, cluster.derived)
    first = admin(cluster.endpoint, "view", "import", *made.arguments, "-o", "json").json
    assert (first["counts"]["create"], first["refused"]) == (3, [])
    again = admin(cluster.endpoint, "view", "import", *made.arguments, "-o", "json").json
    assert again["counts"] == {"create": 0, "update": 0, "resync": 0, "unchanged": 3, "delete": 0}
    made.change()
    for name in FOLLOWING:
        (job,) = cluster.client.views(name)
        cluster.client.wait(job.table, name, timeout_s=SETTLE_WAIT_S)
    made.assert_right(FOLLOWING)
    (periodic,) = cluster.client.views(PERIODIC)
    cluster.client.wait(periodic.table, PERIODIC, 0, timeout_s=SETTLE_WAIT_S)
    assert cluster.client.verify(periodic.table, PERIODIC).comparison.equal, "it is at the version of its last time"
    for name in VIEWS:
        assert admin(cluster.endpoint, "view", "explain", name).status == 0


@pytest.mark.parametrize("runs", in_full([1, 2]))
def test_a_project_that_dbt_has_compiled_is_kept_without_a_cluster(tmp_path: Path, runs: int) -> None:
    (tmp_path / "derived").mkdir()
    made = shop(tmp_path, str(tmp_path / "derived"))
    for number in range(runs):
        if number:
            made.change()
        command, environ = [ISCP, "run", *made.arguments], os.environ | quick_spark.VARIABLES
        run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=RUN_WAIT_S)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "warning: the queries are written for Spark, from those for duckdb" in run.stderr
        made.assert_right()


@pytest.mark.full  # test_a_project_that_dbt_has_compiled_is_imported_and_followed
def test_dbt_makes_the_same_of_the_project_today(tmp_path: Path) -> None:
    made = json.loads(compiled(PROJECT, tmp_path).read_text())
    assert lasting(made) == json.loads(GOLDEN.read_text())
