"""Each job's part in an iteration is a run that begins and ends, whatever becomes of the iteration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import Iteration, JobOutcome, Purpose
from iscp.model.run_events import JobRunState
from iscp.model.values.errors import Canceled, ErrorCode
from iscp.ports.system import Guard
from iscp.schedule.runner import LineageRunner
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.timetable import SHARD, URI, job

ROWS = job("a", 3), job("b", 3)
ITERATION = Iteration(4, SHARD.table_id, URI, ROWS)


class World:
    def __init__(self) -> None:
        self.emitted: list[JobRunState] = []
        self.outcomes: tuple[JobOutcome, ...] | BaseException = applied(ITERATION, 6)
        numbers = itertools.count(1)
        self.inner = FakeRunner(self.body)
        self.runner = LineageRunner(self.inner, self.emitted.append, FakeClock(), lambda: f"run-{next(numbers)}")

    def body(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if isinstance(self.outcomes, BaseException):
            raise self.outcomes
        return self.outcomes

    def run(self, iteration: Iteration = ITERATION) -> list[tuple[str, str, str]]:
        self.emitted.clear()
        assert self.runner.run(iteration, OpenGuard()) == self.outcomes
        return self.said()

    def said(self) -> list[tuple[str, str, str]]:
        return [(each.run_id, each.state.value, each.row.key.job_name) for each in self.emitted]


def test_each_job_has_a_run_of_its_own_with_its_own_end() -> None:
    world = World()
    first, second = applied(ITERATION, 6)
    world.outcomes = (first, replace(second, error_code=ErrorCode.STORAGE, error_msg="away"))
    assert world.run() == [
        ("run-1", "START", "a"),
        ("run-2", "START", "b"),
        ("run-1", "COMPLETE", "a"),
        ("run-2", "FAIL", "b"),
    ]
    assert world.run()[0] == ("run-3", "START", "a"), "the next iteration is another run"


@pytest.mark.parametrize(("error", "state"), [(Canceled("stopped"), "ABORT"), (SystemExit(3), "FAIL")])
def test_an_iteration_that_fails_as_a_whole_ends_the_runs_of_all_its_jobs(error: BaseException, state: str) -> None:
    world = World()
    world.outcomes = error
    with pytest.raises(type(error)):
        world.runner.run(ITERATION, OpenGuard())
    assert [each[1] for each in world.said()] == ["START", "START", state, state]
    assert all(each.outcome is not None and each.outcome.error_msg for each in world.emitted[2:])


def test_a_build_by_ranges_is_one_run_over_its_iterations() -> None:
    world, iteration = World(), replace(ITERATION, jobs=(ROWS[0],))
    (done,) = applied(iteration, 6)
    world.outcomes = (replace(done, build=BuildRequest(7, 3, 1)),)
    assert world.run(iteration) == [("run-1", "START", "a"), ("run-1", "RUNNING", "a")]
    assert world.run(iteration) == [("run-1", "RUNNING", "a")]
    world.outcomes = (done,)
    assert world.run(iteration) == [("run-1", "COMPLETE", "a")]
    assert world.run(iteration)[0] == ("run-2", "START", "a")


def test_a_comparison_writes_nothing_and_is_no_run() -> None:
    world = World()
    assert world.run(replace(ITERATION, purpose=Purpose.VERIFY)) == []


def test_a_cancel_reaches_the_runner() -> None:
    world = World()
    world.runner.cancel(ITERATION)
    assert world.inner.cancelled == [ITERATION.number]
