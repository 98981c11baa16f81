"""A table whose storage does not answer is held: nothing of it starts, and it is never said to be up to date."""

from __future__ import annotations

from iscp.model.protocol.events import Seen
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.model.values.ids import ShardId
from iscp.schedule.schedule_events import ProbeLate
from tests.fakes.timetable import PROBE, SHARD, URI, Timetable, job

WHY = "the storage does not answer"


def seen(world: Timetable) -> list[SourceSeen]:
    return [news.seen for news in world.news if isinstance(news, Seen)]


def unreached(world: Timetable) -> list[bool]:
    return [each.unreached for each in seen(world)]


def test_a_probe_that_is_not_answered_in_time_is_said_and_said_again(world: Timetable) -> None:
    world.start(job("x", 3))
    probed_at_s = world.clock.now_s()
    world.forget()
    world.hold_probes = True
    world.wait(PROBE.interval_min_s + PROBE.timeout_s - 0.1)
    assert unreached(world) == []
    world.wait(0.2)
    assert unreached(world) == [True]
    assert seen(world)[-1].checked_at_s == probed_at_s, "when it was probed last"
    world.wait(10 * PROBE.timeout_s)
    assert 5 <= len(seen(world)) <= 11, "a new owner has not heard of it"
    assert world.reports == [], "it may only wait for its turn"
    world.hold_probes = False
    world.answer()
    assert not unreached(world)[-1]
    assert seen(world)[-1].checked_at_s > probed_at_s


def test_a_late_probe_is_an_error_of_all_its_jobs_until_it_is_answered(world: Timetable) -> None:
    world.start(job("x", 3), job("y", 3))
    world.forget()
    world.hold_probes = True
    world.notify()
    world.step(ProbeLate(SHARD, URI, WHY))
    assert world.told("x") == world.told("y") == [("error", "retrying")]
    assert world.reports[0].status is not None
    assert (world.reports[0].status.error_code, world.reports[0].status.error_msg) == (ErrorCode.STORAGE, WHY)
    assert unreached(world) == [True]
    world.step(ProbeLate(SHARD, URI, WHY))
    assert len(world.reports) == 2, "said once"
    world.source.commit(URI)
    world.answer()
    assert world.told("x")[-1] == world.told("y")[-1] == ("completed", "none")
    assert world.now_running == [(("x", "y"), None)]
    assert not unreached(world)[-1]


def test_nothing_of_a_held_table_starts_and_it_is_not_probed_again(world: Timetable) -> None:
    world.start(job("x", 3))
    world.hold_probes = True
    world.notify()
    world.step(ProbeLate(SHARD, URI, WHY))
    world.forget()
    world.update(job("x", 3), job("new"))
    world.notify(targets=True)
    world.wait(7_200)
    assert world.submitted == []
    assert len(world.probes) == 1
    assert world.told("new") == [("error", "retrying")], "the reason is shown of each job"
    world.hold_probes = False
    world.answer()
    assert sorted(world.now_running) == [(("new",), 3), (("x",), None)]


def test_the_late_answer_of_a_table_that_cannot_be_read_keeps_it_unreached(world: Timetable) -> None:
    world.start(job("x", 3))
    world.forget()
    world.hold_probes = True
    world.notify()
    world.step(ProbeLate(SHARD, URI, WHY))
    world.source.errors[URI] = StorageError("no route")
    world.hold_probes = False
    world.answer()
    world.wait(60)
    assert all(unreached(world))
    del world.source.errors[URI]
    world.wait(300)
    assert not unreached(world)[-1]
    assert world.told("x")[-1] == ("completed", "none")


def test_a_table_that_never_could_be_probed_here_is_said_to_be_unreached(world: Timetable) -> None:
    world.hold_probes = True
    world.start(job("x", 3))
    world.wait(PROBE.timeout_s)
    assert [(each.unreached, each.checked_at_s) for each in seen(world)] == [(True, 0.0)]


def test_news_of_a_table_that_is_not_probed_here_any_more_changes_nothing(world: Timetable) -> None:
    world.step(ProbeLate(ShardId("unknown"), URI, WHY))
    world.start(job("x", 3))
    world.forget()
    world.step(ProbeLate(SHARD, URI, WHY))
    assert (world.reports, world.news) == ([], []), "it has been answered"
    world.hold_probes = True
    world.notify()
    world.stop()
    world.forget()
    world.step(ProbeLate(SHARD, URI, WHY))
    world.wait(60)
    assert (world.reports, world.news) == ([], [])
