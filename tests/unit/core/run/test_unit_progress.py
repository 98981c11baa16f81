"""Proves when a job of a run goes on, tries again, and ends, and what its result says then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.core.job.iteration import DataType, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.run.unit_progress import RETRY_BASE_S, TRIES_MAX, JobProgress
from iscp.core.values.errors import ErrorCode
from iscp.core.values.ids import JobKey
from iscp.core.values.watermark import Watermark

ROW = JobRow(JobKey("a", "t", "j"), "1", "{}", "t", "/t")


def progress(goal: int = 5, at: int = 2) -> JobProgress:
    row = ROW._replace(watermark=Watermark(at, 1.0), seq=3)
    return JobProgress(row, goal, RunResult("j", "a", "replica", "/t", "/r", ResultState.CURRENT, from_version=at))


def outcome(version: int, step: int = 0, rows: int = 7, code: int = 0, *, committed: bool = True) -> JobOutcome:
    at = Watermark(version, 1.0, step, 4 if step else 0)
    return JobOutcome(
        ROW, at, 4, code, "why" if code else "", rows=rows, bytes=70, committed=committed, strategy_reason="because"
    )


def test_a_job_at_its_goal_has_ended() -> None:
    made = progress()
    made.take(outcome(5), 1.5)
    assert made.ended
    result = made.result
    assert (result.state, result.rows, result.bytes, result.iterations) == (ResultState.UPDATED, 7, 70, 1)
    assert (result.from_version, result.to_version, result.seconds) == (2, 5, 1.5)
    assert (result.strategy, result.reason) == (DataType.TAIL, "because")


def test_a_job_that_wrote_nothing_is_current() -> None:
    made = progress()
    made.take(outcome(6, committed=False), 0.1)
    assert made.ended
    assert made.result.state is ResultState.CURRENT
    assert made.result.to_version == 6


def test_a_commit_whose_answer_was_lost_is_an_update_when_the_next_try_finds_it() -> None:
    made = progress()
    made.take(replace(outcome(2, code=int(ErrorCode.STORAGE)), seq=3), 0.1)
    made.take(outcome(5, committed=False), 0.1)
    assert made.ended
    assert (made.result.state, made.result.to_version, made.result.iterations) == (ResultState.UPDATED, 5, 1)
    assert "answer" in made.result.reason


def test_a_failure_before_any_commit_leaves_a_job_current() -> None:
    made = progress()
    made.take(replace(outcome(2, code=int(ErrorCode.STORAGE)), seq=4), 0.1)
    made.take(outcome(5, committed=False), 0.1)
    assert made.result.state is ResultState.CURRENT


def test_a_job_goes_on_by_versions_and_by_steps_of_one() -> None:
    made = progress()
    for version, step in ((3, 0), (3, 1), (3, 2), (4, 0)):
        made.take(outcome(version, step), 1.0)
        assert not made.ended
    made.take(outcome(5), 2.0)
    assert made.ended
    assert (made.result.rows, made.result.iterations) == (35, 5)


def test_steps_of_the_goal_itself_are_gone_through() -> None:
    made = progress(goal=3)
    made.take(outcome(3, 1), 1.0)
    assert not made.ended


def test_a_job_that_does_not_move_has_failed() -> None:
    made = progress()
    made.take(outcome(2), 1.0)
    assert made.ended
    assert made.result.error == "the iteration ended without progress"


def test_what_is_temporary_is_tried_again_and_then_has_failed() -> None:
    made = progress()
    for number in range(TRIES_MAX - 1):
        made.take(outcome(2, code=ErrorCode.STORAGE), 1.0)
        assert (made.ended, made.retry_s) == (False, RETRY_BASE_S * 2**number)
    made.take(outcome(2, code=ErrorCode.STORAGE), 1.0)
    assert made.ended
    assert (made.result.state, made.result.error, made.result.error_code) == (
        ResultState.FAILED,
        "why",
        ErrorCode.STORAGE,
    )


def test_tries_are_counted_in_a_row() -> None:
    made = progress(goal=20)
    for version in range(3, 12):
        made.take(outcome(version - 1, code=ErrorCode.CONFLICT), 1.0)
        made.take(outcome(version), 1.0)
        assert not made.ended


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_REQUEST, ErrorCode.CANCELED, ErrorCode.TIMEOUT, ErrorCode.SUPERSEDED]
)
def test_what_no_try_can_help_ends_the_job(code: ErrorCode) -> None:
    made = progress()
    made.take(outcome(2, code=code), 1.0)
    assert made.ended
    assert made.result.error_code == code


def test_a_job_that_waits_for_tables_that_are_behind_checks_them_again_until_it_waits_no_longer() -> None:
    made = progress()
    waiting = replace(outcome(5, committed=False), waits_for="b", wait_s=9.0)
    made.take(waiting, 0.1)
    assert (made.ended, made.retry_s) == (False, RETRY_BASE_S)
    made.take(replace(waiting, wait_s=0.125), 0.1)
    assert (made.ended, made.retry_s) == (False, 0.125)
    made.take(replace(outcome(5), warning="mixed"), 0.1)
    assert (made.ended, made.result.state, made.result.warning) == (True, ResultState.UPDATED, "mixed")
