"""Commits that the protocol forbids, or of which a node knows not all: targets hold what Spark's snapshot of them has.

Each history is played once for jobs with a key, without one, and with a filter; by Spark and without it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import DataType
from tests.fakes.commit_files import commit_path
from tests.selection import in_full

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark

WAYS = pytest.mark.parametrize("pipeline", in_full(["direct", "spark"]), indirect=True)
Action = dict[str, Any]


def edit(pipeline: Pipeline, edit_action: Callable[[Action], Action | None], version: int | None = None) -> None:
    """Change each action of a commit, the newest by default; None leaves it out."""
    path = commit_path(pipeline.source, DeltaTable(pipeline.source).version() if version is None else version)
    actions = [edit_action(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(action) for action in actions if action))


def commit(pipeline: Pipeline, *actions: Action) -> None:
    version = DeltaTable(pipeline.source).version() + 1
    commit_path(pipeline.source, version).write_text("\n".join(map(json.dumps, actions)))


def added(pipeline: Pipeline, version: int) -> Action:
    """The first file that a commit added."""
    lines = map(json.loads, commit_path(pipeline.source, version).read_text().splitlines())
    return next(dict(line["add"]) for line in lines if "add" in line)


def merges_and_says_nothing(pipeline: Pipeline) -> None:
    pipeline.insert([200, 201])
    counts = dict.fromkeys(("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"), "0")
    about = {"operation": "MERGE", "operationMetrics": counts, "operationParameters": {}}
    edit(pipeline, lambda action: {"commitInfo": action["commitInfo"] | about} if "commitInfo" in action else action)


def adds_a_file_again(pipeline: Pipeline) -> None:
    pipeline.insert([210, 211])
    add = added(pipeline, DeltaTable(pipeline.source).version())
    commit(pipeline, {"commitInfo": {"operation": "WRITE"}}, {"add": add})


def removes_what_is_not_there(pipeline: Pipeline) -> None:
    gone = {"path": "never.parquet", "dataChange": True, "deletionTimestamp": 1, "partitionValues": {}, "size": 1}
    commit(pipeline, {"commitInfo": {"operation": "DELETE"}}, {"remove": gone | {"extendedFileMetadata": True}})


def removes_without_partition_values(pipeline: Pipeline) -> None:
    pipeline.insert([220])
    add = added(pipeline, DeltaTable(pipeline.source).version())
    commit(pipeline, {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}})


def has_a_field_of_tomorrow(pipeline: Pipeline) -> None:
    pipeline.insert([230])
    edit(pipeline, lambda action: {"add": action["add"] | {"rowsFrom": "elsewhere"}} if "add" in action else action)


def has_an_action_of_tomorrow(pipeline: Pipeline) -> None:
    pipeline.insert([240])
    path = commit_path(pipeline.source, DeltaTable(pipeline.source).version())
    path.write_text(path.read_text() + "\n" + json.dumps({"rowPatch": {"path": "x"}}))


HISTORIES = [
    merges_and_says_nothing,
    adds_a_file_again,
    removes_what_is_not_there,
    removes_without_partition_values,
    has_a_field_of_tomorrow,
    has_an_action_of_tomorrow,
]


@WAYS
@pytest.mark.slow
def test_targets_hold_what_a_snapshot_holds(pipeline: Pipeline) -> None:
    """The commit before an odd one is read as changes, and so are those after it; the odd one leads to a comparison."""
    jobs = [pipeline.job("full", key=("id",)), pipeline.job("log"), pipeline.job("some", key=("id",), where="id > 10")]
    pipeline.build(*jobs)
    for make in HISTORIES:
        pipeline.insert([1_000 + HISTORIES.index(make)])
        make(pipeline)
        for outcome in pipeline.run(*jobs):
            assert outcome.error_msg == "", make
        if make is not merges_and_says_nothing:
            for outcome in pipeline.run(*jobs):
                assert (outcome.data_type, outcome.error_msg) == (DataType.DIFFERENCE, "")
                assert "is not known: " in outcome.warning
        pipeline.insert([2_000 + HISTORIES.index(make)])
        assert {each.data_type for each in pipeline.run(*jobs)} == {DataType.TAIL}, make
        assert_as_snapshot(pipeline)  # what the odd one has left wrong, one row more does not make right


def assert_as_snapshot(pipeline: Pipeline) -> None:
    everything = pipeline.source_by_spark()
    pipeline.assert_holds("full", everything)
    some = [row for row in everything.to_pylist() if row["id"] > 10]
    pipeline.assert_holds("some", everything.from_pylist(some, everything.schema))
    held = DeltaTable(pipeline.target("log")).to_pyarrow_table()["id"].to_pylist()
    assert len(held) == len({*held}), "no row was applied twice"
    assert {*held} >= {*everything["id"].to_pylist()}


@pytest.mark.further  # each time: the named cases of random logs
@WAYS
@pytest.mark.parametrize("partitioned", [True, False], ids=["by a column", "by none any more"])
def test_a_table_that_is_partitioned_in_another_way(pipeline: Pipeline, *, partitioned: bool) -> None:
    before, after = (None, ["g"]) if partitioned else (["g"], None)
    configuration = {"delta.enableChangeDataFeed": "true"}
    shutil.rmtree(pipeline.source)
    write_deltalake(pipeline.source, rows(range(6)), partition_by=before, configuration=configuration)
    jobs = [pipeline.job("full", key=("id",)), pipeline.job("some", key=("id",), where="g = 1"), pipeline.job("log")]
    pipeline.build(*jobs)
    pipeline.insert([100])
    with pipeline.engine.session() as session:
        frame = session.createDataFrame(rows([0, 1, 2, 101]).to_pandas())
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        (writer.partitionBy(*after) if after else writer).save(pipeline.source)
    for _ in range(2):
        for outcome in pipeline.run(*jobs):
            assert outcome.error_msg == ""
    everything = pipeline.source_by_spark()
    pipeline.assert_holds("full", everything)
    some = [row for row in everything.to_pylist() if row["g"] == 1]
    pipeline.assert_holds("some", everything.from_pylist(some, everything.schema))
    pipeline.insert([102])
    assert {each.data_type for each in pipeline.run(*jobs)} == {DataType.TAIL}
    pipeline.assert_holds("full", pipeline.source_by_spark())
