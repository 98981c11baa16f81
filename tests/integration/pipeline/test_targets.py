"""A target recovers from what others do to it: RESTORE, overwrite, foreign rows, OPTIMIZE, VACUUM, removal."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from iscp.delta.log.table_opening import COMMITS
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.values.errors import InvalidRequest
from tests.selection import in_full

from .conftest import BY_SPARK, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark


def restored(uri: str) -> None:
    DeltaTable(uri).restore(2)


def overwritten(uri: str) -> None:
    write_deltalake(uri, rows(range(1000, 1010), "foreign"), mode="overwrite")


def replaced_with_another_schema(uri: str) -> None:
    table = rows(range(3)).append_column("extra", [["e"] * 3])
    write_deltalake(uri, table, mode="overwrite", schema_mode="overwrite")


def written_to(uri: str) -> None:
    write_deltalake(uri, rows(range(2000, 2005), "foreign"), mode="append")


def written_twice_the_same_key(uri: str) -> None:
    write_deltalake(uri, rows([1, 1, 1], "foreign"), mode="append")


def deleted_from(uri: str) -> None:
    DeltaTable(uri).delete("id < 20")


def removed(uri: str) -> None:
    shutil.rmtree(uri)


@pytest.mark.parametrize("keyed", in_full([True, False]), ids=["keyed", "append-only"])
@pytest.mark.parametrize(
    "event",
    in_full(
        [
            restored,
            overwritten,
            replaced_with_another_schema,
            written_to,
            written_twice_the_same_key,
            deleted_from,
            removed,
        ],
        but=[restored, written_twice_the_same_key, removed],
    ),
)
def test_a_target_that_was_changed_by_others_comes_out_equal(
    pipeline: Pipeline, event: Callable[[str], None], keyed: bool
) -> None:
    job = pipeline.job("target", key=("id",) if keyed else ())
    for step in range(3):
        outcome = (pipeline.run if step else pipeline.build)(job)[0]
        job = job._replace(seq=outcome.seq, watermark=outcome.watermark)
        pipeline.insert(range(100 + step * 10, 110 + step * 10))
    event(pipeline.target("target"))
    outcome = pipeline.run(job)[0]
    assert outcome.error_code == 0, outcome.error_msg
    foreign: dict[Callable[[str], None], int] = {overwritten: 10, written_to: 5, written_twice_the_same_key: 3}
    kept = 0 if keyed else foreign.get(event, 0)  # an archive loses no row, whoever wrote it
    assert_all_there(pipeline, besides=kept)
    # From now on it is an ordinary target again.
    pipeline.insert(range(500, 510))
    assert pipeline.run(job)[0].data_type is DataType.TAIL
    assert_all_there(pipeline, besides=kept)


def assert_all_there(pipeline: Pipeline, besides: int) -> None:
    """The target has each row of the source as often as it, and so many others."""
    source = DeltaTable(pipeline.source).to_pyarrow_table()
    target = DeltaTable(pipeline.target("target")).to_pyarrow_table()
    wanted, found = (
        Counter(tuple(row[name] for name in ("id", "v", "g")) for row in table.to_pylist())
        for table in (source, target)
    )
    assert not wanted - found
    assert (found - wanted).total() == besides


def test_another_node_sees_what_was_done_to_the_target(pipeline: Pipeline) -> None:
    """A runner without a memory of the sink finds the same faults in its log."""
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.insert(range(100, 110))
    pipeline.run(job)
    written_to(pipeline.target("target"))
    other = pipeline.new_runner(pipeline.failpoints)
    assert pipeline.run(job, runner=other)[0].data_type is DataType.DIFFERENCE
    pipeline.assert_equal("target")


def test_optimize_and_vacuum_of_the_target_cost_nothing(pipeline: Pipeline) -> None:
    job = pipeline.job("target", key=("id",))
    for step in range(3):
        (pipeline.run if step else pipeline.build)(job)
        pipeline.insert(range(100 + step * 10, 110 + step * 10))
    target = DeltaTable(pipeline.target("target"))
    target.optimize.compact()
    target.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert pipeline.run(job)[0].data_type is DataType.TAIL
    pipeline.assert_equal("target")


@pytest.mark.parametrize("row_knows", [True, False], ids=["log-row-equal", "log-row-behind"])
def test_a_target_whose_log_was_cleaned(pipeline: Pipeline, row_knows: bool) -> None:
    """Our commit is gone from the log, and with it what others did since: by the job log's row, if it has the same seq,
    the rows are compared, otherwise there is a new snapshot.
    """
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.insert(range(100, 110))
    outcome = pipeline.run(job)[0]
    known = job._replace(seq=outcome.seq, watermark=outcome.watermark) if row_knows else job
    uri = pipeline.target("target")
    write_deltalake(uri, rows(range(3), "foreign"), mode="append")
    write_deltalake(uri, rows([], ""), mode="append")  # a commit after these, so that they can be cleaned away
    DeltaTable(uri).create_checkpoint()
    newest = DeltaTable(uri).version()
    for version in range(newest):
        os.remove(f"{uri}/_delta_log/{version:020d}.json")
    pipeline.upsert(range(5), "after")
    outcome = pipeline.run(known, runner=pipeline.new_runner(pipeline.failpoints))[0]
    assert outcome.error_code == 0, outcome.error_msg
    assert outcome.data_type is (DataType.DIFFERENCE if row_knows else DataType.SNAPSHOT)
    pipeline.assert_equal("target")


def cleaned(uri: str) -> None:
    """As far as Delta ever does: the newest commit stays."""
    DeltaTable(uri).create_checkpoint()
    for version in range(DeltaTable(uri).version()):
        Path(uri, "_delta_log", f"{version:020d}.json").unlink(missing_ok=True)


@pytest.mark.parametrize("looks", [True, False], ids=["renewed", "not looked at"])
def test_an_idle_target_that_is_probed_now_and_then_outlives_its_log(pipeline: Pipeline, looks: bool) -> None:
    """OPTIMIZE by others, and the log cleaned up to that: whoever looked in between has recorded its position again."""
    job, uri = pipeline.job("target", key=("id",)), pipeline.target("target")
    first = pipeline.build(job)[0]
    job = job._replace(seq=first.seq, watermark=first.watermark)
    before = DeltaTable(uri).version()
    assert pipeline.run(job)[0].seq == first.seq
    assert DeltaTable(uri).version() == before, "nobody has committed since, and nothing can be lost"
    for number in range(3):
        pipeline.insert([1000 + number])
        job = job._replace(seq=(done := pipeline.run(job)[0]).seq, watermark=done.watermark)
    DeltaTable(uri).optimize.compact()
    if looks:
        pipeline.delete("id < 0")  # a commit of the source without a row
        still = pipeline.run(job)[0]
        assert (still.error_msg, still.seq, still.committed) == ("", job.seq + 1, True)
        job = job._replace(seq=still.seq, watermark=still.watermark)
        assert pipeline.run(job)[0].seq == job.seq, "once is enough"
    cleaned(uri)
    pipeline.upsert(range(5), "after")
    outcome = pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))[0]
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.TAIL if looks else DataType.DIFFERENCE)
    pipeline.assert_equal("target")


@pytest.mark.parametrize(
    ("name", "value", "commits"), [("columnMapping.mode", "name", 0), ("enableDeletionVectors", "true", 1)]
)
def test_a_target_that_others_have_altered_is_claimed_again_or_left_as_it_is(
    pipeline: Pipeline, name: str, value: str, commits: int
) -> None:
    """By deltalake, which knows deletion vectors, and adds nothing here; of other features it commits to none."""
    job, uri = pipeline.job("target", key=("id",)), pipeline.target("target")
    first = pipeline.build(job)[0]
    pipeline.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.{name}' = '{value}')")
    still = pipeline.run(job)[0]
    assert (still.error_msg, still.seq) == ("", first.seq + commits)
    pipeline.upsert(range(3), "after")
    job = job._replace(seq=still.seq, watermark=still.watermark)
    assert pipeline.run(job)[0].error_msg == ""
    source, target = (
        pa.table(QueryBuilder().register("t", DeltaTable(each)).execute("SELECT * FROM t").read_all()).to_pylist()
        for each in (pipeline.source, uri)
    )
    assert sorted(map(repr, source)) == sorted(map(repr, target))


@SPARK_IN_FULL
def test_rows_that_somebody_doubles_go_each_time(pipeline: Pipeline) -> None:
    """Each comparison finds its own rows, and is not given those that the one before found."""
    job, uri = pipeline.job("target", key=("id",)), pipeline.target("target")
    pipeline.build(job)
    for number in range(3):
        write_deltalake(uri, rows(range(10 * number, 10 * number + 5)), mode="append")
        outcome = pipeline.run(job)[0]
        assert (outcome.error_msg, outcome.data_type) == ("", DataType.DIFFERENCE)
        pipeline.assert_equal("target")


def test_a_target_with_rows_of_somebody_else_is_refused(pipeline: Pipeline) -> None:
    write_deltalake(pipeline.target("target"), rows(range(3)))
    with pytest.raises(InvalidRequest, match="rows that iscp did not write"):
        pipeline.job("target", key=("id",))


def test_a_target_that_expires_transactions_is_refused(pipeline: Pipeline) -> None:
    retention = {"delta.setTransactionRetentionDuration": "interval 1 hours"}
    DeltaTable.create(pipeline.target("target"), schema=DeltaTable(pipeline.source).schema(), configuration=retention)
    with pytest.raises(InvalidRequest, match="expires transaction ids"):
        pipeline.job("target", key=("id",))


@BY_SPARK
def test_a_checkpoint_is_made_by_the_tenth_commit_when_that_was_reported_of(pipeline: Pipeline) -> None:
    """Delta would make its checkpoint as part of the commit, and takes seconds."""
    job, log = pipeline.job("full", key=("id",)), Path(pipeline.target("full"), "_delta_log")
    told: list[tuple[int, int]] = []

    def tell(outcome: JobOutcome) -> None:
        told.append((DeltaTable(pipeline.target("full")).version(), len(list(log.glob("*.checkpoint.parquet")))))

    directly, by_spark = (
        pipeline.new_runner(pipeline.failpoints, small_bytes_max=most, on_committed=tell) for most in (10**6, -1)
    )
    for number in range(11):
        pipeline.insert([1000 + number])
        assert pipeline.run(job, runner=by_spark if number in (0, 8, 9, 10) else directly)[0].ok
    assert [made for version, made in told if version <= COMMITS] == [0] * (len(told) - 1)
    assert told[-1] == (COMMITS + 1, 1)
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == COMMITS
    pipeline.assert_equal_by_spark("full")
