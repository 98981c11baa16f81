"""A file that is gone, damaged, or of types that Spark does not read: one error, whatever comes upon it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from iscp.model.settings.config import BuildConfig
from iscp.model.values.errors import ErrorCode
from tests.integration.pipeline.conftest import BY_SPARK, SPARK_IN_FULL, Pipeline, rows
from tests.integration.pipeline.test_builds import Cluster
from tests.selection import in_full

pytestmark = pytest.mark.spark

MESSAGE_LENGTH_MAX = 1_500


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


def only_file(pipeline: Pipeline, version: int) -> Path:
    lines = Path(pipeline.source, "_delta_log", f"{version:020d}.json").read_text().splitlines()
    (added,) = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    return Path(pipeline.source, added)


@SPARK_IN_FULL
@pytest.mark.parametrize("key", in_full([("id",), ()]), ids=["keyed", "without key"])
@pytest.mark.parametrize("version", [0, 1], ids=["snapshot", "tail"])
@pytest.mark.parametrize("damage", [Path.unlink, _cut], ids=["gone", "cut"])
def test_a_file_that_is_gone_or_damaged(
    pipeline: Pipeline, key: tuple[str, ...], version: int, damage: Callable[[Path], None]
) -> None:
    job = pipeline.job("j", key=key)
    if version:
        (built,) = pipeline.build(job)
        assert built.ok
        pipeline.insert([100])
    file = only_file(pipeline, version)
    content = file.read_bytes()
    damage(file)
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.FILE_LOST, outcome.error_msg
    assert outcome.error_msg.startswith((f"{file} is not there", f"{file} cannot be read"))
    assert len(outcome.error_msg) < MESSAGE_LENGTH_MAX
    assert "\n" not in outcome.error_msg
    file.write_bytes(content)
    (after,) = pipeline.run(job)
    assert after.ok, after.error_msg
    pipeline.assert_equal("j")


def _in_nanoseconds(file: Path) -> None:
    """As pandas writes times where nobody has it do otherwise."""
    held = pq.read_table(file)
    at = pa.array(range(len(held)), pa.int64()).cast(pa.timestamp("ns", tz="UTC"))
    pq.write_table(held.set_column(held.schema.get_field_index("at"), "at", at), file, version="2.6")


@SPARK_IN_FULL
@pytest.mark.parametrize("key", in_full([("id",), ()]), ids=["keyed", "without key"])
@pytest.mark.parametrize("version", [0, 1], ids=["snapshot", "tail"])
def test_times_that_spark_does_not_read_stop_a_job_for_good_with_their_column(
    pipeline: Pipeline, key: tuple[str, ...], version: int
) -> None:
    at = pa.array([1, 2], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    write_deltalake(pipeline.source, rows([1, 2]).append_column("at", at), mode="overwrite", schema_mode="overwrite")
    job = pipeline.job("j", key=key)
    if version:
        assert pipeline.run(job)[0].ok
        write_deltalake(pipeline.source, rows([3, 4]).append_column("at", at), mode="append")
    file = only_file(pipeline, 1 + version)
    content = file.read_bytes()
    _in_nanoseconds(file)
    _rewrite_size(pipeline, file, 1 + version)
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.TABLE_UNREADABLE, outcome.error_msg
    assert outcome.error_msg.startswith(f"{file} has times in nanoseconds in the column at, which Spark does not read")
    assert "microseconds" in outcome.error_msg
    file.write_bytes(content)
    _rewrite_size(pipeline, file, 1 + version)
    assert pipeline.run(job)[0].ok
    pipeline.assert_holds("j", pipeline.source_by_spark())


@BY_SPARK
def test_a_build_by_ranges_of_what_spark_does_not_read_is_reported_by_its_job(pipeline: Pipeline) -> None:
    at = pa.array([1, 2], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    write_deltalake(pipeline.source, rows([1, 2]).append_column("at", at), mode="overwrite", schema_mode="overwrite")
    file = only_file(pipeline, 1)
    _in_nanoseconds(file)
    _rewrite_size(pipeline, file, 1)
    driver = Cluster(pipeline, BuildConfig(table_bytes_min=1, range_bytes=100_000)).driver(pipeline.job("j"))
    (waits,) = driver.iterate()
    assert waits.build is not None
    assert driver.work(driver.waiting[0]) is None
    (outcome,) = driver.iterate()
    assert (outcome.build, outcome.error_code) == (None, ErrorCode.TABLE_UNREADABLE)
    assert "times in nanoseconds in the column at" in outcome.error_msg


def _rewrite_size(pipeline: Pipeline, file: Path, version: int) -> None:
    log = Path(pipeline.source, "_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["size"] = file.stat().st_size
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
