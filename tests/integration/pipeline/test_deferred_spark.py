"""Small changes of replicas, feeds and indexes start no JVM; where Spark is needed, it starts midway."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.app.table_access import check_of_targets
from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.spec.spec import ChangeMode
from iscp.spark.deferred_spark import DeferredSpark, SparkAccess
from iscp.spark.session import SparkRuntime

from .conftest import ROWS, Pipeline
from .feeding import Feed
from .indexing import Indexing, documents


def never() -> SparkAccess:
    raise AssertionError("Spark was started")


@pytest.fixture
def without(tmp_path: Path) -> Pipeline:
    """A pipeline whose Spark fails the test."""
    return Pipeline(tmp_path, DeferredSpark(never, local=True), DIRECT_BYTES_MAX)


def only(outcomes: list[JobOutcome]) -> JobOutcome:
    (outcome,) = outcomes
    assert outcome.error_msg == ""
    return outcome


REPLICAS: dict[str, dict[str, Any]] = {
    "plain": {"key": ("id",)},
    "filtered": {"key": ("id",), "where": "g < 3 AND v <> 'gone'"},
    "columns": {"key": ("ID",), "columns": ("g", "v", "id")},
}


def test_small_replicas_are_built_and_followed_without_a_jvm(without: Pipeline) -> None:
    jobs = [without.job(name, **consumer) for name, consumer in REPLICAS.items()]
    for outcome in without.run(*jobs):
        assert (outcome.error_msg, outcome.data_type) == ("", DataType.SNAPSHOT)
    for change in (
        lambda: without.upsert([1, 2, ROWS + 1], "changed"),
        lambda: without.insert(range(ROWS + 10, ROWS + 20)),
        lambda: without.delete("id = 3"),
        lambda: without.upsert([5, 6], "gone"),
        lambda: DeltaTable(without.source).optimize.compact(),
    ):
        change()
        for outcome in without.run(*jobs):
            assert outcome.error_msg == ""
    without.assert_equal("plain")
    without.assert_equal("columns")
    without.assert_equal("filtered", lambda row: row["g"] < 3 and row["v"] != "gone")


def test_small_differences_and_empty_tables_start_no_jvm(without: Pipeline) -> None:
    job = without.job("diff", policies={"change_source": ChangeMode.DIFF}, key=("id",))
    without.delete("true")
    assert only(without.run(job)).data_type is DataType.SNAPSHOT
    without.insert(range(5))
    only(without.run(job))
    without.upsert([1, 7], "new")
    without.delete("id = 2")
    assert only(without.run(job)).data_type is DataType.DIFFERENCE
    without.assert_equal("diff")


def test_appended_rows_without_a_key_start_no_jvm(without: Pipeline) -> None:
    job = without.job("log")
    assert only(without.run(job)).data_type is DataType.SNAPSHOT
    without.insert(range(ROWS, ROWS + 5))
    assert only(without.run(job)).data_type is DataType.TAIL
    without.assert_equal("log")


@pytest.mark.parametrize("kind", ["fulltext", "search"])
def test_small_indexes_are_built_and_followed_without_a_jvm(without: Pipeline, kind: str) -> None:
    indexing = Indexing(without)
    texts = documents(list(range(40))).drop_columns(["embedding"])
    indexing.replace_source(texts)
    job = indexing.job(kind)
    assert only(indexing.run(job)).data_type is DataType.SNAPSHOT
    indexing.upsert(documents([1, 2, 50], turn=1).drop_columns(["embedding"]))
    indexing.delete("id = 3")
    assert only(indexing.run(job)).data_type is DataType.TAIL
    indexing.assert_equal(job)


@pytest.mark.spark
@pytest.mark.parametrize("consumer", [{}, {"columns": ("v", "id"), "where": "g < 5"}], ids=["all", "some"])
def test_changes_of_a_feed_start_no_jvm(
    tmp_path: Path, without: Pipeline, spark_runtime: SparkRuntime, consumer: dict[str, Any]
) -> None:
    feed = Feed(Pipeline(tmp_path / "built", spark_runtime, DIRECT_BYTES_MAX), **consumer)
    assert feed.run().ok
    follower = without.new_runner(without.failpoints, kinds=lambda name: ChangefeedKind())

    def follow() -> None:
        assert feed.run(runner=follower).error_msg == ""

    feed.pipeline.upsert([1, 2, ROWS + 1], "new")
    follow()
    feed.pipeline.delete("id % 10 = 3")
    follow()
    feed.pipeline.insert(range(100, 120))
    follow()
    feed.assert_equal((lambda row: row["g"] < 5) if consumer else (lambda row: True))


@pytest.mark.spark
def test_changed_vectors_start_no_jvm(tmp_path: Path, without: Pipeline, spark_runtime: SparkRuntime) -> None:
    indexing = Indexing(Pipeline(tmp_path / "built", spark_runtime, DIRECT_BYTES_MAX))
    job = indexing.job("vector")
    only(indexing.run(job))
    indexing.upsert(documents([1, 2, 50], turn=1))
    follower = without.new_runner(without.failpoints, kinds=indexing.kinds)
    assert only(indexing.run(job, runner=follower)).data_type is DataType.TAIL
    indexing.assert_equal(job)


@pytest.mark.spark
@pytest.mark.slow
def test_rows_that_spark_marks_as_deleted_or_restores_start_no_jvm(
    tmp_path: Path, without: Pipeline, spark_runtime: SparkRuntime
) -> None:
    """A random history by deletion vectors, in commits without change data, also of files that have some already."""
    pipeline, draw = Pipeline(tmp_path / "built", spark_runtime, DIRECT_BYTES_MAX), random.Random(3)
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    job = pipeline.job("all", key=("id",))
    only(pipeline.run(job))
    follower, first = without.new_runner(without.failpoints), DeltaTable(pipeline.source).version()
    pipeline.sql("DELETE FROM SOURCE WHERE id IN (1, 2, 7)")
    for _ in range(8):
        assert only(pipeline.run(job, runner=follower)).data_type is DataType.TAIL
        pipeline.assert_equal_by_spark("all")
        newest = DeltaTable(pipeline.source).version()
        some = ", ".join(map(str, draw.sample(range(ROWS), 4)))
        pipeline.sql(
            draw.choice(
                [
                    f"DELETE FROM SOURCE WHERE id IN ({some})",
                    f"DELETE FROM SOURCE WHERE id IN ({some})",
                    f"RESTORE TABLE SOURCE TO VERSION AS OF {draw.randint(first, newest)}",
                    f"UPDATE SOURCE SET v = 'marked {newest}' WHERE id IN ({some})",
                ]
            )
        )
    only(pipeline.run(job))
    pipeline.assert_equal_by_spark("all")
    log = [each.read_text() for each in Path(pipeline.source, "_delta_log").glob("*.json")]
    assert sum('"deletionVector"' in each and '"cdc"' not in each for each in log) > 3


@pytest.mark.spark
def test_spark_that_is_needed_midway_starts_then(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """A condition that only Spark decides, after changes that are taken without it, beside others that still are."""
    starts = list[SparkRuntime]()

    def start() -> SparkAccess:
        starts.append(spark_runtime)
        return spark_runtime

    spark = DeferredSpark(start, local=True)
    pipeline = Pipeline(tmp_path, spark, DIRECT_BYTES_MAX)
    check_of_targets(spark, ())(pipeline.target("plain"))  # passes once more, with Spark, at the start
    plain = pipeline.job("plain", key=("id",))
    only(pipeline.run(plain))
    assert not spark.started
    odd = pipeline.job("odd", key=("id",), where="length(v) % 2 = 1")
    first, second = pipeline.run(plain, odd)
    assert (first.error_msg, second.error_msg, len(starts)) == ("", "", 1)
    pipeline.upsert([1, 2, ROWS + 1], "longer")
    pipeline.delete("id = 3")
    assert [each.error_msg for each in pipeline.run(plain, odd)] == ["", ""]
    pipeline.assert_equal("plain")
    pipeline.assert_equal("odd", lambda row: len(row["v"]) % 2 == 1)
    assert len(starts) == 1
