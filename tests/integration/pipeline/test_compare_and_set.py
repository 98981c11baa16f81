"""The sink's compare-and-set alone keeps two writers apart: no lease, no ownership, no lock is at work here."""

from __future__ import annotations

import threading
import time

import pytest
from deltalake import write_deltalake

from iscp.model.job.iteration import DataType, Iteration
from iscp.model.values.errors import ErrorCode
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.selection import in_full

from .conftest import BOTH_WAYS, BY_SPARK, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark


@BOTH_WAYS
def test_two_runners_of_one_job_in_turns_at_the_worst_moment(pipeline: Pipeline) -> None:
    """Another runner commits the same seq right before our commit: ours is skipped, seen, and started over."""
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.upsert(range(10), "first")
    other = pipeline.new_runner(ScriptedFailpoints())
    pipeline.failpoints.once("commit.before", lambda: pipeline.run(job, runner=other))
    outcome = pipeline.run(job)[0]
    assert outcome.ok
    pipeline.assert_equal("target")
    seqs = [commit.seq for commit in pipeline.commits("target") if commit.seq]
    assert seqs == sorted(set(seqs)), "a seq was committed twice"


@pytest.mark.parametrize("appends", in_full([True, False], but=[False]), ids=["append", "merge"])
@SPARK_IN_FULL
def test_two_runners_side_by_side(pipeline: Pipeline, appends: bool) -> None:
    job = pipeline.job("target", key=("id",))
    runners = [pipeline.new_runner(ScriptedFailpoints()) for _ in range(2)]
    pipeline.build(job)
    for step in range(4):
        if appends:
            pipeline.insert(range(100 + step * 10, 110 + step * 10))
        else:
            pipeline.upsert(range(step * 5, step * 5 + 60), f"step {step}")
        threads = [threading.Thread(target=pipeline.run, args=(job,), kwargs={"runner": r}) for r in runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pipeline.run(job)
    pipeline.assert_equal("target")
    seqs = [commit.seq for commit in pipeline.commits("target") if commit.seq]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.parametrize("first", in_full([True, False], but=[False]), ids=["snapshot", "tail"])
@BOTH_WAYS
def test_a_late_commit_of_a_former_registration_fails(pipeline: Pipeline, first: bool) -> None:
    """A job is deleted and created again while an iteration of the old one is about to commit."""
    old, new = pipeline.job("target", 1, key=("id",)), pipeline.job("target", 2, key=("id",), where="id < 5")
    if not first:
        pipeline.build(old)
        pipeline.insert(range(100, 110))
    other = pipeline.new_runner(ScriptedFailpoints())
    pipeline.failpoints.once("commit.before", lambda: pipeline.run(new, runner=other))
    outcome = pipeline.run(old)[0]
    assert outcome.error_code == ErrorCode.SUPERSEDED, outcome.error_msg
    pipeline.assert_equal("target", lambda row: row["id"] < 5)


@SPARK_IN_FULL
def test_a_commit_on_a_state_that_others_changed_meanwhile_is_repaired(pipeline: Pipeline) -> None:
    """Rows that somebody appends between our read and our commit: written without Spark, our commit fails, and starts
    over; Spark's stands on a state that it did not see, and the rows are found at the next read, behind it.
    """
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.insert(range(100, 110))
    pipeline.failpoints.once(
        "commit.before",
        lambda: write_deltalake(pipeline.target("target"), rows(range(900, 905), "foreign"), mode="append"),
    )
    outcome = pipeline.run(job)[0]
    if not pipeline.small_bytes_max:
        outcome = pipeline.run(job, runner=pipeline.new_runner(ScriptedFailpoints()))[0]
    assert outcome.ok
    assert outcome.data_type is DataType.DIFFERENCE
    pipeline.assert_equal("target")


@BY_SPARK
def test_a_cancel_between_two_spark_jobs_commits_nothing_afterwards(pipeline: Pipeline) -> None:
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.upsert(range(20), "changed")
    before = len(pipeline.commits("target"))
    iteration = Iteration(77_001, job.key.table_id, pipeline.source, (job,))
    # Here one Spark job (the read) has ended and the next (the merge) has not begun; the guard stays open.
    pipeline.failpoints.once("commit.before", lambda: pipeline.runner.cancel(iteration))
    outcome = pipeline.runner.run(iteration, OpenGuard())[0]
    assert not outcome.ok
    time.sleep(3)
    assert len(pipeline.commits("target")) == before
    assert pipeline.run(job)[0].ok
    pipeline.assert_equal("target")


@BOTH_WAYS
def test_a_shut_guard_lets_nothing_be_committed(pipeline: Pipeline) -> None:
    """The guard is checked right before the commit: a lease that can no longer be confirmed ends the work there."""
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.upsert(range(20), "changed")
    before, guard = len(pipeline.commits("target")), OpenGuard()
    pipeline.failpoints.once("commit.before", lambda: setattr(guard, "shut", True))
    outcome = pipeline.runner.run(Iteration(77_002, job.key.table_id, pipeline.source, (job,)), guard)[0]
    assert not outcome.ok
    assert len(pipeline.commits("target")) == before


@SPARK_IN_FULL
def test_a_registration_goes_on_from_the_seq_of_the_one_before(pipeline: Pipeline) -> None:
    old = pipeline.job("target", 1, key=("id",))
    seq = pipeline.build(old)[0].seq
    new = old._replace(job_id="target-2")
    outcome = pipeline.run(new)[0]
    assert (outcome.data_type, outcome.seq) == (DataType.SNAPSHOT, seq + 2)
    pipeline.assert_equal("target")
