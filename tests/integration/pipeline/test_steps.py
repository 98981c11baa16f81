"""One commit that is too large for an iteration is applied in steps, each a commit of the sink, none of them twice."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable

from iscp.delta.log.commits import read_commit
from iscp.model.job.iteration import Bounds, DataType, JobOutcome
from tests.fakes.guards import ScriptedFailpoints

from .conftest import Pipeline


class CrashError(Exception):
    """The process is gone."""


def test_a_large_commit_is_applied_step_by_step_and_goes_on_where_it_was(pipeline: Pipeline) -> None:
    """By key with updates, inserts and deletes in one commit; append-only, where each updated row is a new one."""
    keyed, appended = pipeline.job("keyed", key=("id",)), pipeline.job("appended", columns=("v",))
    pipeline.build(keyed, appended)
    pipeline.upsert(range(25, 125), "large")
    pipeline.upsert(range(3), "behind it")
    large = read_commit(pipeline.source, 1)
    assert large is not None
    bounds = Bounds(bytes_max=large.bytes // 3 + 1)
    steps: dict[str, list[tuple[int, int, int]]] = {"keyed": [], "appended": []}
    for number in range(6):
        # Each time as after a crash: the sinks alone say where it goes on. Once one dies at its commit.
        failpoints = ScriptedFailpoints()
        if number == 1:
            failpoints.once("commit.before", _crash)
        for outcome in pipeline.run(keyed, appended, runner=pipeline.new_runner(failpoints, bounds)):
            assert outcome.data_type is DataType.TAIL
            watermark, name = outcome.watermark, outcome.row.key.job_name
            if outcome.ok and watermark.version < 2:
                steps[name].append((watermark.version, watermark.step, watermark.steps))
    for name in steps:
        assert steps[name][:3] == [(0, 1, 3), (0, 2, 3), (1, 0, 0)]
    pipeline.assert_equal("keyed")
    assert sum(commit.rows_added or 0 for commit in pipeline.commits("appended")) == 50 + 100 + 3
    assert DeltaTable(pipeline.target("appended")).to_pyarrow_table()["v"].to_pylist().count("large") == 100


@pytest.mark.further  # each time: a large commit above, and widened types in test_odd_tables.py
def test_steps_stay_the_same_when_types_are_widened_between_them(pipeline: Pipeline) -> None:
    """A step is found by the hash of a row's key or values, which another type would change."""
    shutil.rmtree(pipeline.source)
    pipeline.sql(
        "CREATE TABLE SOURCE (id INT, v STRING) USING delta"
        " TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableTypeWidening = true)"
    )
    jobs = pipeline.job("keyed", key=("id",)), pipeline.job("appended")
    pipeline.run(*jobs)
    pipeline.sql("INSERT INTO SOURCE SELECT CAST(id AS INT), 'x' FROM range(100)")
    runner = pipeline.new_runner(ScriptedFailpoints(), Bounds(rows_max=50))
    assert [_step(outcome) for outcome in pipeline.run(*jobs, runner=runner)] == [(0, 1, 2)] * 2
    pipeline.sql("ALTER TABLE SOURCE ALTER COLUMN id TYPE BIGINT")
    outcomes = pipeline.run(*jobs, runner=runner)
    assert [(_step(outcome), outcome.data_type) for outcome in outcomes] == [((1, 0, 0), DataType.TAIL)] * 2
    pipeline.run(*jobs, runner=runner)
    pipeline.assert_equal_by_spark("keyed")
    pipeline.assert_equal_by_spark("appended")


def _step(outcome: JobOutcome) -> tuple[int, int, int]:
    return outcome.watermark.version, outcome.watermark.step, outcome.watermark.steps


def _crash() -> None:
    raise CrashError
