"""A run reads a table below a diamond at one version, so that the view above mixes nothing, whatever others commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.app.local_engine import LocalEngine
from iscp.cli.demo.lake import read
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.run.run_plan import JobSelection, ResultState, RunResult, Wanted
from iscp.model.spec.spec_parsing import ViewFields
from iscp.spark.given_spark import GivenSpark
from iscp.spark.session import SparkRuntime
from iscp.standalone.local_run import RunListener, RunOrders

pytestmark = pytest.mark.spark

VIEWS = {
    "va": "select count(*) as n from t",
    "vb": "select count(*) as n from t where id >= 0",
    "vc": "select va.n, vb.n as m, o.n as o from va cross join vb cross join (select count(*) as n from t ) o",
}


class AfterEach(RunListener):
    """Does something after each job of a run."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def end(self, number: int, result: RunResult) -> None:
        self._then()


class Runs:
    def __init__(self, root: Path, runtime: SparkRuntime, waits_for_s: float | None = None) -> None:
        self._root, self._runtime, self._waits_for_s = root, runtime, waits_for_s
        write_deltalake(self._at("t"), self._rows(), configuration={"delta.enableChangeDataFeed": "true"})

    def _at(self, name: str) -> str:
        return str(self._root / name)

    def _rows(self) -> pa.Table:
        return pa.table({"id": [1]})

    def insert(self) -> None:
        write_deltalake(self._at("t"), self._rows(), mode="append")

    def run(self, *names: str, then: Callable[[], object] = lambda: None) -> list[RunResult]:
        """Run the views of these names, or all."""
        wanted = []
        for name, sql in VIEWS.items():
            tables = {each: self._at(each) for each in ("va", "vb", "t") if f" {each} " in f"{sql} "}
            view = ViewFields(sql, tables, self._at(name), waits_for_s=self._waits_for_s)
            wanted.append(Wanted(RegisterRequest(JobName(view.table, name), view.spec_json()), name))
        with LocalEngine(GivenSpark(self._runtime.new_session())) as engine:
            jobs = engine.jobs(wanted)
            plan = engine.plan(wanted, jobs, JobSelection(names), fail_fast=False)
            found = engine.run(jobs, plan, RunOrders(), AfterEach(then), parallel=1).run()
        assert [each.error for each in found] == [""] * len(found)
        return found

    def row(self) -> dict[str, int]:
        row: dict[str, int]
        (row,) = read(self._at("vc")).to_pylist()
        return row


def test_a_run_mixes_nothing_though_the_table_below_moves_meanwhile(
    tmp_path: Path, spark_runtime: SparkRuntime
) -> None:
    runs = Runs(tmp_path, spark_runtime, waits_for_s=3_600)  # longer than a test may take
    assert not runs.run(then=runs.insert)[-1].warning
    assert runs.row() == dict.fromkeys("nmo", 1)
    assert not runs.run(then=runs.insert)[-1].warning
    assert runs.row() == dict.fromkeys("nmo", 4)
    runs.run()
    assert [each.state for each in runs.run()] == [ResultState.CURRENT] * 3
    assert runs.row() == dict.fromkeys("nmo", 7)


def test_a_run_of_a_part_waits_for_the_rest_no_longer_than_it_may(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    runs = Runs(tmp_path, spark_runtime, waits_for_s=0.75)
    runs.run()
    runs.insert()
    began_s = time.monotonic()
    mixed = runs.run("va", "vc")[-1]
    assert time.monotonic() - began_s >= 0.75
    assert "its rows mix versions of a table: " in mixed.warning
    assert (mixed.state, runs.row()) == (ResultState.UPDATED, {"n": 2, "m": 1, "o": 2})
    assert not runs.run()[-1].warning
    assert runs.row() == dict.fromkeys("nmo", 2)
