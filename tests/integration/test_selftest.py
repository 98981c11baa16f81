"""The node's self-test of put-if-absent, in a real Spark beside a real delta-rs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from iscp.delta.selftest.self_test import LOCAL, ON_S3, ROUNDS, SelfTestError, self_test
from iscp.model.values.errors import StorageError
from iscp.spark.jvm_launch import LOG_STORE
from iscp.spark.session import SparkRuntime
from iscp.storage.files import names
from iscp.system.http_exchange import free_port
from tests.fakes.s3 import SECRET, FakeS3, asking, s3_server

log = logging.getLogger(__name__)

DELTA_DEFAULT = "io.delta.storage.HDFSLogStore"


@pytest.mark.spark
def test_a_node_proves_its_path_and_leaves_nothing(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    report = self_test(spark_runtime.root, f"{tmp_path}/not/there/yet", field="target")
    again = self_test(spark_runtime.root, f"{tmp_path}/table", field="target")
    log.info("self-tests took %.2f and %.2f s; %s, %s", report.took_s, again.took_s, report.wins, again.wins)
    assert sum(report.wins.values()) == sum(again.wins.values()) == ROUNDS
    assert report.directory == str(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.spark
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    with pytest.raises(SelfTestError) as failed:
        self_test(spark_runtime.root, "/proc/table", field="jobs.target")
    assert failed.value.field == "jobs.target"


@pytest.mark.spark
def test_delta_default_log_store_is_refused(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """The setting is one of the SparkContext: it is changed there, as [spark.conf] would have it."""
    conf: Any = spark_runtime.root._jsc.sc().conf()
    conf.set("spark.delta.logStore.file.impl", DELTA_DEFAULT)
    try:
        with pytest.raises(SelfTestError) as failed:
            self_test(spark_runtime.root, f"{tmp_path}/table", field="target")
    finally:
        conf.set("spark.delta.logStore.file.impl", LOG_STORE)
    assert failed.value.field == LOCAL.field
    assert LOG_STORE in failed.value.remedy
    assert os.listdir(tmp_path) == []


@pytest.mark.further  # each time: a path above, and a store that ignores conditions below
@pytest.mark.spark
def test_a_bucket_is_tried_like_a_path(s3: FakeS3, spark_runtime: SparkRuntime) -> None:
    for bucket in ("lake", "acme"):  # which a key of its own reaches
        report = self_test(spark_runtime.root, s3.uri("derived/table", bucket), field="target")
        log.info("self-test on S3 took %.2f s; %s", report.took_s, report.wins)
        assert sum(report.wins.values()) == ROUNDS
        assert report.directory == s3.uri("derived", bucket)
        assert names(s3.uri("derived", bucket)) == []
    with pytest.raises(StorageError, match=r"403|denied") as refused:
        self_test(spark_runtime.root, s3.uri("table", "stray"), field="target")
    assert SECRET not in str(refused.value)
    with pytest.raises(StorageError, match="nobodys"):
        self_test(spark_runtime.root, "s3://nobodys/table", field="target")


@pytest.mark.spark
def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """Spark is led to it by a setting of the bucket, delta-rs by the environment."""
    naive = FakeS3(free_port(), bucket="naive")
    spark_runtime.root._jsc.hadoopConfiguration().set("fs.s3a.bucket.naive.endpoint", naive.config.endpoint)
    with (
        s3_server(tmp_path / "log", naive, fault="ignore-conditions"),
        asking(naive),
        pytest.raises(SelfTestError) as failed,
    ):
        self_test(spark_runtime.root, naive.uri("table"), field="storage.self_test.0")
    assert failed.value.field == "storage.self_test.0"
    assert failed.value.remedy == ON_S3.remedy
    assert "was overwritten by another" in failed.value.message
