"""Jobs that end with their targets, in the schedule: when one is deleted, what ends before, what is retried."""

from __future__ import annotations

import pytest

from iscp.model.job.iteration import JobOutcome, Purpose
from iscp.model.job.job_row import Deletion, JobRow, JobState, JobStatus, Reason
from iscp.model.job.start_rule import VerifyRequest
from iscp.model.protocol.events import HoldIterations
from iscp.model.values.errors import Canceled, ErrorCode, TableNotFound
from iscp.schedule.schedule_events import VerifyAnswered, VerifyRequested
from tests.fakes.timetable import SHARD, URI, Timetable, job


@pytest.fixture
def world() -> Timetable:
    made = Timetable()
    made.source.commit(URI, 5)
    return made


def ending(row: JobRow, **fields: object) -> JobRow:
    status = JobStatus(deletion=Deletion.WANTED, **fields).to_json()  # type: ignore[arg-type]
    return row._replace(reason=Reason.PAUSED, status_json=status)


def running(world: Timetable) -> list[tuple[int, str, Purpose]]:
    return [(i.number, "".join(row.key.job_name for row in i.jobs), i.purpose) for i in world.running.values()]


def end(world: Timetable, number: int, code: int = ErrorCode.OK, message: str = "") -> None:
    (row,) = world.running[number].jobs
    world.end(number, JobOutcome(row, row.watermark, row.seq + (code == ErrorCode.OK), code, message))


def test_the_target_is_deleted_alone_and_once_and_the_tables_other_jobs_go_on(world: Timetable) -> None:
    x, y = job("x", 3), job("y", 3)
    world.start(ending(x), y)
    assert running(world) == [(1, "x", Purpose.DELETE), (2, "y", Purpose.APPLY)]
    end(world, 1)
    report = world.reports[-1]
    assert (report.job_id, report.seq, report.state, report.reason) == ("id-x", x.seq + 1, JobState.COMPLETED, "paused")
    assert report.status is not None
    assert report.status.deletion is Deletion.DONE
    assert (world.history[-1].job_id, world.history[-1].error_code) == ("id-x", ErrorCode.OK)
    world.succeed(2)
    world.notify()
    world.wait(10_000)
    assert all(purpose is Purpose.APPLY for _, _, purpose in running(world))


def test_what_runs_of_the_job_is_cancelled_and_ends_before(world: Timetable) -> None:
    row = job("x", 3)
    world.start(row)
    assert running(world) == [(1, "x", Purpose.APPLY)]
    world.update(ending(row))
    assert world.cancelled == [1]
    assert running(world) == [(1, "x", Purpose.APPLY)], "the target is not deleted beside it"
    world.end(1, error=Canceled("it was cancelled"))
    assert running(world) == [(2, "x", Purpose.DELETE)]


@pytest.mark.parametrize("code", [ErrorCode.TARGET_UNUSABLE, ErrorCode.STORAGE])
def test_what_ran_of_the_job_and_failed_is_not_in_the_way(world: Timetable, code: ErrorCode) -> None:
    row = job("x", 3)
    world.start(row)
    world.update(ending(row))
    end(world, 1, code, "it fails")
    assert running(world) == [(2, "x", Purpose.DELETE)]


def test_a_source_that_is_gone_is_not_in_the_way() -> None:
    world = Timetable()
    world.source.errors[URI] = TableNotFound("there is none")
    world.start(ending(job("x", 3)))
    assert running(world) == [(1, "x", Purpose.DELETE)]


def test_a_refusal_is_reported_and_tried_again_only_on_request(world: Timetable) -> None:
    row = ending(job("x", 3))
    world.start(row)
    end(world, 1, ErrorCode.TARGET_UNUSABLE, "it is another's")
    report = world.reports[-1]
    assert (report.state, report.status and report.status.error_msg) == (JobState.ERROR, "it is another's")
    world.wait(100_000)
    refused = ending(job("x", 3), error_code=int(ErrorCode.TARGET_UNUSABLE))._replace(state=JobState.ERROR)
    world.update(refused)
    assert running(world) == []
    world.update(row)
    assert running(world) == [(2, "x", Purpose.DELETE)]


def test_a_fault_is_tried_again_after_a_while(world: Timetable) -> None:
    world.start(ending(job("x", 3)))
    for number in (1, 2, 3):
        end(world, number, ErrorCode.STORAGE, "the disk is away")
        report = world.reports[-1]
        assert (report.reason, report.status and report.status.failures) == (Reason.PAUSED, number)
        assert running(world) == []
        world.wait(1_000)
        assert running(world) == [(number + 1, "x", Purpose.DELETE)]


def test_a_deletion_that_was_interrupted_is_no_failure(world: Timetable) -> None:
    world.start(ending(job("x", 3)))
    world.end(1, error=Canceled("the node gives way"))
    assert world.reports == []
    world.wait(1_000)
    assert running(world) == [(2, "x", Purpose.DELETE)]


def test_a_job_that_is_dropped_after_all_has_its_deletion_cancelled(world: Timetable) -> None:
    world.start(ending(job("x", 3)), job("y", 5))
    world.update(job("y", 5))
    assert world.cancelled == [1]


def test_while_iterations_are_postponed_no_target_is_deleted(world: Timetable) -> None:
    world.step(HoldIterations(True))
    world.start(ending(job("x", 3)))
    assert running(world) == []
    world.step(HoldIterations(False))
    world.wait(0)
    assert running(world) == [(1, "x", Purpose.DELETE)]


def test_nobody_compares_what_is_being_deleted(world: Timetable) -> None:
    row = job("x", 5)
    world.start(row)
    world.update(ending(row))
    world.end_cancelled(1)
    world.step(VerifyRequested(VerifyRequest("ask-1", SHARD, row.job_id, True)))
    assert [news.verify_id for news in world.news if isinstance(news, VerifyAnswered)] == ["ask-1"]
    assert running(world) == [(2, "x", Purpose.DELETE)]
