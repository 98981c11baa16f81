"""The table of docs/run.md says of views for which small changes start Spark: a run of each shows it, and says why."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.spec.spec import to_spec_json
from iscp.spark.session import SparkRuntime
from tests.both_ways.keepers import RunKeeper

pytestmark = pytest.mark.spark

VIEWS = {
    "views of which DuckDB": (
        "SELECT id, total + 1 AS more, price FROM orders WHERE total > 1 AND customer = 'c1'",
        "SELECT orders.id, names.city FROM orders JOIN names ON orders.customer = names.customer",
        "SELECT id, city FROM orders LEFT JOIN names ON orders.customer = names.customer",
        "SELECT customer, count(*) AS n, avg(total) AS m, max(price) AS most FROM orders GROUP BY customer",
    ),
    "such views with `LIMIT`": ("SELECT id, total FROM orders ORDER BY total DESC, id LIMIT 3",),
    "regular expressions": ("SELECT id, regexp_replace(customer, '[0-9]+', 'x') AS c FROM orders",),
}
"""Views of each row of the table, by how the row begins."""

OTHERS = 5
"""Rows of what is no view, of chains of views, and of features of tables: other tests show these."""

_ROW = re.compile(r"\| (?P<kept>.*) \| (?P<way>without Spark|by Spark).* \|")


def request(lake: Path, name: str, sql: str) -> RegisterRequest:
    tables = {each: str(lake / each) for each in ("orders", "names") if re.search(rf"\b{each}\b", sql)}
    fields = {"consumer": "view", "target": str(lake / name), "options": {"sql": sql, "tables": tables}}
    return RegisterRequest(JobName(str(lake / "orders"), name), to_spec_json(fields))


def orders(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    columns = {"id": [*ids], "customer": [f"c{each % 4}" for each in ids], "total": [*ids]}
    return pa.table(columns | {"price": [float(each) for each in ids]})


@pytest.mark.full
def test_small_changes_start_spark_for_those_views_alone_of_which_the_table_says_so(
    tmp_path: Path, spark_runtime: SparkRuntime
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "run.md").read_text().partition("## What starts Spark")[2]
    rows = {row["kept"]: row["way"] == "by Spark" for row in _ROW.finditer(text.partition("\n## ")[0])}
    by_spark = {name: wanted for name in VIEWS for kept, wanted in rows.items() if kept.startswith(name)}
    assert (by_spark.keys(), len(rows)) == (VIEWS.keys(), len(VIEWS) + OTHERS)

    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path / "orders"), orders(0, 2_000), configuration=feed)
    names = pa.table({"customer": ["c0", "c1", "c2", "c3"], "city": ["Oslo", "Bergen", "Oslo", "Bergen"]})
    write_deltalake(str(tmp_path / "names"), names, configuration=feed)
    views = [(name, sql) for name, each in VIEWS.items() for sql in each]
    requests = [(name, request(tmp_path, f"v{at}", sql)) for at, (name, sql) in enumerate(views)]
    registered = [each for _, each in requests]
    run = RunKeeper(lambda: spark_runtime)
    assert [each.error for each in run.bring_up(registered)] == [""] * len(requests)
    assert {*run.needs.values()} == {"its query is analyzed; all rows are computed (the first build)"}
    assert len(run.needs) == len(requests)

    write_deltalake(str(tmp_path / "orders"), orders(5_000, 2), mode="append")
    assert [each.error for each in run.bring_up(registered)] == [""] * len(requests)
    assert [each.job.name in run.needs for _, each in requests] == [by_spark[name] for name, _ in requests]
    assert all("for a query like this" in why for why in run.needs.values()), run.needs
