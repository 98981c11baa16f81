"""Columns of names that rows are given themselves stop the jobs that follow a table; all others are kept as ever."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import ErrorCode
from iscp.ports.consumer import ConsumerKind
from iscp.schedule.runner import Runner

from .conftest import SPARK_IN_FULL, Pipeline, rows
from .feeding import Feed

pytestmark = pytest.mark.spark

RESERVED = (
    "_change_type",
    "_Commit_Version",
    "_commit_timestamp",
    "_iscp_op",
    "_iscp_weight",
    "_ISCP_count",
    "_iscp_row",
)
"""Those that are named in the code, or are as these are."""

PLAIN = ("_metadata", "_iscp", "k0", "c0", "m0", "s0", "n", "w", "h", "row", "value", "values", "rows", "count", "key")
"""What is called so within the code too, but not beside a table's columns."""

KINDS: dict[str, ConsumerKind] = {"replica": ReplicaKind(), "changefeed": ChangefeedKind()}


def jobs_of(pipeline: Pipeline) -> tuple[Runner, Feed, list[JobRow]]:
    """A replica by key, one without, one of a column, and a feed."""
    feed = Feed(pipeline)
    made = [pipeline.job("keyed", key=("id",)), pipeline.job("bare"), pipeline.job("narrow", columns=("id",))]
    return pipeline.new_runner(pipeline.failpoints, kinds=KINDS.__getitem__), feed, [*made, feed.row()]


def run(pipeline: Pipeline, runner: Runner, jobs: list[JobRow]) -> list[JobOutcome]:
    return pipeline.run(*jobs, runner=runner)


@pytest.mark.slow
def test_a_column_of_such_a_name_that_comes_later_stops_all_jobs_until_it_is_gone(pipeline: Pipeline) -> None:
    runner, _, jobs = jobs_of(pipeline)
    assert all(outcome.ok for outcome in run(pipeline, runner, jobs))
    before = DeltaTable(pipeline.source).version()
    for name in RESERVED:
        wider = rows([101], "wide").append_column(name, pa.array(["x"]))
        write_deltalake(pipeline.source, wider, mode="append", schema_mode="merge")
        for outcome in run(pipeline, runner, jobs):
            assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, (name, outcome.error_msg)
            assert f"the source has {name} now, which rows are given" in outcome.error_msg
            assert "Have it renamed or dropped, then resume the job" in outcome.error_msg
        DeltaTable(pipeline.source).restore(before)
    pipeline.insert([102])
    for outcome in run(pipeline, runner, jobs):
        assert outcome.ok, outcome.error_msg
    pipeline.assert_equal("keyed")


def test_a_hash_of_keys_stops_a_feed_alone(pipeline: Pipeline) -> None:
    runner, _, jobs = jobs_of(pipeline)
    assert all(outcome.ok for outcome in run(pipeline, runner, jobs))
    wider = rows([101, 1], "wide").append_column("_key_hash", pa.array([7, 8], pa.int64()))
    write_deltalake(pipeline.source, wider.slice(0, 1), mode="append", schema_mode="merge")
    *others, of_feed = run(pipeline, runner, jobs)
    assert [outcome.error_msg for outcome in others] == [""] * 3
    pipeline.assert_equal("keyed", columns=("id", "v", "g", "_key_hash"))
    pipeline.assert_equal("bare", columns=("id", "v", "g", "_key_hash"))
    assert of_feed.error_code == ErrorCode.SCHEMA_CHANGED
    assert "the source has _key_hash now" in of_feed.error_msg


@SPARK_IN_FULL
@pytest.mark.slow
def test_all_other_names_are_kept_by_changes_and_by_comparing(pipeline: Pipeline) -> None:
    pipeline.source = f"{pipeline.root}/named"

    def wide(ids: list[int], value: str) -> pa.Table:
        columns = {name: pa.array([f"{value} {name}"] * len(ids)) for name in ("v", "g", *PLAIN)}
        return pa.table({"id": pa.array(ids, pa.int64()), **columns})

    with_feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(pipeline.source, wide([*range(20)], "x"), configuration=with_feed)
    runner, feed, jobs = jobs_of(pipeline)
    assert all(outcome.ok for outcome in run(pipeline, runner, jobs))
    names = ("id", "v", "g", *PLAIN)
    write_deltalake(pipeline.source, wide([100, 101], "y"), mode="append")
    assert all(outcome.ok for outcome in run(pipeline, runner, jobs))
    pipeline.assert_equal("bare", columns=names)
    for properties in ({}, {"delta.enableChangeDataFeed": "false"}):
        table = DeltaTable(pipeline.source)
        if properties:
            table.alter.set_table_properties(properties)
        table.update(
            {"`row`": "'new'", "_metadata": "'new'", "n": "'new'", "k0": f"'{len(properties)}'"}, predicate="id < 3"
        )
        table.delete(f"id = {7 + len(properties)}")
        outcomes = run(pipeline, runner, jobs)
        assert [outcome.error_msg for outcome in outcomes] == [""] * 4
        pipeline.assert_equal("keyed", columns=names)
        feed.assert_equal()
