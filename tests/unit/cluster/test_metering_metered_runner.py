""" """

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.cluster.metering import HistoryMeter, MeteredRunner, MeteredSearch
from iscp.model.api.api_requests import SearchRequest
from iscp.model.job.iteration import DataType, Iteration, JobOutcome, Purpose, Usage
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import INDEX_SEARCH_DURATION, ITERATION_RETRIES, ITERATION_WAIT, VIEW_REFRESHES
from iscp.model.protocol.events import Reports
from iscp.model.values.errors import ErrorCode, IscpError, StorageError
from iscp.ports.system import Guard
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard
from tests.fakes.meter import FakeMeter
from tests.fakes.owned_jobs import SHARD, entry, row
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.searches import ANSWER, FakeSearches

VIEW = '{"iteration": {"consumer": {"kind": "view", "target": "/v", "options": {"sql": "SELECT 1"}}}}'
COPY = '{"iteration": {"consumer": {"kind": "replica", "target": "/c"}}}'
JOBS = (row("copy")._replace(spec_json=COPY), row("view")._replace(spec_json=VIEW))
ITERATION = Iteration(7, "t-1", "/t", JOBS)


class Bench:
    """A runner that takes two seconds, and ends with `outcomes`, or as `error` says."""

    def __init__(self, *outcomes: JobOutcome, error: Exception | None = None) -> None:
        self.clock, self.meter = FakeClock(), FakeMeter()
        self._outcomes, self._error = outcomes, error
        self.inner = FakeRunner(self._body)
        self.runner = MeteredRunner(self.inner, self.meter, self.clock)

    def _body(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        self.clock.advance(2.0)
        if self._error is not None:
            raise self._error
        return self._outcomes

    def run(self, iteration: Iteration = ITERATION) -> tuple[JobOutcome, ...]:
        return self.runner.run(iteration, OpenGuard())


def test_each_job_of_an_iteration_is_measured_by_its_kind_and_strategy() -> None:
    copy, view = applied(ITERATION, 3)
    view = replace(view, strategy="full", strategy_reason="the first build", rows=5, bytes=70)
    bench = Bench(replace(copy, rows=2, bytes=30), view)
    assert len(bench.run()) == 2
    copied = {"iscp.kind": "replica", "iscp.strategy": "tail"}
    computed = {"iscp.kind": "view", "iscp.strategy": "full"}
    assert bench.meter.of(metrics.ITERATION_DURATION) == [(2.0, copied), (2.0, computed)]
    assert bench.meter.of(metrics.ITERATION_ROWS) == [(2, copied), (5, computed)]
    assert bench.meter.of(metrics.ITERATION_IO) == [(30, copied), (70, computed)]
    assert bench.meter.of(VIEW_REFRESHES) == [(1, {"iscp.strategy": "full", "iscp.view.reason": "first"})]


def test_a_job_that_fails_has_the_type_of_its_error() -> None:
    (copy, _) = applied(ITERATION, 3)
    bench = Bench(replace(copy, error_code=ErrorCode.DUPLICATE_KEY, rows=0, data_type=DataType.SNAPSHOT))
    bench.run()
    ((_, attributes),) = bench.meter.of(metrics.ITERATION_DURATION)
    assert attributes == {"iscp.kind": "replica", "iscp.strategy": "snapshot", "error.type": "DUPLICATE_KEY"}


def test_a_view_that_fails_is_no_refresh() -> None:
    (_, view) = applied(ITERATION, 3)
    bench = Bench(replace(view, strategy="full", error_code=ErrorCode.ENGINE))
    bench.run()
    assert bench.meter.of(VIEW_REFRESHES) == []


def test_an_iteration_that_fails_as_a_whole_counts_for_all_its_jobs() -> None:
    bench = Bench(error=StorageError("the disk is gone"))
    with pytest.raises(StorageError):
        bench.run()
    found = bench.meter.of(metrics.ITERATION_DURATION)
    assert [(took_s, each["iscp.kind"], each["error.type"]) for took_s, each in found] == [
        (2.0, "replica", "STORAGE"),
        (2.0, "view", "STORAGE"),
    ]


@pytest.mark.parametrize("purpose", [Purpose.VERIFY, Purpose.REPAIR])
def test_a_comparison_is_a_strategy_of_its_own(purpose: Purpose) -> None:
    (copy, _) = applied(ITERATION, 3)
    bench = Bench(copy)
    bench.run(replace(ITERATION, purpose=purpose))
    ((_, attributes),) = bench.meter.of(metrics.ITERATION_DURATION)
    assert attributes["iscp.strategy"] == purpose.value


def test_codes_and_specs_that_nobody_knows_have_names() -> None:
    odd = row("odd")._replace(spec_json="{")
    bench = Bench(replace(applied(replace(ITERATION, jobs=(odd,)), 1)[0], error_code=31_337))
    bench.run()
    ((_, attributes),) = bench.meter.of(metrics.ITERATION_DURATION)
    assert (attributes["iscp.kind"], attributes["error.type"]) == ("unknown", "INTERNAL")


def test_the_parts_of_a_jobs_own_work_are_measured() -> None:
    (copy, _) = applied(ITERATION, 3)
    used = Usage(read_s=0.5, compute_s=1.0, commit_s=0.25, rows_read=9, bytes_read=90, conflicts=2)
    bench = Bench(replace(copy, usage=used))
    bench.run()
    parts = {each["iscp.part"]: took_s for took_s, each in bench.meter.of(metrics.ITERATION_PARTS)}
    assert parts == {"read": 0.5, "compute": 1.0, "commit": 0.25}
    counted = {"iscp.kind": "replica", "iscp.strategy": "tail"}
    assert bench.meter.of(metrics.ITERATION_ROWS_READ) == [(9, counted)]
    assert bench.meter.of(metrics.ITERATION_IO_READ) == [(90, counted)]
    assert bench.meter.of(metrics.ITERATION_CONFLICTS) == [(2, counted)]


def test_a_cancel_goes_through() -> None:
    bench = Bench()
    bench.runner.cancel(ITERATION)
    assert bench.inner.cancelled == [7]


def test_searches_are_measured_and_failing_ones_by_the_type_of_their_error() -> None:
    meter, searches = FakeMeter(), FakeSearches()
    metered = MeteredSearch(searches, meter, FakeClock())
    assert metered.search(SearchRequest("/lake/index", "fox"), "", lambda: True) == ANSWER
    with pytest.raises(IscpError):
        metered.search(SearchRequest("/lake/elsewhere", "fox"), "", lambda: True)
    assert meter.of(INDEX_SEARCH_DURATION) == [(0.0, {}), (0.0, {"error.type": "TABLE_NOT_FOUND"})]
    metered.close()
    assert searches.closed


def test_waits_and_retries_are_read_from_what_is_reported() -> None:
    meter = FakeMeter()
    first, again = (replace(entry("j"), usage=Usage(wait_s=wait_s, retries=n)) for wait_s, n in ((0.5, 0), (3.0, 4)))
    HistoryMeter(meter).take(Reports(SHARD, history=(first, again, entry("of-a-former-release"))))
    assert meter.of(ITERATION_WAIT) == [(0.5, {}), (3.0, {})]
    assert meter.of(ITERATION_RETRIES) == [(0, {}), (1, {})]
