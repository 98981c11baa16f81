"""What a session's optimizer does without, how full the JVM is, and which settings rows do not depend on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import iscp
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine, heap_share_of, without_rules
from iscp.views.analysis.query_analysis import condition_analyzer

pytestmark = pytest.mark.spark

EXCLUDED, PREFIX = "spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer"


@pytest.mark.parametrize("users", ["", f"{PREFIX}.ConstantFolding"])
def test_rules_that_a_user_excludes_stay_excluded(spark_runtime: SparkRuntime, users: str) -> None:
    session = spark_runtime.new_session()
    if users:
        session.conf.set(EXCLUDED, users)
    with without_rules(session, ["LimitPushDown"]), without_rules(session, ["CollapseProject"]):
        found = session.conf.get(EXCLUDED)
    wanted = [*([users] if users else []), f"{PREFIX}.LimitPushDown", f"{PREFIX}.CollapseProject"]
    assert found == ",".join(wanted)
    assert session.conf.get(EXCLUDED, "") == users


def test_what_is_in_use_is_known_after_a_collection(spark_runtime: SparkRuntime) -> None:
    context = spark_runtime.root.sparkContext
    assert context._jvm is not None
    context._jvm.java.lang.System.gc()
    share = heap_share_of(context)
    assert 0 < share < 1
    assert heap_share_of(context) == share


DAY = "date(at) = DATE'2026-01-01'"
CHANGED = {
    "spark.sql.session.timeZone": ("Asia/Tokyo", DAY),
    "spark.sql.ansi.enabled": ("false", "typeof(coalesce(id, text)) = 'string'"),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("true", 'text = "1"'),
    "spark.sql.caseSensitive": ("true", "ID > 1"),
    "spark.sql.timestampType": ("TIMESTAMP_NTZ", "typeof(TIMESTAMP'2026-01-01 00:00:00') = 'timestamp_ntz'"),
    "spark.sql.mapKeyDedupPolicy": ("LAST_WIN", "size(map_concat(map(id, 1), map(id, 2))) = 1"),
    "spark.sql.decimalOperations.allowPrecisionLoss": (
        "false",
        "typeof(CAST(id AS DECIMAL(38, 18)) * CAST(id AS DECIMAL(38, 18))) = 'decimal(38,36)'",
    ),
    "spark.sql.parser.escapedStringLiterals": ("true", r"length('\n') = id"),
    "spark.sql.function.concatBinaryAsString": ("true", "typeof(concat(X'61', X'62')) = 'string'"),
    "spark.sql.jsonGenerator.ignoreNullFields": (
        "false",
        "to_json(named_struct('a', CAST(NULL AS INT))) = '{\"a\":null}'",
    ),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "date_format(at, 'u') = '4'"),
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": ("true", "typeof(1e2) <> 'double'"),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "day = DATE'1500-01-01'"),
}
"""What a deployment may set, and a condition that holds for other rows by it, or fails."""


@contextmanager
def deployed(runtime: SparkRuntime, **settings: str) -> Iterator[None]:
    """Within, sessions are made as where a SparkContext was started with these settings.

    The root session's own settings are taken at its first use, which is therefore before.
    """
    runtime.root.conf.get("spark.sql.session.timeZone")
    context: Any = runtime.root.sparkContext._jsc
    conf = context.sc().conf()
    before = {name: conf.get(name, "") for name in settings}
    try:
        for name, value in settings.items():
            conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            conf.set(name, value) if value else conf.remove(name)


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "at": pa.array([utc(0, 30), utc(15, 30)], pa.timestamp("us", "UTC")),
            "text": ["1", "2"],
            "day": [dt.date(1500, 1, 1), dt.date(2026, 1, 1)],
        }
    )
    write_deltalake(uri, rows, configuration={"delta.enableChangeDataFeed": "true"})
    return uri


def utc(hour: int, minute: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, hour, minute, tzinfo=dt.UTC)


@pytest.mark.parametrize("name", CHANGED)
def test_rows_do_not_depend_on_what_a_deployment_sets(spark_runtime: SparkRuntime, table: str, name: str) -> None:
    value, condition = CHANGED[name]

    def found(session: SparkSession) -> object:
        try:
            rows = session.read.format("delta").load(table).where(condition)
            return sorted(row.id for row in rows.collect())
        except PySparkException as error:
            return error.getCondition()

    usual = found(spark_runtime.new_session())
    with deployed(spark_runtime, **{name: value}):
        assert found(spark_runtime.new_session()) != usual, "the setting changes nothing"
        engine = SparkEngine(spark_runtime.root, spark_runtime.new_session)
        assert found(engine.borrow()) == usual
        schema = spark_runtime.root.read.format("delta").load(table).schema.json()
        refused = condition_analyzer(spark_runtime.new_session())(schema, condition)
        assert bool(refused) == (usual in ("UNRESOLVED_COLUMN.WITH_SUGGESTION",))


@pytest.mark.parametrize("kind", ["replica", "changefeed", "fulltext", "view"])
@pytest.mark.slow(but=2)
def test_a_target_that_was_begun_under_other_settings_holds_the_same_rows(
    spark_runtime: SparkRuntime, table: str, tmp_path: Path, kind: str
) -> None:
    """The SparkContext is one of Asia/Tokyo and without ANSI at first; afterwards it is as a node's."""
    target, options = str(tmp_path / "target"), {"columns": "text"} if kind == "fulltext" else {}

    def ids_after_refresh() -> list[int]:
        with iscp.local(spark_runtime.new_session()) as lake:
            if kind == "view":
                sql = f"SELECT id FROM t WHERE {DAY}"
                job = lake.view("v", sql, target=target, tables={"t": table}, deletion_vectors=False)
            else:
                job = lake.job(table, target, kind, key=["id"], where=DAY, options=options)
            done = job.refresh()
            assert not done.error, done
            assert kind == "changefeed" or job.verify().equal
        if kind == "fulltext":
            return sorted(int(each.key["id"]) for each in iscp.search(target, "1 2 3").hits)
        rows = DeltaTable(target).to_pyarrow_table()
        found = [each["id"] for each in rows["key"].to_pylist()] if kind == "changefeed" else rows["id"].to_pylist()
        return sorted(found)

    with deployed(spark_runtime, **{"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}):
        assert ids_after_refresh() == [1, 2]
    more = {"id": pa.array([3], pa.int32()), "at": pa.array([utc(23, 30)], pa.timestamp("us", "UTC"))}
    write_deltalake(table, pa.table(more | {"text": ["3"], "day": [dt.date(2026, 1, 1)]}), mode="append")
    assert ids_after_refresh() == [1, 2, 3]
