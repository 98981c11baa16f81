"""Rows that share a key for a while, and ranges that leave another row of a key than there was before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.consumers.custom.custom_kind import CustomKind
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import OnDuplicate
from tests.fakes.stores import StoreConsumer
from tests.selection import in_full

from .conftest import BOTH_WAYS, SPARK_IN_FULL, Pipeline
from .test_custom_consumers import job as custom_job
from .test_dead_letters import assert_split

pytestmark = pytest.mark.spark


def another_takes_its_place(pipeline: Pipeline, key: int) -> None:
    pipeline.insert([key], "b")
    pipeline.delete(f"id = {key} AND v = 'x'")


def the_last_of_several_is_left(pipeline: Pipeline, key: int) -> None:
    for value in "abc":
        pipeline.insert([key], value)
    pipeline.delete(f"id = {key} AND v <> 'c'")


def one_of_several_is_updated(pipeline: Pipeline, key: int) -> None:
    pipeline.insert([key], "b")
    DeltaTable(pipeline.source).update({"v": "'c'"}, predicate=f"id = {key} AND v = 'x'")
    pipeline.delete(f"id = {key} AND v = 'b'")


def keys_are_exchanged_beside_a_third(pipeline: Pipeline, key: int) -> None:
    pipeline.insert([key], "b")
    pipeline.sql(f"UPDATE SOURCE SET id = {2 * key + 1} - id WHERE id IN ({key}, {key + 1}) AND v = 'x'")
    pipeline.delete(f"id = {key} AND v = 'x'")


def merged_into_one(pipeline: Pipeline, key: int) -> None:
    """A merge that deletes one and inserts another, after a row came in beside."""
    pipeline.insert([key], "b")
    pipeline.sql(
        f"MERGE INTO SOURCE t USING (SELECT CAST({key} AS BIGINT) AS id, explode(array('x', 'b', 'c')) AS v, 0 AS g) s"
        " ON t.id = s.id AND t.v = s.v WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    )


EVENTS = {
    3: another_takes_its_place,
    10: the_last_of_several_is_left,
    11: one_of_several_is_updated,
    17: keys_are_exchanged_beside_a_third,
    24: merged_into_one,
}
"""Each leaves one row of the key."""


@SPARK_IN_FULL
@pytest.mark.parametrize("keys", in_full([(24,), (3,), (10, 11, 17)]), ids=["by a merge", "plain", "by detours"])
def test_the_row_that_is_left_is_in_the_target(pipeline: Pipeline, keys: tuple[int, ...]) -> None:
    """At the end of each range no two rows share a key, whatever happened within it."""
    jobs = [
        pipeline.job("letters", key=("id",)),
        pipeline.job("stops", key=("id",), policies={"on_duplicate": OnDuplicate.STOP}),
        pipeline.job("some", key=("id",), where="g < 5"),
    ]
    pipeline.build(*jobs)
    for key in keys:
        EVENTS[key](pipeline, key)
        pipeline.insert([200 + key], "there is something to append")
        for job, outcome, below in zip(jobs, pipeline.run(*jobs), (2**31, 2**31, 5), strict=True):
            assert_split(pipeline, job, outcome, dead=0, below=below)


@SPARK_IN_FULL
def test_what_really_came_and_went_needs_no_comparison(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    pipeline.delete("id = 20")
    pipeline.run(job)
    for value, others in (("only that", []), ("that and more", [80, 81])):
        pipeline.insert([20, 70, *others], value)  # one within the bounds of what the target holds, one outside
        pipeline.delete("id IN (20, 70)")
        outcome = pipeline.run(job)[0]
        assert_split(pipeline, job, outcome, dead=0)
        assert (outcome.data_type, outcome.rows) == (DataType.TAIL, len(others))


@pytest.mark.further  # each time: the row that is left above
@SPARK_IN_FULL
def test_dead_letters_are_those_that_are_left(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.insert([3], "b")
    pipeline.run(job)
    pipeline.insert([3], "c")
    pipeline.delete("id = 3 AND v = 'b'")
    assert_split(pipeline, job, pipeline.run(job)[0], dead=2)
    pipeline.insert([4], "a")
    pipeline.insert([4], "b")
    pipeline.delete("id IN (3, 4) AND v IN ('a', 'x')")
    assert_split(pipeline, job, pipeline.run(job)[0], dead=0)


class Custom:
    """A job of a consumer whose store is not looked into, and which therefore has to be notified."""

    def __init__(self, pipeline: Pipeline, **consumer: Any) -> None:
        self.pipeline, kind = pipeline, CustomKind("store", StoreConsumer)
        self.runner = pipeline.new_runner(pipeline.failpoints, kinds=lambda name: kind)
        self.job: JobRow = custom_job(pipeline, kind, pipeline.target("store"), **consumer)

    def assert_followed(self, *, by_changes: bool) -> None:
        outcome = self.pipeline.run(self.job, runner=self.runner)[0]
        assert outcome.error_code == 0, outcome.error_msg
        assert (outcome.data_type is DataType.TAIL) == by_changes
        source = DeltaTable(self.pipeline.source).to_pyarrow_table().to_pylist()
        kept = StoreConsumer.stores[self.pipeline.target("store")].rows
        assert Counter(tuple(row.values()) for row in kept) == Counter(tuple(row.values()) for row in source)


@pytest.mark.further  # each time: the row that is left, above, and test_net_by_spark.py
@SPARK_IN_FULL
def test_a_store_never_loses_rows_that_share_a_key(pipeline: Pipeline) -> None:
    """Each row that comes beside one, or goes from beside one, in a range of its own."""
    custom = Custom(pipeline)
    custom.assert_followed(by_changes=False)
    pipeline.upsert([1, 60], "an ordinary change")
    custom.assert_followed(by_changes=True)
    pipeline.insert([3], "b")
    custom.assert_followed(by_changes=False)
    pipeline.upsert([1, 61], "of other keys")
    pipeline.insert([62], "new")
    custom.assert_followed(by_changes=True)
    pipeline.delete("id = 3 AND v = 'b'")
    custom.assert_followed(by_changes=False)
    pipeline.insert([3], "x")  # rows that are equal in all
    custom.assert_followed(by_changes=False)
    DeltaTable(pipeline.source).update({"id": "5"}, predicate="id = 6")
    custom.assert_followed(by_changes=False)
    pipeline.delete("id IN (3, 5)")
    custom.assert_followed(by_changes=False)
    pipeline.delete("id = 1")
    custom.assert_followed(by_changes=True)


@pytest.mark.further  # each time: the store above
@BOTH_WAYS
def test_a_store_holds_the_row_that_is_left(pipeline: Pipeline) -> None:
    custom = Custom(pipeline)
    custom.assert_followed(by_changes=False)
    for key, event in EVENTS.items():
        event(pipeline, key)
        custom.assert_followed(by_changes=False)
