"""A trace begins with the notice of a commit, or with the call of whoever has notified the node of it."""

from __future__ import annotations

from dataclasses import replace

from iscp.coordination.further_tables import FurtherAnswer
from iscp.coordination.schedule.schedule_events import ProbeAnswered
from iscp.core.job.iteration import Iteration, Purpose
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.ids import ShardId
from iscp.ports.tracing import within_trace
from iscp.runtime.worker.noticed_commits import CALLER_S, CALLERS_MAX, NoticedCommits
from tests.fakes.clock import FakeClock
from tests.fakes.timetable import SHARD, URI, job
from tests.fakes.tracing import RecordingTracer, traceparent

ITERATION = Iteration(1, SHARD.table_id, URI, (job("a"),))


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tracer = RecordingTracer()
        self.noticed = NoticedCommits(self.tracer, self.clock)

    def answer(self, version: int, *, since_s: float = 0.0, further: tuple[FurtherAnswer, ...] = ()) -> None:
        state = ProbeState(version, b"", since_s)
        self.noticed.note_answer(ProbeAnswered(SHARD, URI, state, further=further))

    def call(self, number: int, shard: ShardId = SHARD) -> None:
        with within_trace(traceparent(number)):
            self.noticed.note_caller(shard)

    def traced(self, purpose: Purpose = Purpose.APPLY) -> str:
        return self.noticed.traced(replace(ITERATION, purpose=purpose)).trace


def test_a_table_that_is_there_already_is_no_notice_and_one_that_moves_is() -> None:
    world = World()
    world.answer(3)
    assert (world.tracer.spans, world.traced()) == ([], "")
    world.answer(3)
    assert world.tracer.spans == []
    world.clock.advance(60)
    committed_s = world.clock.now_s() - 5
    world.answer(5, since_s=committed_s)
    notice = world.tracer.one("iscp.notice")
    assert (notice.parent, notice.start_s) == ("", committed_s)
    assert notice.attributes == {"iscp.table": URI, "iscp.version.from": 3, "iscp.version": 5}
    assert world.traced() == notice.trace
    assert world.traced() == notice.trace, "a job at another pace belongs to the same commit"


def test_a_queued_iteration_says_since_when() -> None:
    world = World()
    queued = world.noticed.traced(ITERATION)
    assert (queued.trace, queued.submitted_at_s) == ("", world.clock.now_s())


def test_a_table_that_moved_before_it_was_seen_here_is_worked_on_for_who_has_called() -> None:
    world = World()
    world.call(77)
    world.answer(3)
    assert (world.tracer.spans, world.traced()) == ([], traceparent(77))
    world.answer(4)
    assert world.tracer.one("iscp.notice").parent == ""


def test_an_iteration_that_a_call_has_begin_before_any_probe_is_a_part_of_the_call_as_the_notice_is() -> None:
    world = World()
    world.answer(3)
    there = replace(ITERATION, jobs=(job("a", 3),))
    world.call(77)
    assert world.noticed.traced(there).trace == traceparent(77)
    assert world.noticed.traced(replace(there, purpose=Purpose.REPAIR)).trace == ""
    world.answer(4)
    assert world.tracer.one("iscp.notice").parent == traceparent(77)
    assert world.noticed.traced(replace(ITERATION, jobs=(job("a", 4),))).trace == ""


def test_an_iteration_of_jobs_that_have_applied_the_commit_is_no_part_of_it() -> None:
    world = World()
    world.answer(3)
    world.answer(4)
    there, behind = replace(ITERATION, jobs=(job("a", 4),)), replace(ITERATION, jobs=(job("a", 4), job("b", 3)))
    assert world.noticed.traced(there).trace == ""
    assert world.noticed.traced(behind).trace == world.tracer.one("iscp.notice").trace


def test_a_comparison_is_no_part_of_a_commit() -> None:
    world = World()
    world.answer(3)
    world.answer(4)
    assert world.traced(Purpose.VERIFY) == ""


def test_a_clock_of_the_storage_that_is_ahead_makes_no_span_that_ends_before_it_begins() -> None:
    world = World()
    world.answer(3)
    world.answer(4, since_s=world.clock.now_s() + 1_000)
    assert world.tracer.one("iscp.notice").start_s == world.clock.now_s()


def test_what_a_caller_notified_is_a_part_of_its_trace_once() -> None:
    world = World()
    world.answer(3)
    world.call(77)
    world.answer(3)  # a probe that was under way
    world.answer(4)
    world.answer(5)
    first, second = world.tracer.named("iscp.notice")
    assert (first.parent, second.parent) == (traceparent(77), "")


def test_an_old_call_and_one_of_another_shard_are_not_the_reason() -> None:
    world = World()
    world.answer(3)
    world.call(7, ShardId("t-2"))
    world.answer(4)
    world.call(8)
    world.clock.advance(CALLER_S + 1)
    world.answer(5)
    assert [span.parent for span in world.tracer.spans] == ["", ""]


def test_calls_that_lead_to_nothing_are_forgotten_beyond_a_bound() -> None:
    world = World()
    world.answer(3)
    world.call(1)
    for number in range(CALLERS_MAX):
        world.call(2, ShardId(f"other-{number}"))
    world.answer(4)
    assert world.tracer.one("iscp.notice").parent == ""


def test_a_further_table_that_moves_is_noticed_for_the_jobs_that_read_it() -> None:
    world = World()
    world.answer(3, further=(FurtherAnswer("/other", ProbeState(7)), FurtherAnswer("/gone", None)))
    world.answer(3, further=(FurtherAnswer("/other", ProbeState(8)),))
    notice = world.tracer.one("iscp.notice")
    assert notice.attributes["iscp.table"] == "/other"
    there = replace(ITERATION, jobs=(job("a", 3),))
    assert [world.noticed.traced(there).trace for _ in range(2)] == [notice.trace, ""]


def test_nothing_is_remembered_of_a_table_that_cannot_be_probed_or_has_left() -> None:
    world = World()
    world.noticed.note_answer(ProbeAnswered(SHARD, URI, None))
    world.answer(3)
    world.answer(4)
    assert world.traced() != ""
    world.call(7)
    world.noticed.forget(SHARD)
    assert world.traced() == ""
    world.answer(9)
    world.answer(10)
    assert world.tracer.named("iscp.notice")[1].parent == ""
