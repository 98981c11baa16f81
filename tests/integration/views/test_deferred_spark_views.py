"""Views whose changes go without Spark start no JVM from the first change after their build on."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.spark.deferred_spark import DeferredEngine, DeferredSpark, SparkAccess
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from tests.integration.views.conftest import Lake, ViewBench

pytestmark = pytest.mark.spark

QUERIES = {
    "groups": "SELECT b, count(*) AS n, sum(a) AS s, avg(n) AS m FROM t GROUP BY b",
    "joins": "SELECT t.a, t.b, u.y FROM t JOIN u ON t.a = u.a WHERE t.a > 0",
    "groups of joins": "SELECT t.b, count(*) AS n, sum(u.y) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.b",
}


def never() -> SparkAccess:
    raise AssertionError("Spark was started")


def without_spark(view: ViewBench) -> None:
    """Have the view refreshed by an engine whose Spark fails the test."""
    spark = DeferredSpark(never, local=True)
    view.engine = cast(SparkEngine, DeferredEngine(spark))
    view.source = DeltaChangeSource(
        by_spark=table_opener(spark.root), load_state=state_loader(spark.root), list_files=file_lister(spark.root)
    )


@pytest.mark.parametrize("name", QUERIES)
def test_few_changed_rows_start_no_jvm(tmp_path: Path, spark_runtime: SparkRuntime, name: str) -> None:
    lake = Lake(tmp_path, seed=7)
    view = ViewBench(lake, spark_runtime, QUERIES[name], ["t", "u"] if "joins" in name else ["t"])
    assert view.run().ok
    without_spark(view)
    for table, uri in lake.uris.items():
        write_deltalake(uri, lake._rows(table, 2), mode="append")
    strategy = name.split()[0].replace("joins", "changes")
    assert view.run().strategy == strategy
    for _ in range(4):
        lake.change()
        outcome = view.run()
        assert outcome.error_msg == ""
        assert outcome.strategy in (strategy, "unchanged", ""), outcome.strategy_reason
        view.assert_equal()


def test_sums_that_are_beyond_what_is_stored_leave_a_view_to_spark(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """Digits of a decimal may fit in 64 bits one by one, and their sum not."""
    lake = Lake(tmp_path, seed=7)
    lake.uris["big"] = str(tmp_path / "big")
    most = pa.table({"b": ["p", "p"] * 6, "n": pa.array([Decimal("9" * 18)] * 12, pa.decimal128(18, 0))})
    write_deltalake(lake.uris["big"], most, configuration={"delta.enableChangeDataFeed": "true"})
    view = ViewBench(lake, spark_runtime, "SELECT b, sum(n) AS s FROM big GROUP BY b", ["big"])
    assert view.run().ok
    for _ in range(2):
        write_deltalake(lake.uris["big"], most.slice(0, 1), mode="append")
        view.restart()  # another process finds out the same
        outcome = view.run()
        assert (outcome.error_msg, outcome.rows) == ("", 1)
        view.assert_equal()
