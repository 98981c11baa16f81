"""A dbt project on a real cluster: what `dbt compile` has made is imported, built, and follows its tables."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dbt_project import GOLDEN, PROJECT, compiled, lasting
from tests.e2e.evidence import Answer, admin
from tests.e2e.harness import SETTLE_WAIT_S, Cluster, append, delete, read

VIEWS = ("orders_by_day", "paid_orders", "revenue_by_country")


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


def test_a_project_that_dbt_has_compiled_is_imported_and_followed(cluster: Cluster) -> None:
    """Every name in its queries has three parts in quotes, as DuckDB's adapter writes them."""
    cluster.start()
    customers = {1: "fr", 2: "de", 3: "fr"}
    table = cluster.table("orders", orders((1, 1, 7, 250, None, "paid"), (2, 2, 7, 199, "x", "open")))
    others = cluster.table("customers", pa.table({"id": list(customers), "country": list(customers.values())}))

    def imported(*options: str) -> Answer:
        tables = ("--table", f"orders={table}", "--table", f"customers={others}")
        return admin(
            cluster.endpoint, "view", "import", str(PROJECT), *tables, "--target-root", cluster.derived, *options
        )

    first = imported("-o", "json").json
    assert (first["counts"]["create"], first["refused"]) == (3, [])
    assert imported("-o", "json").json["counts"] == {"create": 0, "update": 0, "resync": 0, "unchanged": 3, "delete": 0}
    append(table, orders((3, 3, 8, 1001, None, "paid"), (4, 2, 8, 5, "y", "paid")))
    delete(table, "id = 2")
    for name in VIEWS:
        job = next(each for each in cluster.client.views(name))
        cluster.client.wait(job.table, name, timeout_s=SETTLE_WAIT_S)
    wanted = expected(table, customers)
    for name in VIEWS:
        found = Counter(tuple(row.values()) for row in read(str(Path(cluster.derived) / name)).to_pylist())
        assert found == wanted[name], name
        assert admin(cluster.endpoint, "view", "explain", name).status == 0


@pytest.mark.full  # test_a_project_that_dbt_has_compiled_is_imported_and_followed
def test_dbt_makes_the_same_of_the_project_today(tmp_path: Path) -> None:
    made = json.loads(compiled(PROJECT, tmp_path).read_text())
    assert lasting(made) == json.loads(GOLDEN.read_text())
