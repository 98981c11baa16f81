"""A job of any kind has its tables hold before it reads; a table that cannot be held is its own fault."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iscp.core.job.source_holds import holder_of
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import ErrorCode, StorageError
from tests.fakes.bench import URI, Bench, job
from tests.fakes.pipeline import FakeKind


class HoldingKind(FakeKind):
    """Each job holds its source, for as long as its option says."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        return {URI: spec.options["hold_s"]} if "hold_s" in spec.options else {}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.kind = HoldingKind()
    return bench


def test_a_source_is_held_before_it_is_read_and_once(bench: Bench) -> None:
    row = job("x", options={"hold_s": 60.0})
    held: list[bool] = []
    bench.failpoints.once("snapshot.before", lambda: held.append(bool(bench.holds.held)))
    (outcome,) = bench.run(row)
    assert outcome.ok
    assert held == [True]
    assert bench.holds.held == {(URI, holder_of(row.key)): 60.0}
    bench.source.commit({1: "b"})
    bench.run(row)
    bench.source.commit({1: "c"})
    bench.run(row)
    assert bench.holds.placed == [URI]
    bench.assert_fresh(row)


def test_a_job_without_a_hold_alters_and_reads_no_table_for_one(bench: Bench) -> None:
    bench.run(job("x"))
    assert bench.holds.placed == []


def test_a_table_that_cannot_be_held_fails_the_jobs_that_hold_it_and_no_other(bench: Bench) -> None:
    bench.holds.refusals[URI] = StorageError("is not there")
    holding, plain = job("x", options={"hold_s": 60.0}), job("y")
    failed, fine = bench.run(holding, plain)
    assert (failed.error_code, fine.ok) == (ErrorCode.STORAGE, True)
    assert bench.target(holding).commits == []
    bench.holds.refusals.clear()
    assert all(outcome.ok for outcome in bench.run(holding, plain))
