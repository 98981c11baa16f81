"""What a deployment sets for new tables in Spark's settings does not reach what iscp stages, and so publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.spark.session import SparkRuntime
from tests.selection import in_full

from .conftest import Pipeline

pytestmark = pytest.mark.spark

DEFAULTS = "spark.databricks.delta.properties.defaults."
SETTINGS = {
    "column mapping by name": {f"{DEFAULTS}columnMapping.mode": "name"},
    "column mapping by id": {f"{DEFAULTS}columnMapping.mode": "id"},
    "times in commits": {f"{DEFAULTS}enableInCommitTimestamps": "true"},
    "row tracking": {f"{DEFAULTS}enableRowTracking": "true"},
    "deletion vectors": {f"{DEFAULTS}enableDeletionVectors": "true"},
    "checkpoints of version 2": {f"{DEFAULTS}checkpointPolicy": "v2"},
    "append-only": {f"{DEFAULTS}appendOnly": "true"},
    "type widening": {f"{DEFAULTS}enableTypeWidening": "true"},
    "old versions": {f"{DEFAULTS}minReaderVersion": "2", f"{DEFAULTS}minWriterVersion": "6"},
    "table features": {f"{DEFAULTS}minReaderVersion": "3", f"{DEFAULTS}minWriterVersion": "7"},
    "features by name": {
        f"{DEFAULTS}feature.{name}": "supported"
        for name in ("columnMapping", "deletionVectors", "clustering", "domainMetadata")
    },
    "change data feed": {f"{DEFAULTS}enableChangeDataFeed": "true"},
    "columns without statistics": {f"{DEFAULTS}dataSkippingNumIndexedCols": "0"},
    "random file names": {f"{DEFAULTS}randomizeFilePrefixes": "true"},
    "expiring transactions": {f"{DEFAULTS}setTransactionRetentionDuration": "interval 1 hours"},
    "no statistics": {"spark.databricks.delta.stats.collect": "false"},
    "dynamic overwrite": {"spark.sql.sources.partitionOverwriteMode": "dynamic"},
    "compaction": {"spark.databricks.delta.autoCompact.enabled": "true"},
}

_APART = ("column mapping by id", "old versions", "append-only")
TOGETHER = {
    "many at once": {name: value for each in SETTINGS if each not in _APART for name, value in SETTINGS[each].items()},
    "append-only": SETTINGS["append-only"],
}
"""As little as finds each of the faults; the long tests try them one by one."""


@pytest.fixture
def defaults(request: pytest.FixtureRequest, spark_runtime: SparkRuntime) -> Iterator[None]:
    """As `spark.conf` would set them for a node: every session begins with them."""
    conf = spark_runtime.root._jsparkSession.sharedState().conf()
    for name, value in request.param.items():
        conf.set(name, value)
    yield
    for name in request.param:
        conf.remove(name)


@pytest.mark.further  # each time: altered targets in test_targets.py
@pytest.mark.parametrize("defaults", in_full(TOGETHER.values()), ids=TOGETHER, indirect=True)
def test_a_targets_rows_are_those_of_its_source(tmp_path: Path, defaults: None, spark_runtime: SparkRuntime) -> None:
    play(tmp_path, spark_runtime)


@pytest.mark.full
@pytest.mark.parametrize("defaults", SETTINGS.values(), ids=SETTINGS, indirect=True)
def test_whatever_is_set(tmp_path: Path, defaults: None, spark_runtime: SparkRuntime) -> None:
    play(tmp_path, spark_runtime)


def play(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """A snapshot, changes by Spark, rows that share a key, a replacement with new columns, and all that once more."""
    pipeline = Pipeline(tmp_path, spark_runtime, 0)
    job = pipeline.job("target", key=("id",))
    assert pipeline.run(job)[0].error_msg == ""
    pipeline.assert_equal("target")
    pipeline.upsert(range(40, 60), "changed")
    assert pipeline.run(job)[0].error_msg == ""
    pipeline.assert_equal("target")
    pipeline.insert([7])
    outcome = pipeline.run(job)[0]
    assert (outcome.error_msg, outcome.dead_letters) == ("", 2)
    pipeline.assert_equal("target", lambda row: row["id"] != 7)
    letters = DeltaTable(pipeline.target("target_dead_letter")).to_pyarrow_table()
    assert letters["id"].to_pylist() == [7, 7]
    pipeline.delete("id = 7")
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (more STRING)")
    pipeline.sql("UPDATE SOURCE SET more = 'm'")
    assert pipeline.run(job)[0].error_msg == ""
    pipeline.assert_equal("target", columns=("id", "v", "g", "more"))
    pipeline.assert_equal_by_spark("target")
    again = pipeline.run(pipeline.job("target", 2, key=("id",), where="id < 30"))[0]
    assert again.error_msg == ""
    pipeline.assert_equal("target", lambda row: int(str(row["id"])) < 30, columns=("id", "v", "g", "more"))
