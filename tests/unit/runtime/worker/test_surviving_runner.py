"""A job of whose work the process has died runs apart from others, and after the second time no more."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.job.job_deaths import ACCOUNT_DEATHS_FEARED, ACCOUNT_DEATHS_MAX, Deaths
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.values.errors import ErrorCode, LeaseLost
from iscp.core.values.ids import JobKey
from iscp.core.values.watermark import Watermark
from iscp.ports.system import Guard
from iscp.runtime.worker.surviving_runner import SurvivingRunner
from tests.fakes.deaths import FakeDeaths
from tests.fakes.guards import OpenGuard
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.waiting import until


def row(name: str) -> JobRow:
    return JobRow(JobKey("default", "t1", name), name, "{}", "/lake/t1", "/lake/t1", watermark=Watermark(3, 3.0), seq=7)


def iteration(*names: str, number: int = 1) -> Iteration:
    return Iteration(number, "t1", "/lake/t1", tuple(map(row, names)))


def said(outcomes: Sequence[JobOutcome]) -> list[tuple[str, int]]:
    return [(outcome.row.job_id, outcome.error_code) for outcome in outcomes]


def resumed(job: JobRow, error_code: int = ErrorCode.NODE_KILLED, reported_at_s: float = 5.0) -> JobRow:
    status = JobStatus(end_at_s=reported_at_s, error_code=error_code)
    return job._replace(state=JobState.COMPLETED, reason=Reason.NONE, status_json=status.to_json())


def test_jobs_are_at_work_as_long_as_their_iteration_runs() -> None:
    deaths = FakeDeaths()
    seen: list[list[str]] = []

    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        seen.append([*deaths.at])
        return applied(each, 4)

    runner = SurvivingRunner(FakeRunner(body), deaths)
    assert said(runner.run(iteration("a", "b"), OpenGuard())) == [("a", 0), ("b", 0)]
    assert (seen, deaths.at) == ([["a", "b"]], [])


def test_one_that_the_process_died_of_twice_does_not_run_and_says_why() -> None:
    inner, deaths = FakeRunner(), FakeDeaths(b=2)
    a, b, c = SurvivingRunner(inner, deaths).run(iteration("a", "b", "c"), OpenGuard())
    assert (a.ok, c.ok) == (True, True)
    assert deaths.begun == [["a", "c"]]
    assert (b.error_code, b.seq, b.watermark) == (ErrorCode.NODE_KILLED, 7, Watermark(3, 3.0))
    assert "2 times in a row, the last time at 1970-01-01T00:00:01+00:00 (Aborted)" in b.error_msg
    assert "iscp-admin job resume" in b.error_msg


def test_one_that_it_died_of_once_runs_alone_and_is_forgotten_when_it_has_run_well() -> None:
    deaths = FakeDeaths(b=1)
    runner = SurvivingRunner(FakeRunner(), deaths)
    assert said(runner.run(iteration("a", "b", "c"), OpenGuard())) == [("a", 0), ("b", 0), ("c", 0)]
    assert deaths.begun == [["a", "c"], ["b"]]
    assert deaths.known == {}
    runner.run(iteration("a", "b", "c"), OpenGuard())
    assert deaths.begun[2:] == [["a", "b", "c"]]


@pytest.mark.parametrize("failing", [True, False])
def test_one_that_fails_or_waits_for_its_build_is_not_forgotten(failing: bool) -> None:
    deaths = FakeDeaths(b=1)

    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        (outcome,) = applied(each, 4)
        other = {"error_code": ErrorCode.STORAGE} if failing else {"build": object()}
        return (replace(outcome, **other),)

    SurvivingRunner(FakeRunner(body), deaths).run(iteration("b"), OpenGuard())
    assert deaths.known["b"].count == 1


def test_what_fails_as_a_whole_leaves_the_outcomes_of_the_others() -> None:
    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if each.jobs[0].job_id == "b":
            raise LeaseLost("the lease has ended")
        return applied(each, 4)

    done = SurvivingRunner(FakeRunner(body), FakeDeaths(b=1)).run(iteration("b", "a"), OpenGuard())
    assert said(done) == [("b", ErrorCode.LEASE_LOST), ("a", 0)]


def test_those_that_it_died_of_run_one_after_the_other_and_wait_no_longer_than_they_may() -> None:
    inner = GatedRunner()
    runner, guard = SurvivingRunner(inner, FakeDeaths(a=1, b=1, c=1)), OpenGuard()
    done: list[tuple[str, int]] = []

    def run(name: str, number: int, guard: OpenGuard) -> threading.Thread:
        thread = threading.Thread(target=lambda: done.extend(said(runner.run(iteration(name, number=number), guard))))
        thread.start()
        return thread

    first = run("a", 1, OpenGuard())
    until(lambda: inner.running == 1)
    second, third = run("b", 2, OpenGuard()), run("c", 3, guard)
    guard.shut = True
    third.join(10.0)
    assert done == [("c", ErrorCode.CANCELED)]
    assert inner.order == [1]
    for number in (1, 2):
        inner.gate(number).set()
    first.join(10.0)
    second.join(10.0)
    assert done[1:] == [("a", 0), ("b", 0)]
    assert inner.most_running == 1


def test_an_account_whose_jobs_end_nodes_in_turn_has_each_run_alone_and_then_none() -> None:
    deaths, inner = FakeDeaths(), FakeRunner()
    runner = SurvivingRunner(inner, deaths)
    deaths.accounts = {"default": ACCOUNT_DEATHS_FEARED, "other": ACCOUNT_DEATHS_MAX}
    assert said(runner.run(iteration("a", "b"), OpenGuard())) == [("a", 0), ("b", 0)]
    assert deaths.begun == [["a"], ["b"]]
    deaths.accounts = {"default": ACCOUNT_DEATHS_MAX}
    a, b = runner.run(iteration("a", "b"), OpenGuard())
    assert (a.error_code, b.error_code) == (ErrorCode.NODE_KILLED, ErrorCode.NODE_KILLED)
    assert "died 4 times within a day while they worked for jobs of the account 'default'" in a.error_msg
    assert len(deaths.begun) == 2


def test_a_person_has_one_tried_again_once_for_each_time_that_it_was_reported() -> None:
    deaths, inner = FakeDeaths(b=2), FakeRunner(lambda each, guard: tuple(failed(each)))
    runner = SurvivingRunner(inner, deaths)

    def run(job: JobRow) -> int:
        (outcome,) = runner.run(replace(iteration("b"), jobs=(job,)), OpenGuard())
        return outcome.error_code

    assert run(row("b")) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"), ErrorCode.STORAGE)) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"))._replace(reason=Reason.QUARANTINED)) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"))) == ErrorCode.STORAGE
    deaths.known["b"] = Deaths(2, 9.0, "Aborted", forgiven_at_s=deaths.of(row("b")).forgiven_at_s)
    assert run(resumed(row("b"))) == ErrorCode.NODE_KILLED, "its row is as it was before it died again"
    assert run(resumed(row("b"), reported_at_s=10.0)) == ErrorCode.STORAGE


def failed(each: Iteration) -> Iterator[JobOutcome]:
    for outcome in applied(each, 4):
        yield replace(outcome, error_code=ErrorCode.STORAGE)


def test_a_cancellation_is_passed_on() -> None:
    inner = FakeRunner()
    SurvivingRunner(inner, FakeDeaths()).cancel(iteration("a", number=4))
    assert inner.cancelled == [4]
