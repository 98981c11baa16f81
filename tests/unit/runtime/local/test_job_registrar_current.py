"""Proves when a run takes a target for current by the logs alone, and when an iteration has to find out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.core.api.api_requests import RegisterRequest
from iscp.core.job.job_row import JobRow
from iscp.core.run.run_result import ResultState
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import StorageError
from iscp.core.values.watermark import Position, SourceMark, Watermark
from iscp.ports.consumer import ConsumerEnvironment
from iscp.runtime.local.job_registrar import RunOrders
from tests.fakes.local_runs import TABLE, FailingRunner, Local
from tests.fakes.pipeline import FakeConsumer, FakeKind, FakeTarget


class SettledConsumer(FakeConsumer):
    def __init__(self, target: FakeTarget) -> None:
        super().__init__(target)
        self.target = target

    def settled(self, position: Position) -> bool:
        return not position.void


class SettledKind(FakeKind):
    """A kind whose consumers say whether there is something to do.

    `holds` are those of each job. `faults` are raised by `open`, one after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[str, float] = {}
        self.faults: list[Exception] = []

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> SettledConsumer:
        if self.faults:
            raise self.faults.pop()
        return SettledConsumer(self.target(row.spec.consumer.target))

    def held(self, spec: ConsumerSpec) -> dict[str, float]:
        return self.holds


@pytest.fixture
def settled() -> Local:
    return Local(kind=SettledKind())


def kept(local: Local, version: int = 1) -> RegisterRequest:
    """A request whose target a run keeps at this version; the source is at version 1."""
    request = local.request("copy")
    local.keep("copy", local.mark(request), run=True, version=version)
    target = local.target("copy")
    target.position = replace(target.position, watermark=Watermark(version, local.source.at_s[version]))
    return request


def test_a_target_at_the_newest_commit_is_current_and_no_iteration_begins(settled: Local) -> None:
    runner, request = FailingRunner(), kept(settled)
    run, heard = settled.run(request, runner=runner)
    (result,) = run.run()
    assert (result.state, result.from_version, result.to_version) == (ResultState.CURRENT, 1, 1)
    assert (result.table, result.target) == (TABLE, "/lake/copy")
    assert heard.ended_results == [result]
    assert runner.ran == []


def test_jobs_with_something_to_do_are_run_beside_those_without(settled: Local) -> None:
    runner = FailingRunner()
    run, _ = settled.run(kept(settled), settled.request("other"), runner=runner)
    assert next(iter(run.run())).state is ResultState.CURRENT
    assert runner.ran == ["other"]


def test_a_full_refresh_takes_nothing_for_current(settled: Local) -> None:
    runner = FailingRunner()
    run, _ = settled.run(kept(settled), runner=runner, orders=RunOrders(full_refresh=True))
    run.run()
    assert runner.ran == ["copy"]


def assert_left_to_an_iteration(local: Local, request: RegisterRequest) -> None:
    assert local.registrar.find_current(request) is None


def test_a_consumer_that_does_not_say_is_left_to_an_iteration(local: Local) -> None:
    assert_left_to_an_iteration(local, kept(local))


def test_an_older_version_is_left_to_an_iteration(settled: Local) -> None:
    assert_left_to_an_iteration(settled, kept(settled, version=0))
    assert settled.registrar.find_current(kept(settled)) is not None
    settled.source.commit({3: "c"})
    assert_left_to_an_iteration(settled, kept(settled))


@pytest.mark.parametrize(
    "other",
    [
        {"void": "others have written"},
        {"watermark": Watermark(1, 1.0, 1, 3)},
        {"watermark": Watermark(1, 99.0)},
        {"sources": {"/lake/gone": SourceMark("t-9", Watermark(7, 7.0))}},
        {"job_id": "000000000001-" + "0" * 16 + "-run"},
        {"job_id": ""},
    ],
    ids=["diverged", "a step of a commit", "a log that was recreated", "another table", "another spec", "nobody's"],
)
def test_a_position_that_is_another_is_left_to_an_iteration(settled: Local, other: dict[str, object]) -> None:
    request = kept(settled)
    target = settled.target("copy")
    target.position = replace(target.position, **other)  # type: ignore[arg-type]
    assert_left_to_an_iteration(settled, request)


def test_jobs_that_hold_tables_are_left_to_an_iteration_and_what_ranges_share_is_not(settled: Local) -> None:
    request, kind = kept(settled), settled.kind
    assert isinstance(kind, SettledKind)
    kind.holds = {TABLE: 60.0}
    assert_left_to_an_iteration(settled, request)
    kind.holds = {}
    kind.open_range = kind.open
    assert settled.registrar.find_current(request) is not None


def test_a_fault_is_left_to_whoever_registers_the_job(settled: Local) -> None:
    request, kind = kept(settled), settled.kind
    assert isinstance(kind, SettledKind)
    assert settled.registrar.find_current(request) is not None
    kind.faults.append(StorageError("the target does not answer"))
    assert_left_to_an_iteration(settled, request)
