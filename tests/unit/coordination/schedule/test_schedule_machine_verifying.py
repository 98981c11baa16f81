"""Comparisons in the schedule: never beside an iteration of their job, never in the way of others, always answered."""

from __future__ import annotations

from itertools import count

import pytest

from iscp.coordination.protocol.effects import HoldIterations
from iscp.coordination.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn
from iscp.core.job.iteration import JobOutcome, Purpose
from iscp.core.job.job_row import JobRow, Reason
from iscp.core.job.verification import Comparison, VerifyReport, VerifyRequest
from iscp.core.values.errors import Canceled, EngineError, ErrorCode, IscpError, Unavailable
from iscp.core.values.ids import ShardId
from tests.fakes.timetable import SHARD, URI, Timetable, job

IDS = count(1)


@pytest.fixture
def world() -> Timetable:
    made = Timetable()
    made.source.commit(URI, 5)
    return made


def ask(world: Timetable, row: JobRow, repair: bool = False, shard: ShardId = SHARD) -> str:
    verify_id = f"ask-{next(IDS)}"
    world.step(VerifyRequested(VerifyRequest(verify_id, shard, row.job_id, repair)))
    return verify_id


def running(world: Timetable) -> list[tuple[int, str, Purpose]]:
    return [(i.number, "".join(row.key.job_name for row in i.jobs), i.purpose) for i in world.running.values()]


def answers(world: Timetable) -> dict[str, VerifyReport | IscpError]:
    return {news.verify_id: news.answer for news in world.news if isinstance(news, VerifyAnswered)}


def end(world: Timetable, number: int, repaired: bool = False) -> VerifyReport:
    (row,) = world.running[number].jobs
    seq = row.seq + repaired
    report = VerifyReport(row.watermark.version, seq, Comparison(), repaired=repaired)
    world.end(number, JobOutcome(row, row.watermark, seq, verified=report, committed=repaired))
    return report


def test_a_comparison_waits_for_the_jobs_iteration_and_the_next_one_waits_for_it(world: Timetable) -> None:
    row = job("x", 3)
    world.start(row)
    asked = ask(world, row)
    assert running(world) == [(1, "x", Purpose.APPLY)]
    world.succeed(1)
    assert running(world) == [(2, "x", Purpose.VERIFY)]
    world.source.commit(URI)
    world.notify()
    assert len(world.running) == 1
    report = end(world, 2)
    assert answers(world) == {asked: report}
    assert running(world) == [(3, "x", Purpose.APPLY)]


def test_the_tables_other_jobs_go_on_meanwhile_and_the_one_catches_up(world: Timetable) -> None:
    x, y = job("x", 4), job("y", 4)
    world.start(x, y)
    ask(world, x)
    world.source.commit(URI)
    world.notify()
    assert running(world) == [(1, "x", Purpose.VERIFY), (2, "y", Purpose.APPLY)]
    world.succeed(2)
    end(world, 1)
    assert world.now_running == [(("x",), 5)]


def test_nothing_is_reported_of_a_job_that_is_only_probed(world: Timetable) -> None:
    row = job("x", 4)._replace(reason=Reason.PAUSED)
    world.start(row)
    ask(world, row)
    world.wait(5)
    end(world, 1)
    assert (world.reports, world.history) == ([], [])
    assert world.now_running == [], "it is paused"


def test_a_repair_is_reported_and_goes_into_the_history(world: Timetable) -> None:
    row = job("x", 4)
    world.start(row)
    ask(world, row, repair=True)
    assert running(world) == [(1, "x", Purpose.REPAIR)]
    end(world, 1, repaired=True)
    assert [(report.seq, report.watermark.version) for report in world.reports] == [(6, 4)]
    assert [(entry.seq, entry.from_version, entry.error_code) for entry in world.history] == [(6, -1, 0)]
    world.source.commit(URI)
    world.notify()
    assert world.last.jobs[0].seq == 6


def test_one_comparison_answers_all_who_waited_for_the_same_and_the_job_is_not_starved(world: Timetable) -> None:
    row = job("x", 3)
    world.start(row)
    both = [ask(world, row), ask(world, row)]
    mending = ask(world, row, repair=True)
    world.succeed(1)
    late = ask(world, row)
    world.source.commit(URI)
    world.notify()
    report = end(world, 2)
    assert answers(world) == dict.fromkeys(both, report)
    assert running(world) == [(3, "x", Purpose.APPLY)], "its changes come before the next comparison"
    world.succeed(3)
    assert running(world) == [(4, "x", Purpose.REPAIR)]
    end(world, 4)
    assert running(world) == [(5, "x", Purpose.VERIFY)]
    end(world, 5)
    assert set(answers(world)) == {*both, mending, late}


def test_a_fault_of_a_comparison_is_for_the_caller_and_not_the_jobs(world: Timetable) -> None:
    row = job("x", 4)
    world.start(row)
    asked = ask(world, row)
    fault = EngineError("out of memory")
    world.end(1, error=fault)
    assert answers(world) == {asked: fault}
    again = ask(world, row)
    world.reject(2)
    refused = answers(world)[again]
    assert isinstance(refused, IscpError)
    assert refused.code == ErrorCode.QUEUE_FULL
    assert world.reports == []


def test_who_requests_a_job_that_is_not_here_or_goes_away_gets_an_error(world: Timetable) -> None:
    row = job("x", 3)
    nobody = ask(world, row)
    world.start(row)
    waiting = ask(world, row)
    world.update()
    assert {asked: type(answer) for asked, answer in answers(world).items()} == {
        nobody: Unavailable,
        waiting: Unavailable,
    }
    world.end_cancelled(1)
    world.update(job("x", 4, job_id="anew"))
    flying = ask(world, job("x", 4, job_id="anew"))
    late = ask(world, job("x", 4, job_id="anew"), repair=True)
    world.stop()
    assert isinstance(answers(world)[late], Unavailable)
    world.end_cancelled(world.last.number)
    assert isinstance(answers(world)[flying], Canceled)
    never = ask(world, row)
    assert isinstance(answers(world)[never], Unavailable)


def test_what_nobody_waits_for_any_more_is_not_done(world: Timetable) -> None:
    row = job("x", 3)
    world.start(row)
    first, second = ask(world, row), ask(world, row)
    gone = ask(world, row, repair=True)
    world.step(VerifyWithdrawn(SHARD, gone))
    world.succeed(1)
    world.step(VerifyWithdrawn(SHARD, first))
    assert world.cancelled == [], "another still waits for it"
    world.step(VerifyWithdrawn(SHARD, second))
    assert world.cancelled == [2]
    world.end_cancelled(2)
    assert (answers(world), running(world)) == ({}, [])


def test_nothing_is_compared_while_the_lease_is_in_doubt(world: Timetable) -> None:
    row = job("x", 4)
    world.start(row)
    world.step(HoldIterations(True))
    ask(world, row)
    assert world.running == {}
    world.step(HoldIterations(False))
    world.wait(1)
    assert running(world) == [(1, "x", Purpose.VERIFY)]
