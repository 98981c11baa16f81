"""What a small target lacks, or has too much, is found and merged without Spark, and comes out as by Spark."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import OnSchemaChange
from tests.selection import in_full

from .conftest import BOTH_WAYS, DIRECTLY, Pipeline, rows
from .test_small_snapshots import writers

pytestmark = pytest.mark.spark


def lose_changes(pipeline: Pipeline) -> None:
    """What was not read of the source cannot be read any more."""
    DeltaTable(pipeline.source).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def assert_differs(pipeline: Pipeline, job: JobRow) -> JobOutcome:
    (outcome,) = pipeline.run(job)
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.DIFFERENCE)
    pipeline.assert_equal(job.key.job_name)
    return outcome


@DIRECTLY
def test_rows_that_differ_are_merged_and_no_other_is_touched(pipeline: Pipeline) -> None:
    job = pipeline.job("copy", key=("id",))
    pipeline.build(job)
    pipeline.upsert([1, 2, 60], "changed")
    pipeline.delete("id IN (3, 4)")
    lose_changes(pipeline)
    assert assert_differs(pipeline, job).rows == 5
    assert writers(pipeline.target("copy")) == {"delta-rs"}
    done = DeltaTable(pipeline.target("copy")).history(1)[0]["operationMetrics"]
    assert [int(done[f"num_target_rows_{what}"]) for what in ("inserted", "updated", "deleted")] == [1, 2, 2]
    pipeline.upsert([5], "a tail again")
    assert pipeline.run(job)[0].data_type is DataType.TAIL
    pipeline.assert_equal("copy")


@BOTH_WAYS
@pytest.mark.parametrize("seed", in_full(range(4)))
@pytest.mark.slow(but=1)
def test_whatever_others_have_made_of_the_target_is_repaired(pipeline: Pipeline, seed: int) -> None:
    """Rows that they deleted, changed and added, also under keys that are there, while the source went on."""
    draw, job = random.Random(seed), pipeline.job("copy", key=("id",))
    target = pipeline.target("copy")
    pipeline.build(job)
    for _ in range(3):
        for _ in range(draw.randint(1, 3)):
            some = draw.sample(range(70), 3)
            match draw.randrange(4):
                case 0:
                    DeltaTable(target).delete(f"id IN ({', '.join(map(str, some))})")
                case 1:
                    DeltaTable(target).update({"v": draw.choice(["'foreign'", "null"])}, predicate=f"id < {some[0]}")
                case 2:
                    write_deltalake(target, rows(some, "foreign"), mode="append")
                case _:
                    pipeline.upsert(some, draw.choice("abc"))
                    pipeline.delete(f"id = {draw.randrange(70)}")
        (outcome,) = pipeline.run(job)
        assert outcome.error_msg == ""
        job = job._replace(seq=outcome.seq, watermark=outcome.watermark)
        pipeline.assert_equal("copy")


@pytest.mark.further  # each time: what others have made, by Spark, above
@DIRECTLY
def test_what_cannot_be_compared_here_is_left_to_spark(pipeline: Pipeline) -> None:
    """Null keys, rows that share a key in the target, and a job that is to stop when a column is another one."""
    jobs = {
        "nulls": pipeline.job("nulls", key=("v",), columns=("v",)),
        "doubled": pipeline.job("doubled", key=("id",)),
        "stops": pipeline.job("stops", key=("id",), policies={"on_schema_change": OnSchemaChange.STOP}),
    }
    pipeline.delete("id > 0")
    pipeline.build(*jobs.values())
    DeltaTable(pipeline.source).update({"v": "null"}, predicate="id = 0")
    write_deltalake(pipeline.target("doubled"), rows([0], "x"), mode="append")
    lose_changes(pipeline)
    for name, job in jobs.items():
        (outcome,) = pipeline.run(job)
        assert (outcome.error_msg, outcome.data_type) == ("", DataType.DIFFERENCE), name
        pipeline.assert_equal(name, columns=("v",) if name == "nulls" else ("id", "v", "g"))
        files = [Path(file) for file in DeltaTable(pipeline.target(name)).file_uris()]
        newest = max(files, key=lambda file: file.stat().st_mtime)
        assert str(pq.read_metadata(newest).created_by).startswith("parquet-mr"), name
