"""A job whose first snapshot is built by ranges waits without a fault, and runs again in time or when notified."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, JobStatus, apply_report
from iscp.model.protocol.events import StartShard
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Watermark
from iscp.schedule.iteration_outcomes import BUILD_LOOK_S
from tests.fakes.timetable import EPOCH, SHARD, Timetable, job

WANTED = BuildRequest(7, 1024, 3)


def request(world: Timetable, number: int, build: BuildRequest = WANTED) -> None:
    """The iteration has claimed the sink, and waits."""
    (row,) = world.running[number].jobs
    world.end(number, JobOutcome(row, Watermark(), max(1, row.seq), build=build))


def last_row(world: Timetable) -> JobRow:
    return world.submitted[-1].jobs[0]


def test_it_waits_and_says_so_once(world: Timetable) -> None:
    world.start(job("x"))
    request(world, 1)
    assert world.told("x") == [("pending", "building")]
    assert (world.reports[-1].seq, world.reports[-1].watermark.version) == (1, -1)
    assert world.reports[-1].status is not None
    assert (world.reports[-1].status.build, world.reports[-1].status.error_code) == (WANTED, 0)
    assert world.history == [], "a claim is no iteration of rows"
    for number in range(2, 6):
        world.wait(BUILD_LOOK_S - 0.1)
        assert not world.running, "it does not run all the time"
        world.wait(0.2)
        assert last_row(world).build == WANTED, "what runs next knows the request"
        request(world, number)
    assert world.told("x") == [("pending", "building")]


def test_a_notification_has_it_run_at_once(world: Timetable) -> None:
    world.start(job("x"))
    request(world, 1)
    world.notify()
    assert world.now_running == [(("x",), None)]
    world.succeed(2)
    assert world.told("x")[-1] == ("completed", "none")
    assert world.reports[-1].status is not None
    assert world.reports[-1].status.build is None


def test_another_version_is_reported(world: Timetable) -> None:
    world.start(job("x"))
    request(world, 1)
    world.notify()
    request(world, 2, replace(WANTED, version=9))
    found = [report.status.build for report in world.reports if report.status is not None]
    assert found == [WANTED, replace(WANTED, version=9)]
    assert world.told("x") == [("pending", "building")] * 2


def test_a_fault_meanwhile_waits_by_backoff_and_the_request_stays(world: Timetable) -> None:
    world.start(job("x"))
    request(world, 1)
    world.notify()
    world.fail(2)
    assert world.told("x")[-1] == ("error", "retrying")
    assert world.reports[-1].status is not None
    assert world.reports[-1].status.build == WANTED
    world.notify()
    assert not world.running, "a notification ends no backoff"
    world.wait(5.1)
    assert last_row(world).build == WANTED
    request(world, 3)
    assert world.told("x")[-1] == ("pending", "building")


def test_a_row_of_the_owner_that_does_not_know_it_yet_takes_nothing_away(world: Timetable) -> None:
    world.start(job("x"))
    request(world, 1)
    world.update(job("x"), job("y", 3))
    world.notify()
    (row,) = next(each.jobs for each in world.running.values() if each.jobs[0].key.job_name == "x")
    assert (row.build, row.seq) == (WANTED, 1)


@pytest.mark.parametrize("seq", [0, 1])
def test_an_owner_that_does_not_know_it_gets_it_again(world: Timetable, seq: int) -> None:
    """The one before may have ended before it wrote down what was reported."""
    world.start(job("x"))
    request(world, 1)
    told = len(world.reports)
    world.update(job("x")._replace(seq=seq))
    assert world.told("x")[-1] == ("pending", "building")
    (report,) = world.reports[told:]
    assert (report.seq, report.watermark.version) == (1, -1)
    assert report.status is not None
    assert report.status.build == WANTED


def test_a_node_that_takes_over_goes_on_with_it(world: Timetable) -> None:
    row = job("x")._replace(seq=1, status_json=JobStatus(build=WANTED).to_json())
    world.step(StartShard(SHARD, EPOCH, (row,), 4))
    assert last_row(world).build == WANTED


def test_one_that_failed_for_good_is_tried_again_where_the_owner_knows_only_that_it_waits(world: Timetable) -> None:
    """The owner may have ended before it wrote the failure down: nobody would ever hear of it."""
    world.start(job("x"))
    request(world, 1)
    waiting = apply_report(job("x"), world.reports[-1])
    assert waiting is not None
    world.notify()
    world.fail(2, ErrorCode.SCHEMA_CHANGED)
    world.wait(60)
    assert not world.running
    world.update(waiting)
    assert world.now_running == [(("x",), None)]
    assert last_row(world).build == WANTED
