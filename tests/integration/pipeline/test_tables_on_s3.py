"""Source and targets on S3, in buckets with keys of their own: the iterations are those on local paths, with the same
promises.
"""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.store import from_url

from iscp.delta.log.table_opening import open_delta
from iscp.model.job.iteration import DataType
from iscp.spark.session import SparkRuntime
from iscp.storage import files
from iscp.storage.s3_settings import table_options
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.s3 import FakeS3

from .conftest import Pipeline
from .test_builds import Cluster

pytestmark = pytest.mark.spark


def test_a_snapshot_an_append_and_a_merge_that_two_try(s3: FakeS3, spark_runtime: SparkRuntime) -> None:
    pipeline = Pipeline(s3.uri("pipeline", "acme"), spark_runtime)
    job = pipeline.job("full", key=("id",), columns=("id", "g"), where="g < 3")
    built = pipeline.run(job)
    assert [(each.error_code, each.data_type) for each in built] == [(0, DataType.SNAPSHOT)]

    def assert_equal() -> None:
        pipeline.assert_equal("full", keeps=lambda row: row["g"] < 3, columns=("id", "g"))

    assert_equal()
    pipeline.insert(range(100, 110))
    assert pipeline.run(job)[0].ok
    assert_equal()

    pipeline.upsert(range(40, 60), "changed")
    pipeline.delete("id < 5")
    other = pipeline.new_runner(ScriptedFailpoints())
    pipeline.failpoints.once("commit.before", lambda: pipeline.run(job, runner=other))
    assert pipeline.run(job)[0].ok
    assert_equal()
    seqs = [commit.seq for commit in pipeline.commits("full") if commit.seq]
    assert seqs == sorted(set(seqs)), "a seq was committed twice"

    target = pipeline.target("full")
    assert [each for each in files.names(f"{target}/_delta_log") if not each.endswith((".json", ".crc"))] == []
    staged = next(name for name in folders(target) if name.startswith("iscp-staged"))
    assert files.names(f"{target}/{staged}/_delta_log") == [], "what lies below is no table of its own"


def folders(uri: str) -> list[str]:
    """The folders right below a place on S3."""
    own: Any = table_options(uri)
    listed = obstore.list_with_delimiter(from_url(uri, config=own))
    return [prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]]


@pytest.mark.further  # each time: a snapshot above, and test_builds.py
def test_a_build_by_ranges(s3: FakeS3, spark_runtime: SparkRuntime) -> None:
    pipeline = Pipeline(s3.uri("builds", "other"), spark_runtime, 0)
    for start in range(100, 160, 20):
        pipeline.insert(range(start, start + 20))
    driver = Cluster(pipeline).driver(pipeline.job("keyed", key=("id",)), pipeline.job("bare", where="g < 3"))
    driver.iterate()
    driver.split(driver.waiting[0])
    pipeline.upsert(range(5), "later")
    frozen_at = open_delta(pipeline.source, 3).to_pyarrow_table()
    driver.finish()
    pipeline.assert_holds("keyed", frozen_at)
    assert [row.watermark.version for row in driver.rows] == [3, 3]
