"""One iteration after another over a real source into real sinks: what a job has equals a recomputation."""

from __future__ import annotations

import shutil
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import Bounds, DataType
from iscp.model.spec.spec import OnDuplicate
from iscp.model.values.errors import ErrorCode

from .conftest import BOTH_WAYS, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark


@BOTH_WAYS
def test_snapshot_then_tail_with_columns_and_filter(pipeline: Pipeline) -> None:
    full = pipeline.job("full", key=("id",))
    part = pipeline.job("part", key=("id",), columns=("id", "v"), where="g <> 3 AND v <> 'gone'")

    def equal() -> None:
        pipeline.assert_equal("full")
        pipeline.assert_equal("part", lambda row: row["g"] != 3 and row["v"] != "gone", ("id", "v"))

    first = pipeline.run(full, part)
    assert [(o.data_type, o.watermark.version, o.seq) for o in first] == [(DataType.SNAPSHOT, 0, 2)] * 2
    equal()

    pipeline.upsert(range(40, 60), "changed")
    pipeline.upsert([1, 2], "gone")  # the filter now refuses rows that the target holds
    pipeline.delete("id = 5")
    pipeline.upsert([5], "back")  # deleted and inserted again within one range
    tail = pipeline.run(full, part)
    assert [(o.data_type, o.watermark.version, o.seq, o.error_code) for o in tail] == [(DataType.TAIL, 4, 3, 0)] * 2
    equal()


def test_net_inserts_are_appended_without_a_merge(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    pipeline.insert(range(100, 120))
    pipeline.run(job)
    pipeline.assert_equal("full")
    assert pipeline.commits("full")[-1].operation == "WRITE"


def test_append_only_keeps_every_row_ever_inserted(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    pipeline.insert(range(100, 110))
    pipeline.insert(range(110, 120))
    outcome = pipeline.run(job)[0]
    assert (outcome.data_type, outcome.rows) == (DataType.TAIL, 20)
    pipeline.assert_equal("log")


def test_a_commit_without_rows_moves_only_the_watermark(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    pipeline.insert(range(100, 110))
    pipeline.run(job)
    before = len(pipeline.commits("full"))
    DeltaTable(pipeline.source).optimize.compact()
    outcome = pipeline.run(job)[0]
    assert (outcome.watermark.version, len(pipeline.commits("full"))) == (2, before)


def test_bounds_cut_a_long_range_and_the_rest_follows(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    runner = pipeline.new_runner(pipeline.failpoints, Bounds(versions_max=2))
    pipeline.build(job)
    for start in (100, 110, 120, 130, 140):
        pipeline.insert(range(start, start + 10))
    reached = [pipeline.run(job, runner=runner)[0].watermark.version for _ in range(3)]
    assert reached == [2, 4, 5]
    pipeline.assert_equal("full")


def test_null_keys_are_matched_and_not_doubled(pipeline: Pipeline) -> None:
    import pyarrow as pa

    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    null_row = pa.table({"id": pa.array([None], pa.int64()), "v": ["a"], "g": pa.array([1], pa.int64())})
    write_deltalake(pipeline.source, null_row, mode="append")
    pipeline.run(job)
    DeltaTable(pipeline.source).update({"v": "'b'"}, predicate="id IS NULL")
    pipeline.run(job)
    pipeline.assert_equal("full")


def test_rows_that_share_a_key_are_refused_by_name(pipeline: Pipeline) -> None:
    write_deltalake(pipeline.source, DeltaTable(pipeline.source).to_pyarrow_table().slice(0, 1), mode="append")
    outcome = pipeline.run(pipeline.job("full", key=("id",), policies={"on_duplicate": OnDuplicate.STOP}))[0]
    assert outcome.error_code == ErrorCode.DUPLICATE_KEY
    assert "key" in outcome.error_msg
    assert "unique" in outcome.error_msg


def test_a_source_without_change_data_feed_is_followed_by_difference(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    DeltaTable(pipeline.source).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    DeltaTable(pipeline.source).update({"v": "'unseen'"}, predicate="id < 10")
    outcome = pipeline.run(job)[0]
    assert (outcome.error_code, outcome.data_type) == (0, DataType.DIFFERENCE)
    pipeline.assert_equal("full")


def test_a_fault_of_one_job_does_not_hold_up_the_other(pipeline: Pipeline) -> None:
    good, bad = pipeline.job("good", key=("id",)), pipeline.job("bad", key=("id",))
    pipeline.build(good, bad)
    pipeline.upsert([1], "changed")
    Path(pipeline.root, "bad", "_delta_log", "00000000000000000002.json").write_text("not json")
    outcomes = pipeline.run(good, bad)
    assert outcomes[0].ok
    assert not outcomes[1].ok
    pipeline.assert_equal("good")


@pytest.mark.further  # each time: test_schema_histories.py
def test_a_column_that_is_added_or_lost_is_followed(pipeline: Pipeline) -> None:
    job, chosen = pipeline.job("full", key=("id",)), pipeline.job("chosen", key=("id",), columns=("id", "v"))
    pipeline.build(job, chosen)
    table = rows(range(100, 110)).append_column("extra", [["e"] * 10])
    write_deltalake(pipeline.source, table, mode="append", schema_mode="merge")
    outcomes = pipeline.run(job, chosen)
    assert [o.error_code for o in outcomes] == [0, 0], [o.error_msg for o in outcomes]
    pipeline.assert_equal("full", columns=("id", "v", "g", "extra"))
    pipeline.assert_equal("chosen", columns=("id", "v"))
    assert outcomes[1].data_type is DataType.TAIL, "a job that does not want the column is not disturbed"
    write_deltalake(pipeline.source, rows(range(20)), mode="overwrite", schema_mode="overwrite")
    assert [o.error_code for o in pipeline.run(job, chosen)] == [0, 0]
    pipeline.assert_equal("full")
    pipeline.assert_equal("chosen", columns=("id", "v"))


def test_a_source_restored_from_a_backup_and_written_on_is_not_taken_for_the_log_it_was(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    backup = shutil.copytree(pipeline.source, tmp_path / "backup")
    pipeline.insert([500], "lost with the restore")
    pipeline.run(job)
    shutil.rmtree(pipeline.source)
    shutil.copytree(backup, pipeline.source)
    pipeline.insert([600])
    pipeline.insert([700])
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.data_type) == (0, DataType.DIFFERENCE), outcome.error_msg
    pipeline.assert_equal("full")
    pipeline.insert([800])
    assert pipeline.run(job)[0].data_type is DataType.TAIL
    pipeline.assert_equal("full")


@pytest.mark.further  # each time: tests/integration/test_net_by_spark.py
def test_large_changes_are_reduced_by_spark_to_the_same(pipeline: Pipeline) -> None:
    """The way for ranges that do not fit this process, on the same history as the small one."""
    small, large = pipeline.job("small", key=("id",)), pipeline.job("large", key=("id",))
    by_spark = pipeline.new_runner(pipeline.failpoints, small_bytes_max=-1)
    pipeline.build(small)
    pipeline.run(large, runner=by_spark)
    pipeline.upsert(range(40, 60), "changed")
    pipeline.delete("id = 5 OR id = 6")
    pipeline.upsert([5], "back")
    outcomes = [pipeline.run(small)[0], pipeline.run(large, runner=by_spark)[0]]
    pipeline.insert(range(200, 220))
    outcomes += [pipeline.run(small)[0], pipeline.run(large, runner=by_spark)[0]]
    assert [(o.error_code, o.rows) for o in outcomes] == [(0, 22), (0, 22), (0, 20), (0, 20)]
    pipeline.assert_equal("small")
    pipeline.assert_equal("large")


@SPARK_IN_FULL
@pytest.mark.slow
def test_types_that_are_easily_taken_for_others_are_followed_by_changes(pipeline: Pipeline) -> None:
    """Times without a zone, and decimals with more digits than a double has, in keys too: no comparison, no double."""
    pipeline.source = f"{pipeline.root}/typed"
    long = [Decimal("123456789012345.67"), Decimal("123456789012345.68")]

    def typed(decimals: list[Decimal], year: int) -> pa.Table:
        at = pa.array([datetime(year, 1, 1)] * len(decimals), pa.timestamp("us"))
        return pa.table({"d": pa.array(decimals, pa.decimal128(18, 2)), "at": at})

    write_deltalake(pipeline.source, typed(long[:1], 2001), configuration={"delta.enableChangeDataFeed": "true"})
    keyed, appended = pipeline.job("keyed", key=("d",)), pipeline.job("appended")
    pipeline.run(keyed, appended)
    write_deltalake(pipeline.source, typed(long[1:], 2002), mode="append")
    for statement in ("UPDATE SOURCE SET at = at + INTERVAL 1 DAY WHERE d > 1", "DELETE FROM SOURCE WHERE d = {}"):
        assert {outcome.data_type for outcome in pipeline.run(keyed, appended)} == {DataType.TAIL}
        pipeline.assert_equal("keyed", columns=("d", "at"))
        pipeline.sql(statement.format(long[0]))
    assert pipeline.run(keyed)[0].data_type is DataType.TAIL
    pipeline.assert_equal("keyed", columns=("d", "at"))
    assert DeltaTable(pipeline.target("appended")).count() == 2 + 2, "each updated row is a new one"
