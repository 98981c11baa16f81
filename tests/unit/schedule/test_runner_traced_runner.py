"""An iteration is recorded with its wait, and points to the commits that it has taken in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.ports.system import Guard, current_trace
from iscp.schedule.runner import LINKS_MAX, TracedRunner
from tests.fakes.guards import OpenGuard
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.timetable import SHARD, URI, job
from tests.fakes.tracing import RecordingTracer, traceparent

ROWS = job("a", 3), job("b", 5)
ITERATION = Iteration(4, SHARD.table_id, URI, ROWS, trace=traceparent(9), submitted_at_s=50.0)


class Commits:
    """The traces in commits: of `URI` each has its version's, of others they have a thousand more."""

    def __init__(self) -> None:
        self.read: list[tuple[str, int]] = []

    def trace(self, uri: str, version: int) -> str:
        self.read.append((uri, version))
        return "" if version % 2 else traceparent(version + (0 if uri == URI else 1_000))


def run(outcomes: tuple[JobOutcome, ...], iteration: Iteration = ITERATION) -> tuple[RecordingTracer, Commits]:
    tracer, commits = RecordingTracer(), Commits()
    runner = TracedRunner(FakeRunner(lambda *_: outcomes), tracer, commits.trace)
    assert runner.run(iteration, OpenGuard()) == outcomes
    return tracer, commits


def test_an_iteration_lasts_from_its_submission_and_waits_first() -> None:
    seen: list[str] = []

    def body(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        seen.append(current_trace())
        return applied(iteration, 6)

    tracer = RecordingTracer()
    TracedRunner(FakeRunner(body), tracer, Commits().trace).run(ITERATION, OpenGuard())
    iteration, queue = tracer.one("iscp.iteration"), tracer.one("iscp.queue")
    assert (iteration.parent, iteration.start_s) == (traceparent(9), 50.0)
    assert (queue.parent, queue.start_s, queue.ended) == (iteration.trace, 50.0, True)
    assert seen == [iteration.trace]
    assert iteration.attributes["iscp.account"] == "a"
    assert iteration.attributes["iscp.jobs.failed"] == 0


def test_commits_that_were_taken_in_are_read_once_for_all_jobs_and_linked() -> None:
    tracer, commits = run(applied(ITERATION, 6))
    assert commits.read == [(URI, 6), (URI, 5), (URI, 4)]
    assert tracer.one("iscp.iteration").links == [traceparent(6), traceparent(4)]


def test_a_job_of_several_tables_points_to_each_that_moved() -> None:
    row = job("a", 3)
    marks = {URI: SourceMark("t-1", Watermark(4)), "/other": SourceMark("t-2", Watermark(2))}
    tracer, _ = run((replace(applied(replace(ITERATION, jobs=(row,)), 4)[0], sources=marks),))
    assert tracer.one("iscp.iteration").links == [traceparent(4), traceparent(1_002)]


def test_first_rows_come_of_the_newest_commit_and_failed_jobs_of_none() -> None:
    iteration = replace(ITERATION, jobs=(job("new"), job("b", 5)))
    new, failed = applied(iteration, 8)
    _, commits = run((new, replace(failed, error_code=ErrorCode.STORAGE)), iteration)
    assert commits.read == [(URI, 8)]


def test_a_long_range_is_read_back_to_a_bound_only() -> None:
    _, commits = run(applied(ITERATION, 1_000_000))
    assert commits.read == [(URI, 1_000_000 - number) for number in range(LINKS_MAX)]


def test_a_log_that_cannot_be_read_costs_the_links_alone() -> None:
    def refuse(uri: str, version: int) -> str:
        raise PermissionError(uri)

    tracer, outcomes = RecordingTracer(), applied(ITERATION, 6)
    assert TracedRunner(FakeRunner(lambda *_: outcomes), tracer, refuse).run(ITERATION, OpenGuard()) == outcomes
    assert tracer.one("iscp.iteration").failure is None


def test_an_iteration_that_fails_as_a_whole_is_a_span_that_failed() -> None:
    def fail(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        raise StorageError("away")

    tracer = RecordingTracer()
    with pytest.raises(StorageError):
        TracedRunner(FakeRunner(fail), tracer, Commits().trace).run(ITERATION, OpenGuard())
    assert tracer.one("iscp.iteration").failure == ("StorageError", "away")


def test_a_cancel_reaches_the_runner() -> None:
    inner = FakeRunner()
    TracedRunner(inner, RecordingTracer(), Commits().trace).cancel(ITERATION)
    assert inner.cancelled == [ITERATION.number]
