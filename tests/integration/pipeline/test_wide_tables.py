"""Of tables with thousands of columns, small changes and comparisons cost little: bounds in processor time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from tests.costs import spent_s
from tests.fakes.build_driver import after
from tests.fakes.guards import OpenGuard
from tests.integration.pipeline.conftest import DIRECTLY, Pipeline

pytestmark = pytest.mark.spark

COLUMNS = 2_000
CHANGE_S, VERIFY_S = 6.0, 10.0
"""Processor time of this process and Spark; a merge, and a plan with a pair of columns each, take half as much
again or more. Of a change, the walk of its files' footers and pages takes a second."""


def wide(first: int, count: int) -> pa.Table:
    numbers, texts = pa.array([first] * count, pa.int64()), pa.array([f"v{first}"] * count)
    columns = {f"c{number}": texts if number % 2 else numbers for number in range(COLUMNS)}
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), **columns})


def verified(pipeline: Pipeline, job: JobRow) -> JobOutcome:
    iteration = Iteration(99, job.key.table_id, pipeline.source, (job,), purpose=Purpose.VERIFY)
    (outcome,) = pipeline.runner.run(iteration, OpenGuard())
    return outcome


def held(uri: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = DeltaTable(uri).to_pyarrow_table().sort_by("id").to_pylist()
    return rows


@DIRECTLY
@pytest.mark.slow
def test_changes_of_few_rows_and_their_verification(pipeline: Pipeline) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(pipeline.source, wide(0, 20), mode="overwrite", schema_mode="overwrite", configuration=feed)
    job = pipeline.job("j", key=("id",))
    job = after(job, pipeline.run(job)[0])
    # A node that has just begun knows no bounds of the keys that are there.
    runner = pipeline.new_runner(pipeline.failpoints)
    write_deltalake(pipeline.source, wide(-5, 2), mode="append")
    DeltaTable(pipeline.source).update(new_values={"c0": "7"}, predicate="id = 5")
    DeltaTable(pipeline.source).delete("id = 6")
    began_s = spent_s()
    (outcome,) = pipeline.run(job, runner=runner)
    assert spent_s() - began_s < CHANGE_S
    assert (outcome.ok, outcome.rows) == (True, 4), outcome.error_msg
    assert held(pipeline.target("j")) == held(pipeline.source)
    job = after(job, outcome)
    verified(pipeline, job)  # has a Spark that has just begun compile what is its own
    began_s = spent_s()
    said = verified(pipeline, job).verified
    assert spent_s() - began_s < VERIFY_S
    assert said is not None
    assert said.comparison.equal
    assert (said.comparison.rows_source, said.comparison.rows_target) == (21, 21)


@DIRECTLY
def test_a_difference_is_found_as_ever(pipeline: Pipeline) -> None:
    job = pipeline.job("j", key=("id",))
    job = after(job, pipeline.run(job)[0])
    DeltaTable(pipeline.target("j")).delete("id = 7")
    said = verified(pipeline, job).verified
    assert said is not None
    assert (said.comparison.equal, said.comparison.missing, said.comparison.extra) == (False, 1, 0)
