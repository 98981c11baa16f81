"""`iscp-admin view import`: what is taken over of pipelines and of dbt, and what is left out, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from iscp.model.spec.spec_parsing import ViewFields
from tests.dbt_project import PROJECT

Run = Callable[..., Result]
Kept = Callable[[], list[tuple[str, str, ViewFields]]]

PYTHON = '''
from pyspark import pipelines as dp
raise SystemExit("this is never run")

@dp.materialized_view
def daily():
    """By day."""
    return spark.sql("SELECT id, sum(total) AS total FROM orders GROUP BY id")

@dp.materialized_view(name="best", comment="x")
def other():
    return spark.sql("""
        SELECT * FROM daily JOIN names USING (id)
    """)

@dp.materialized_view(partition_cols=["id"])
def cut():
    return spark.sql("SELECT 1 FROM orders")

@dp.materialized_view
def computed():
    return spark.sql(f"SELECT {1} FROM orders")

@dp.materialized_view
def frames():
    return spark.table("orders").groupBy("id").count()

@dp.table
def streaming():
    return spark.readStream.table("orders")

def plain():
    return 1
'''
SQL = "CREATE MATERIALIZED VIEW names AS SELECT * FROM sales.customers;\nCREATE STREAMING TABLE s AS SELECT 1;"
WHERE = ("--target-root", "/x", "--table", "orders=/lake/orders")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "spark-pipeline.yml").write_text("name: p\nlibraries: [{glob: {include: transformations/**}}]\n")
    (tmp_path / "transformations" / "below").mkdir(parents=True)
    (tmp_path / "transformations" / "views.py").write_text(PYTHON)
    (tmp_path / "transformations" / "below" / "names.sql").write_text(SQL)
    (tmp_path / "outside.sql").write_text("CREATE MATERIALIZED VIEW outside AS SELECT * FROM orders")
    return tmp_path


def test_the_views_of_a_pipeline_are_taken_over_in_their_order(run: Run, pipeline: Path, kept: Kept) -> None:
    done = run("view", "import", str(pipeline), *WHERE)
    assert done.exit_code == 0, done.output
    assert [(table, name) for table, name, _ in kept()] == [
        ("/lake/orders", "daily"),
        ("/x/daily", "best"),
        ("sales.customers", "names"),
    ]
    best = next(view for _, name, view in kept() if name == "best")
    assert best.sql == "SELECT * FROM daily JOIN names USING (id)"
    assert best.tables == {"daily": "/x/daily", "names": "/x/names"}


def test_what_is_left_out_of_a_pipeline_is_listed(run: Run, pipeline: Path, kept: Kept) -> None:
    dry = run("view", "import", str(pipeline / "spark-pipeline.yml"), *WHERE, "--dry-run", "-o", "json")
    found = json.loads(dry.stdout)
    assert found["counts"]["create"] == 3
    assert kept() == []
    assert [(each["name"], each["why"].partition(",")[0]) for each in found["left_out"]] == [
        ("", "the statement 'CREATE STREAMING TABLE' is not supported; CREATE MATERIALIZED VIEW is"),
        ("cut", "it is given partition_cols"),
        ("computed", 'its body is not only: return spark.sql("…")'),
        ("frames", 'its body is not only: return spark.sql("…")'),
        ("streaming", "@dp.table makes no materialized view"),
    ]
    shown = run("view", "import", str(pipeline), *WHERE, "--dry-run").stderr
    assert shown.count("left out: ") == 5
    assert "of best not kept: comment" in shown


def test_only_files_of_the_project_are_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "outside.sql").write_text("CREATE MATERIALIZED VIEW outside AS SELECT * FROM orders")
    for pattern in ("../*.sql", f"{tmp_path}/*.sql"):
        (tmp_path / "p" / "spark-pipeline.yml").write_text(f"libraries: [{{glob: {{include: {pattern}}}}}]")
        refused = run("view", "import", str(tmp_path / "p"), *WHERE)
        assert refused.exit_code == 1
        assert "outside" not in refused.stdout


def model(name: str, code: str, **more: Any) -> dict[str, Any]:
    made = {"resource_type": "model", "name": name, "compiled_code": code, "relation_name": f"`db`.`{name}`"}
    return made | {"config": {"meta": {"iscp": True}}} | more


MANIFEST = {
    "nodes": {
        "model.p.top": model("top", "SELECT * FROM `db`.`mid` JOIN `raw`.`names` USING (id)"),
        "model.p.mid": model(
            "mid",
            "SELECT id FROM `raw`.`orders`",
            config={},
            meta={"iscp": {"refresh": "full", "every": "10m", "target_lag": 5}},
        ),
        "model.p.other": model("other", "SELECT 1 FROM x", config={"meta": {}}),
        "model.p.no": model("no", "SELECT 1 FROM x", config={"meta": {"iscp": False}}),
        "model.p.bare": model("bare", ""),
        "model.p.python": model("python", "x", language="python"),
        "model.p.odd": model("odd", "SELECT 1 FROM x", meta={"iscp": {"cron": "x"}}),
        "model.p.time": model("time", "SELECT 1 FROM x", meta={"iscp": {"every": "soon"}}),
        "model.p.way": model("way", "SELECT 1 FROM x", meta={"iscp": {"refresh": "never"}}),
        "test.p.t": {"resource_type": "test", "meta": {"iscp": True}},
    },
    "sources": {"source.p.raw.orders": {"name": "orders", "relation_name": "`raw`.`orders`"}},
}


def test_models_of_dbt_whose_meta_says_so_are_taken_over(run: Run, tmp_path: Path, kept: Kept) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "manifest.json").write_text(json.dumps(MANIFEST))
    done = run("view", "import", str(tmp_path), *WHERE, "-o", "json")
    assert done.exit_code == 0, done.output
    mid, top = ((table, name, view) for table, name, view in kept())
    assert mid[:2] == ("/lake/orders", "mid")
    assert (mid[2].refresh, mid[2].run) == ("full", {"trigger": "periodic", "every": 600.0, "target_lag": 5.0})
    assert top[:2] == ("/x/mid", "top")
    assert top[2].tables == {"db.mid": "/x/mid", "raw.names": "raw.names"}
    assert [each["name"] for each in json.loads(done.stdout)["left_out"]] == ["bare", "python", "odd", "time", "way"]


def test_a_model_whose_meta_has_iscp_without_anything_is_taken_over(run: Run, tmp_path: Path, kept: Kept) -> None:
    manifest = {"nodes": {"model.p.m": model("m", "SELECT id FROM orders", config={"meta": {"iscp": {}}})}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert run("view", "import", str(tmp_path), *WHERE).exit_code == 0
    assert [name for _, name, _ in kept()] == ["m"]


def test_a_manifest_that_dbt_has_made_is_taken_over(run: Run, kept: Kept) -> None:
    """It is `tests/data/dbt/manifest.json`, which `tests.dbt_project` has made; the queries were written for DuckDB."""
    tables = ("--table", "orders=/lake/orders", "--table", "memory.main.customers=/lake/customers")
    done = run("view", "import", str(PROJECT), "--target-root", "/x", *tables)
    assert done.exit_code == 0, done.output
    assert "warning: the queries are written for Spark, from those for duckdb" in done.stderr
    found = {name: view for _, name, view in kept()}
    assert {name: view.tables for name, view in found.items()} == {
        "orders_by_day": {"memory.main.orders": "/lake/orders"},
        "paid_orders": {"memory.main.orders": "/lake/orders"},
        "revenue_by_country": {"memory.main.paid_orders": "/x/paid_orders", "memory.main.customers": "/lake/customers"},
    }
    assert found["revenue_by_country"].run["every"] == 600.0
    assert found["orders_by_day"].refresh == "incremental"
    assert "FROM `memory`.`main`.`orders`" in found["paid_orders"].sql
    assert r"'isn\'t said'" in found["paid_orders"].sql


@pytest.mark.parametrize(
    ("adapter", "code", "why"),
    [
        ("duckdb", "SELECT FROM WHERE", "it cannot be written as Spark takes it: "),
        ("duckdb", "SELECT 1 FROM x; SELECT 2 FROM x", "it is more than one statement"),
        ("postgres", "(" * 5_000 + "SELECT 1" + ")" * 5_000, "it cannot be written as Spark takes it: "),
    ],
)
def test_a_query_that_spark_cannot_take_is_left_out_by_name(
    run: Run, tmp_path: Path, adapter: str, code: str, why: str
) -> None:
    nodes = {"m": model("whole", "SELECT a FROM orders"), "n": model("odd", code)}
    (tmp_path / "manifest.json").write_text(json.dumps({"metadata": {"adapter_type": adapter}, "nodes": nodes}))
    done = run("view", "import", str(tmp_path), *WHERE, "--dry-run", "-o", "json")
    assert [each["name"] for each in json.loads(done.stdout)["left_out"]] == ["odd"]
    assert json.loads(done.stdout)["left_out"][0]["why"].startswith(why)


def test_queries_for_an_engine_that_nobody_knows_are_left_out(run: Run, tmp_path: Path) -> None:
    manifest = {"metadata": {"adapter_type": "slate"}, "nodes": {"m": model("whole", "SELECT a FROM orders")}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    done = run("view", "import", str(tmp_path), *WHERE)
    assert done.exit_code == 1
    assert "whole it is written for 'slate', whose SQL is not known here" in done.stderr


@pytest.mark.parametrize("adapter", ["", "spark", "databricks"])
def test_a_query_for_spark_stays_to_the_letter(run: Run, tmp_path: Path, adapter: str, kept: Kept) -> None:
    sql = "select  a, 'x' || \"y\" from `raw`.`Orders` -- as it is"
    manifest = {"metadata": {"adapter_type": adapter}, "nodes": {"m": model("view_1", sql)}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    done = run("view", "import", str(tmp_path), "--target-root", "/x", "--table", "raw.orders=/lake/orders")
    assert done.exit_code == 0, done.output
    ((_, _, view),) = kept()
    assert (view.sql, view.tables) == (sql, {"raw.Orders": "/lake/orders"})
    assert "warning" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "{"),
        ("manifest.json", "[]"),
        ("manifest.json", '{"nodes": 7}'),
        ("manifest.json", '{"nodes": {"a": 7, "b": {"resource_type": "model", "meta": 7}}}'),
        ("spark-pipeline.yml", "]["),
        ("spark-pipeline.yml", "7"),
        ("spark-pipeline.yml", "[" * 100_000),
        ("spark-pipeline.yml", "libraries: [7]"),
        ("spark-pipeline.yml", "libraries: [{glob: {include: /etc/**}}]"),
        ("spark-pipeline.yml", "libraries: [{glob: {include: a**}}]"),
    ],
)
def test_what_is_no_project_is_refused(run: Run, tmp_path: Path, name: str, content: str, kept: Kept) -> None:
    (tmp_path / name).write_text(content)
    for path in (tmp_path, tmp_path / name):
        refused = run("view", "import", str(path), *WHERE)
        assert refused.exit_code == 1
        assert f"field: {tmp_path}" in refused.stderr
        assert "remedy: " in refused.stderr
    assert kept() == []
