"""Buckets that their own key alone reaches: Spark and deltalake both go with it, and no other key is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.log.table_opening import open_delta
from iscp.engine.account_turns import PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.job.iteration import Bounds, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.values.errors import ErrorCode, IscpError, StorageError
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_errors import spark_faults
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults
from iscp.storage.locations import followed_places, followed_root
from iscp.storage.s3_settings import table_options
from tests.fakes.s3 import SECRET, FakeS3

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark


def run_below(root: str, pipeline: Pipeline, job: JobRow) -> JobOutcome:
    """The job, of an account that is held to this root."""
    guard = PlaceGuard(AccountRoots({job.key.account: (root,)}), followed_places, followed_root)
    ports = replace(pipeline.new_ports(pipeline.failpoints), require_places=guard.require_job)
    (outcome,) = pipeline.run(job, runner=Runner(ports, Bounds()))
    return outcome


@pytest.mark.further  # each time: a replica in test_tables_on_s3.py, and what Spark reads below
@pytest.mark.parametrize(("bucket", "direct_bytes_max"), [("other", 0), ("acme", 0), ("acme", DIRECT_BYTES_MAX)])
def test_a_replica_within_an_accounts_bucket(
    s3: FakeS3, spark_runtime: SparkRuntime, bucket: str, direct_bytes_max: int
) -> None:
    pipeline = Pipeline(s3.uri(f"{bucket}-{direct_bytes_max}", bucket), spark_runtime, direct_bytes_max)
    job = pipeline.job("copy")  # merges by Spark: test_a_build_by_ranges of test_tables_on_s3.py
    assert run_below(f"s3://{bucket}", pipeline, job).error_msg == ""
    pipeline.insert(range(100, 110))
    assert run_below(f"s3://{bucket}", pipeline, job).error_msg == ""
    pipeline.assert_equal("copy")
    refused = run_below("s3://lake", pipeline, job)
    assert refused.error_code is ErrorCode.OUTSIDE_ROOTS, "the node has the key, and the account may not use it"


@pytest.mark.parametrize("bucket", ["acme", "other"])
def test_spark_reads_what_lies_in_a_bucket(s3: FakeS3, spark_runtime: SparkRuntime, bucket: str) -> None:
    uri = s3.uri("read", bucket)
    write_deltalake(uri, rows(range(3)), storage_options=table_options(uri))
    assert spark_runtime.root.read.format("delta").load(uri).count() == 3


def test_another_buckets_key_is_refused_whoever_shows_it(
    s3: FakeS3, spark_runtime: SparkRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of `stray` has the key of `acme`; the environment's key reaches neither."""
    uri = s3.uri("stray/table", "stray")
    with pytest.raises(StorageError) as by_deltalake, delta_faults(f"open {uri}"):
        open_delta(uri)
    with pytest.raises(OSError, match=r"403|privileges") as by_files:
        files.read(f"{uri}/x")
    with pytest.raises(IscpError) as by_spark, spark_faults(f"read {uri}"):
        spark_runtime.root.read.format("delta").load(uri).count()
    for refused in (by_deltalake, by_files, by_spark):
        assert any(sign in str(refused.value) for sign in ("403", "Forbidden", "denied", "privileges")), refused.value
        assert SECRET not in repr(refused.getrepr(style="long", showlocals=False))
    with pytest.raises(OSError, match="403 Forbidden"):
        DeltaTable(s3.uri("acme/table", "acme"))
    assert SECRET not in caplog.text


def test_spark_shows_no_secret_of_a_bucket(spark_runtime: SparkRuntime) -> None:
    set_there = dict(spark_runtime.root.sparkContext.getConf().getAll())
    secret = {name for name, value in set_there.items() if SECRET in value}
    assert len(secret) == 4, "three keys and a token"
    shown = dict(map(tuple, spark_runtime.root.sql("SET").collect()))
    assert secret <= shown.keys()
    assert not any(SECRET in value for value in shown.values())
