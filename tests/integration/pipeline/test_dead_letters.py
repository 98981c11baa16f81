"""Rows that share a key: dead-lettered, back when their keys are unique again, and right after every crash between."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.replica.replica_consumer import dead_letter_uri
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import OnDuplicate
from iscp.model.values.errors import ErrorCode, InvalidRequest
from tests.fakes.guards import ScriptedFailpoints

from .conftest import Pipeline, rows
from .test_verify import verify

pytestmark = pytest.mark.spark


def held(uri: str) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in DeltaTable(uri).to_pyarrow_table().to_pylist())


def assert_split(pipeline: Pipeline, job: JobRow, outcome: JobOutcome, dead: int, below: int = 2**31) -> None:
    """`dead` rows share a key and are dead-lettered, all others (whose `g` is `below`) are in the target."""
    assert outcome.error_code == 0, outcome.error_msg
    all_rows = [row for row in DeltaTable(pipeline.source).to_pyarrow_table().to_pylist() if row["g"] < below]
    keys = Counter(row["id"] for row in all_rows)
    target = job.spec.consumer.target
    assert held(target) == Counter(tuple(row.values()) for row in all_rows if keys[row["id"]] == 1)
    letters = Counter(tuple(row.values()) for row in all_rows if keys[row["id"]] > 1)
    assert (held(dead_letter_uri(target)) if dead else Counter()) == letters
    assert (outcome.dead_letters, letters.total()) == (dead, dead)
    shown = ReplicaKind().dead_letters(job, 100)
    assert Counter(tuple(row.columns.values()) for row in shown.rows) == letters


@pytest.mark.further  # each time: test_keys_that_came_and_went.py
def test_they_are_set_aside_and_come_back(pipeline: Pipeline) -> None:
    """Two jobs of one iteration, one of them through Spark; null keys; changes of shared keys, and of others."""
    job = pipeline.job("full", key=("id",))
    by_spark = pipeline.new_runner(pipeline.failpoints, small_bytes_max=-1)
    null = pa.table({"id": pa.array([None, None], pa.int64()), "v": ["a", "b"], "g": pa.array([1, 1], pa.int64())})
    write_deltalake(pipeline.source, null, mode="append")
    pipeline.insert([3], "again")
    assert_split(pipeline, job, pipeline.run(job)[0], dead=4)
    other = pipeline.upsert
    other([10, 70], "an ordinary change")
    tail = pipeline.run(job)[0]
    assert_split(pipeline, job, tail, dead=4)
    assert tail.data_type is DataType.TAIL
    assert verify(pipeline, job).comparison.equal
    pipeline.delete("id = 3 AND v = 'x'")  # the feed shows a row that goes; one of that key has to appear
    gone = pipeline.run(job)[0]
    assert_split(pipeline, job, gone, dead=2)
    assert gone.data_type is DataType.TAIL
    pipeline.delete("id IS NULL AND v = 'a'")
    assert_split(pipeline, job, pipeline.run(job, runner=by_spark)[0], dead=0)
    assert not held(dead_letter_uri(pipeline.target("full")))
    DeltaTable(pipeline.source).update({"id": "5"}, predicate="id = 6")  # an update that makes keys equal
    assert_split(pipeline, job, pipeline.run(job, runner=by_spark)[0], dead=2)
    shutil.rmtree(dead_letter_uri(pipeline.target("full")))
    assert_split(pipeline, job, pipeline.run(job)[0], dead=2)


@pytest.mark.further  # each time: the job with a filter in test_keys_that_came_and_went.py
def test_only_rows_that_pass_the_filter_count(pipeline: Pipeline) -> None:
    """A history of versions, of which one is current for each key: no row is shared, and all goes by changes."""
    job = pipeline.job("current", key=("id",), where="g < 10")
    by_spark = pipeline.job("by_spark", key=("id",), where="g < 10")
    large = pipeline.new_runner(pipeline.failpoints, small_bytes_max=-1)

    def run(*expected: DataType, dead: int = 0) -> None:
        for each, runner in ((job, pipeline.runner), (by_spark, large)):
            outcome = pipeline.run(each, runner=runner)[0]
            assert_split(pipeline, each, outcome, dead=dead, below=10)
            assert not expected or outcome.data_type in expected

    run()
    DeltaTable(pipeline.source).update({"g": "100"}, predicate="id = 3")
    pipeline.insert([3], "current")
    run(DataType.TAIL)
    pipeline.delete("id = 3 AND g = 100")  # a row that was never in the target, of a key that is
    run(DataType.TAIL)
    write_deltalake(pipeline.source, pa.table({"id": [3], "v": ["old"], "g": [200]}), mode="append")
    run(DataType.TAIL)
    DeltaTable(pipeline.source).update({"g": "1"}, predicate="g = 200")  # enters the filter beside the current one
    run(DataType.TAIL, dead=2)


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("commit.after", 2),
        pytest.param("commit.after", 4, marks=pytest.mark.full),
        pytest.param("commit.before", 4, marks=pytest.mark.full),
    ],
)
def test_a_crash_between_the_two_commits(pipeline: Pipeline, place: str, changes: int) -> None:
    """Before or after the dead letters' commit, when keys become shared and when they are no more."""
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)

    def crash() -> None:
        raise RuntimeError("killed")

    all_changes: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: pipeline.insert([3], "again"), 2),
        (lambda: pipeline.delete("id = 3 AND v = 'again'"), 0),
        (lambda: pipeline.insert([4, 5], "again"), 4),
        # What was to be shared is not any more when it is done again: the letters that were written have to go.
        (lambda: pipeline.delete("v = 'again'"), 0),
    )
    for change, dead in all_changes[:changes]:
        change()
        failpoints = ScriptedFailpoints()
        failpoints.once(place, crash)
        outcome = pipeline.run(job, runner=pipeline.new_runner(failpoints))[0]
        assert outcome.error_code == ErrorCode.INTERNAL
        outcome = pipeline.run(job, runner=pipeline.new_runner(ScriptedFailpoints()))[0]
        assert_split(pipeline, job, outcome, dead=dead)
    pipeline.insert([3], "again")
    failpoints.once(place, crash)
    pipeline.run(job, runner=pipeline.new_runner(failpoints))
    pipeline.delete("v = 'again'")
    assert_split(pipeline, job, pipeline.run(job, runner=pipeline.new_runner(ScriptedFailpoints()))[0], dead=0)
    assert not held(dead_letter_uri(pipeline.target("full")))


def test_a_job_that_stops_at_them_and_one_with_the_policy_to(pipeline: Pipeline) -> None:
    stops = pipeline.job("stops", key=("id",), policies={"on_duplicate": OnDuplicate.STOP})
    pipeline.build(stops)
    pipeline.insert([3], "again")
    outcome = pipeline.run(stops)[0]
    assert (outcome.error_code, outcome.watermark.version) == (ErrorCode.DUPLICATE_KEY, 0)
    letters = dead_letter_uri(pipeline.target("other"))
    write_deltalake(letters, rows(range(3)))
    with pytest.raises(InvalidRequest, match=f"{letters} is a table with rows that iscp did not write"):
        pipeline.job("other", key=("id",))
