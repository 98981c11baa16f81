"""A job's target against its source: equal, or what differs is found, shown, and repaired without touching the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.sink.table_diff import Side
from iscp.delta.source.change_source import DeltaProbe
from iscp.model.job.iteration import DataType, Iteration, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Sample, VerifyReport
from iscp.model.rows.key_ranges import ROWS_PER_RANGE, Ranges
from iscp.model.values.errors import ErrorCode, JobFailed, PermanentError
from tests.fakes.commit_files import commit_path
from tests.fakes.guards import OpenGuard
from tests.selection import in_full

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark

MANY = ROWS_PER_RANGE


def verify(pipeline: Pipeline, job: JobRow, purpose: Purpose = Purpose.VERIFY) -> VerifyReport:
    iteration = Iteration(1, job.key.table_id, pipeline.source, (job,), purpose=purpose)
    (outcome,) = pipeline.runner.run(iteration, OpenGuard())
    assert outcome.verified is not None
    return outcome.verified


def counts(report: VerifyReport) -> tuple[int, int, int]:
    said = report.comparison
    return said.missing, said.extra, said.different


def metrics(pipeline: Pipeline, name: str) -> dict[str, int]:
    """What the target's last commit did."""
    path = Path(commit_path(pipeline.target(name), DeltaTable(pipeline.target(name)).version()))
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    found = next(action["commitInfo"]["operationMetrics"] for action in actions if "commitInfo" in action)
    return {name: int(value) for name, value in found.items() if value.isdecimal()}


def test_what_runs_shows_rows_of_all_rows_and_tasks(pipeline: Pipeline) -> None:
    pipeline.small_bytes_max = 0
    pipeline.runner = pipeline.new_runner(pipeline.failpoints)  # by Spark, which counts what it does
    job, found = pipeline.job("shown", key=("id",)), []
    pipeline.failpoints.once("report.before", lambda: found.append(pipeline.runner.progress(job.job_id)))
    pipeline.run(job)
    (snapshot,) = found
    assert snapshot is not None
    assert (snapshot.purpose, snapshot.rows_written, snapshot.rows_total) == ("apply", 50, 50)
    assert 0 < snapshot.tasks_done <= snapshot.tasks
    assert snapshot.rows_read >= 50
    assert min(snapshot.bytes_read, snapshot.bytes_written, snapshot.bytes_total, snapshot.rows_per_s) > 0
    assert snapshot.left_s == 0.0
    assert pipeline.runner.progress(job.job_id) is None


@pytest.mark.slow
def test_foreign_rows_are_found_and_repaired_alone(pipeline: Pipeline) -> None:
    pipeline.insert(range(1_000, 1_000 + MANY))
    job = pipeline.job("full", key=("id",))
    part = pipeline.job("part", key=("id",), columns=("v", "id"), where="g <> 3 AND id < 1000")
    pipeline.run(job, part)
    for each in (job, part):
        report = verify(pipeline, each)
        assert (report.equal, report.void, report.version, report.seq) == (True, "", 1, 2)
        assert report.comparison.ranges_differing == 0
    assert verify(pipeline, job).comparison.rows_target == MANY + 50

    target = DeltaTable(pipeline.target("full"))
    target.delete("id = 7")
    target.update({"v": "'foreign'"}, predicate="id = 8")
    write_deltalake(pipeline.target("full"), rows([9], "x"), mode="append")  # once more
    write_deltalake(pipeline.target("full"), rows([5_000_000], "x"), mode="append")
    before = DeltaTable(pipeline.target("full")).version()
    report = verify(pipeline, job)
    said = report.comparison
    assert (said.missing, said.extra, said.different, said.rows_target) == (1, 2, 1, MANY + 51)
    assert 1 <= said.ranges_differing <= said.ranges == 2
    assert "is not ours" in report.void
    assert set(said.samples) == {
        Sample("missing", '{"id":7}'),
        Sample("different", '{"id":8}', ("v",)),
        Sample("extra", '{"id":9}'),
        Sample("extra", '{"id":5000000}'),
    }
    assert DeltaTable(pipeline.target("full")).version() == before, "who only looks writes nothing"

    mended = verify(pipeline, job, Purpose.REPAIR)
    assert (mended.repaired, mended.seq, counts(mended)) == (True, 3, (1, 2, 1))
    marked = DeltaProbe().newest_repair(pipeline.target("full"), 0, before + 9)
    assert marked == before + 1, "jobs that read this target keep it as a repair of their source"
    done = metrics(pipeline, "full")
    assert done["numTargetRowsInserted"] == 2, "the missing one, and the one of those that share a key"
    assert (done["numTargetRowsUpdated"], done["numTargetRowsDeleted"]) == (1, 3)
    assert done["numTargetFilesRemoved"] <= 4
    assert (verify(pipeline, job).equal, verify(pipeline, job).void) == (True, "")
    pipeline.upsert([1, 9], "after")
    assert [o.data_type for o in pipeline.run(job)] == [DataType.TAIL]
    pipeline.assert_equal("full")
    assert verify(pipeline, job, Purpose.REPAIR).repaired is False, "what is equal needs no commit"


@pytest.mark.further  # each time: tests/integration/test_hashing.py
def test_every_type_and_null_counts(pipeline: Pipeline) -> None:
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (m map<string,int>, a array<int>, s struct<x:int,y:int>, f double)")
    pipeline.sql("UPDATE SOURCE SET m = map('a', 1), a = array(1, null), s = struct(1 as x, null as y), f = -0.0")
    pipeline.sql("UPDATE SOURCE SET f = double('NaN') WHERE id > 20")
    job = pipeline.job("full", key=("id",))
    pipeline.run(job)
    assert verify(pipeline, job).equal
    with pipeline.engine.session() as session:
        for change in (
            "m = map('a', 2) WHERE id = 1",
            "a = array(1) WHERE id = 2",
            "s = struct(null as x, 1 as y) WHERE id = 3",
            "v = null WHERE id = 4",
            "f = 0.0 WHERE id = 5",  # which is -0.0
        ):
            session.sql(f"UPDATE delta.`{pipeline.target('full')}` SET {change}")
    found = {sample.key: sample.columns for sample in verify(pipeline, job).comparison.samples}
    assert found == {'{"id":1}': ("m",), '{"id":2}': ("a",), '{"id":3}': ("s",), '{"id":4}': ("v",)}
    assert verify(pipeline, job, Purpose.REPAIR).repaired
    assert verify(pipeline, job).equal
    pipeline.assert_equal_by_spark("full")


def test_only_columns_that_are_kept_are_read_and_rows_only_within_ranges(pipeline: Pipeline) -> None:
    with pipeline.engine.session() as session:
        source = session.read.format("delta").load(pipeline.source)
        side = Side(source.select("id").where("g <> 3"), ("id",))
        plan = side.digested(Ranges(4))._jdf.queryExecution().executedPlan().toString()
        assert re.findall(r"ReadSchema: struct<([^>]*)>", plan) == ["id:bigint,g:bigint"]
        found = {each: digest.rows for each, digest in side.digests(Ranges(8)).items()}
        within = Ranges(8, 4, frozenset({1}), 1)
        assert {each: digest.rows for each, digest in side.digests(within).items()} == {
            each: rows for each, rows in found.items() if each % 4 == 1
        }


@pytest.mark.further  # each time: foreign rows above, and test_append_only.py
@pytest.mark.parametrize("further", in_full([False, True]), ids=["missing", "extra and lost"])
def test_an_append_only_target_is_reported_while_the_source_only_grows(pipeline: Pipeline, further: bool) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    pipeline.insert([100, 101])
    pipeline.run(job)
    assert verify(pipeline, job).equal
    DeltaTable(pipeline.target("log")).delete("id = 100")
    assert counts(verify(pipeline, job)) == (1, 0, 0)
    assert verify(pipeline, job, Purpose.REPAIR).repaired
    assert metrics(pipeline, "log")["numOutputRows"] == 1
    if not further:
        return
    assert verify(pipeline, job).equal
    write_deltalake(pipeline.target("log"), rows([5], "x"), mode="append")
    report = verify(pipeline, job)
    assert (counts(report), report.comparison.samples) == ((0, 1, 0), (Sample("extra", '{"id":5,"v":"x","g":5}'),))
    with pytest.raises(PermanentError, match="without a key none of them can be removed"):
        verify(pipeline, job, Purpose.REPAIR)
    pipeline.insert([102])
    pipeline.run(job)  # rebuilt, as others have written
    pipeline.delete("id = 1")
    pipeline.run(job)
    with pytest.raises(PermanentError, match="it cannot be known whether the target is right"):
        verify(pipeline, job)


def test_what_cannot_be_compared_is_said(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    with pytest.raises(JobFailed, match="not built yet"):
        verify(pipeline, job)
    pipeline.build(job)
    pipeline.upsert([1], "changed")
    source = DeltaTable(pipeline.source)
    source.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(PermanentError, match="cannot be read any more as it was at version 0") as gone:
        verify(pipeline, job)
    assert gone.value.code == ErrorCode.VERSION_GONE
    pipeline.run(job)
    assert verify(pipeline, job).equal
    write_deltalake(pipeline.target("full"), rows([1]).append_column("w", [["?"]]), mode="append", schema_mode="merge")
    with pytest.raises(PermanentError, match="the target's columns are not id, v, g"):
        verify(pipeline, job)


@pytest.mark.further  # each time: rows that share a key in test_dead_letters.py, and foreign rows above
@pytest.mark.parametrize("repaired", in_full([False, True]), ids=["compared", "repaired"])
def test_rows_that_are_set_aside_are_not_missed(pipeline: Pipeline, repaired: bool) -> None:
    pipeline.insert([7], "shares a key")
    job = pipeline.job("full", key=("id",))
    pipeline.run(job)
    report = verify(pipeline, job)
    assert (report.equal, report.void, report.comparison.rows_target) == (True, "", 49)
    if not repaired:
        return
    write_deltalake(pipeline.target("full"), rows([7], "foreign"), mode="append")
    assert counts(verify(pipeline, job)) == (0, 1, 0)
    assert verify(pipeline, job, Purpose.REPAIR).repaired
    report = verify(pipeline, job)
    assert (report.equal, report.void) == (True, "")
    pipeline.upsert([8], "after")
    assert [o.data_type for o in pipeline.run(job)] == [DataType.TAIL]
