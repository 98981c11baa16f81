"""The scheduler's loop: it takes events from many threads, carries out effects, and sleeps in between.

A trace begins with the notice of a commit, or with the call of whoever has notified the node of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import pytest

from iscp.model.job.iteration import Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobReport, JobRow, JobStatus
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import (
    HoldIterations,
    Reports,
    Seen,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopShard,
    UpdateShard,
)
from iscp.model.settings.config import BackoffConfig, ProbeConfig, SchedulerConfig
from iscp.model.values.errors import QueueFull
from iscp.model.values.ids import ShardId
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.ports.system import Guard, within_trace
from iscp.schedule.executor import Executor
from iscp.schedule.iteration_outcomes import ScheduleTimes
from iscp.schedule.lag import FurtherAnswer
from iscp.schedule.probes import SHARE_MAX
from iscp.schedule.schedule_events import IterationEnded, ProbeAnswered, VerifyWithdrawn, WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import CALLER_S, CALLERS_MAX, INBOX_MAX, NoticedCommits, Scheduler
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.probe import FakeProbe
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.targets import FakeTargets
from tests.fakes.timetable import EPOCH, SHARD, URI, job, specified
from tests.fakes.tracing import RecordingTracer, traceparent
from tests.fakes.waiting import until

WAIT_S = 20.0


class Sources(FakeProbe):
    """Safe for threads, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.calls = 0

    def first_probe(self, table_uri: str) -> ProbeState:
        with self.lock:
            self.calls += 1
            return super().first_probe(table_uri)


class Node:
    def __init__(
        self,
        runner: FakeRunner | None = None,
        interval_s: float = 0.02,
        queue_max: int = 1_000,
        source: Sources | None = None,
        inbox_max: int = INBOX_MAX,
        timeout_s: float = WAIT_S,
    ) -> None:
        self.source = source or Sources()
        self.runner = runner or FakeRunner(self.apply)
        self.news: list[WorkerNews] = []
        self.broken: list[Exception] = []
        schedule = Schedule(
            "n-1",
            ProbeConfig(interval_min_s=interval_s, interval_max_s=max(interval_s, 0.2), timeout_s=timeout_s),
            BackoffConfig(base_s=0.05, cap_s=0.2),
            lambda: 0.5,
            ScheduleTimes(announce_s=0.05),
        )
        clock, self.targets = SystemClock(), FakeTargets()
        self.scheduler = Scheduler(schedule, self.source, self.targets, clock, self.broken.append, inbox_max)
        self.scheduler.reports.subscribe(self.news.append, *get_args(WorkerNews))
        config = SchedulerConfig(concurrency=2, queue_max=queue_max, cancel_wait_s=WAIT_S)
        self.executor = Executor(
            self.runner, clock, config, lambda epoch: None, self.scheduler.post, lambda iteration: None
        )
        self.scheduler.start(self.executor)

    def apply(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        guard.check()
        goal = iteration.to_version
        return applied(iteration, self.source.versions[iteration.table_uri] if goal is None else goal)

    def reports(self) -> list[JobReport]:
        return [report for news in list(self.news) if isinstance(news, Reports) for report in news.reports]

    def reached(self, name: str = "x") -> int:
        return max((r.watermark.version for r in self.reports() if r.key.job_name == name), default=-1)

    def has(self, kind: type, shard: ShardId = SHARD) -> bool:
        return any(isinstance(news, kind) and news.shard == shard for news in list(self.news))  # type: ignore[union-attr]


@pytest.fixture
def make() -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def node(*args: object, **kwargs: object) -> Node:
        made.append(Node(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield node
    for each in made:
        assert each.broken == []
        each.executor.close(drain=False, wait_s=0)
        assert each.scheduler.close(WAIT_S)


Make = Callable[..., Node]


def test_a_change_is_noticed_run_and_reported(make: Make) -> None:
    node = make()
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"),)))
    until(lambda: node.reached() == 2)
    assert node.has(ShardStarted)
    node.source.commit(URI)
    until(lambda: node.reached() == 3)
    until(lambda: any(isinstance(news, Seen) and news.seen.source_version == 3 for news in node.news))


def test_a_repair_is_reported_before_it_is_applied_and_not_afterwards(make: Make) -> None:
    def repairs() -> list[int]:
        return [news.seen.repair_version for news in list(node.news) if isinstance(news, Seen)]

    node = make()
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"),)))
    # The first iteration does not wait for the first probe, which reads no commits.
    until(lambda: node.reached() == 2 and repairs())
    node.source.repairs.add(3)
    node.source.commit(URI)
    until(lambda: 3 in repairs())
    until(lambda: node.reached() == 3 and repairs()[-1] == 0)


def test_a_notify_wakes_a_loop_that_sleeps_for_long(make: Make) -> None:
    node = make(interval_s=3_600.0)
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 2),)))
    until(lambda: node.source.calls == 1)
    node.source.commit(URI)
    for _ in range(100):
        node.scheduler.notify(SHARD, False)
    until(lambda: node.reached() == 3)


def test_asleep_it_costs_nothing(make: Make) -> None:
    node = make(interval_s=3_600.0)
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 2),)))
    until(lambda: node.source.calls == 1)
    time.sleep(0.1)
    before_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before_s < 0.1
    assert node.source.calls == 1


def test_a_shard_stops_when_its_iteration_has_ended(make: Make) -> None:
    runner = GatedRunner()
    node = make(runner)
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"), job("y"), job("z"))))
    until(lambda: len(runner.order) == 2)
    node.scheduler.post(StopShard(SHARD))
    until(lambda: node.has(ShardStopped))
    assert runner.running == 0
    assert sorted(runner.cancelled) == sorted(runner.order)
    assert len(runner.order) == 2, "what waited never ran"


def test_what_the_queue_turns_away_runs_later(make: Make) -> None:
    turned_away = threading.Event()

    def apply(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        turned_away.wait(WAIT_S)  # else a quick executor would never have a full queue
        return node.apply(iteration, guard)

    node = make(FakeRunner(apply), queue_max=2)
    for n in range(30):
        node.source.commit(f"/{n}", 2)
        shard = ShardId(f"t-{n}")
        node.scheduler.post(StartShard(shard, EPOCH, (job(f"j{n}", uri=f"/{n}", shard=shard),)))
    until(lambda: node.executor.counters().rejected > 0)
    turned_away.set()
    until(lambda: all(node.reached(f"j{n}") == 1 for n in range(30)))


def test_a_probe_that_breaks_is_an_error_of_its_table_alone(make: Make) -> None:
    class Broken(Sources):
        def first_probe(self, table_uri: str) -> ProbeState:
            if table_uri == "/bad":
                raise ZeroDivisionError
            return super().first_probe(table_uri)

    node = make(source=Broken())
    node.source.commit(URI, 3)
    bad = ShardId("bad")
    node.scheduler.post(StartShard(bad, EPOCH, (job("bad", 1, uri="/bad", shard=bad),)))
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 1),)))
    until(lambda: node.reached() == 2)
    until(lambda: any(r.key.job_name == "bad" and r.status and r.status.error_code for r in node.reports()))


def test_a_source_behind_a_network_that_hangs_holds_up_no_other(make: Make) -> None:
    let_go = threading.Event()

    class Hanging(Sources):
        def first_probe(self, table_uri: str) -> ProbeState:
            if table_uri in self.far:
                assert let_go.wait(WAIT_S)
            return super().first_probe(table_uri)

    source = Hanging()
    source.far = {f"s3://far/{n}" for n in range(SHARE_MAX + 1)}
    node = make(source=source)
    for uri in (URI, *source.far):
        source.commit(uri, 3)
    for n, uri in enumerate(sorted(source.far)):
        shard = ShardId(f"far-{n}")
        node.scheduler.post(StartShard(shard, EPOCH, (job(f"far-{n}", 1, uri=uri, shard=shard),)))
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 1),)))
    until(lambda: node.reached() == 2)
    let_go.set()
    until(lambda: all(node.reached(f"far-{n}") == 2 for n in range(len(source.far))))


def test_local_storage_that_hangs_holds_up_its_own_tables_alone_and_says_so(make: Make) -> None:
    let_go = threading.Event()

    class Hanging(Sources):
        def first_probe(self, table_uri: str) -> ProbeState:
            if table_uri.startswith("/hung/"):
                assert let_go.wait(WAIT_S)
            return super().first_probe(table_uri)

    node = make(source=Hanging(), timeout_s=0.3)
    hung, well = [f"/hung/{n}" for n in range(2 * SHARE_MAX)], [f"/well/{n}" for n in range(20)]
    for uri in (*hung, *well):
        node.source.commit(uri, 3)
        shard = ShardId(uri)
        node.scheduler.post(StartShard(shard, EPOCH, (job(uri, 1, uri=uri, shard=shard),)))
    until(lambda: all(node.reached(uri) == 2 for uri in well))
    took_s = []
    for number in range(3, 23):
        began_s = time.monotonic()
        node.source.commit(well[0])
        node.scheduler.notify(ShardId(well[0]), False)
        until(lambda number=number: node.reached(well[0]) == number)  # type: ignore[misc]
        took_s.append(time.monotonic() - began_s)
    assert sorted(took_s)[-2] <= 1.0
    until(lambda: all(any(r.key.job_name == uri and r.status for r in node.reports()) for uri in hung))
    until(lambda: node.scheduler.pool.counters() == {"probes_late": SHARE_MAX, "probes_waiting": SHARE_MAX})
    let_go.set()
    until(lambda: all(node.reached(uri) == 2 for uri in hung))
    until(lambda: node.scheduler.pool.counters() == {"probes_late": 0, "probes_waiting": 0})


def test_while_held_nothing_runs(make: Make) -> None:
    node = make()
    node.source.commit(URI, 3)
    node.scheduler.post(HoldIterations(True))
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"),)))
    until(lambda: node.source.calls > 3)
    assert node.runner.order == []
    node.scheduler.post(HoldIterations(False))
    until(lambda: node.reached() == 2)


def test_events_are_not_starved_by_a_pass_over_many_tables(make: Make) -> None:
    class Slow(Sources):
        def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
            time.sleep(0.0005)
            return super().probe(table_uri, seen)

    node = make(interval_s=0.001, source=Slow())
    for n in range(3_000):
        node.source.commit(f"/{n}", 2)
        shard = ShardId(f"t-{n}")
        node.scheduler.post(StartShard(shard, EPOCH, (job("x", 1, uri=f"/{n}", shard=shard),)))
    began_s = time.monotonic()
    node.scheduler.post(StopShard(ShardId("unknown")))
    until(lambda: node.has(ShardStopped, ShardId("unknown")))
    assert time.monotonic() - began_s < 10


def test_many_threads_give_and_nothing_is_lost(make: Make) -> None:
    node = make()
    node.source.commit(URI, 3)

    def client(which: int) -> None:
        for n in range(200):
            shard = ShardId(f"{which}-{n}")
            node.scheduler.post(StartShard(shard, EPOCH, ()))
            node.scheduler.post(UpdateShard(shard, EPOCH, ()))
            node.scheduler.post(StopShard(shard))

    clients = [threading.Thread(target=client, args=(which,)) for which in range(4)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(WAIT_S)
    until(lambda: sum(isinstance(news, ShardStopped) for news in list(node.news)) == 800)


def test_requests_are_refused_where_the_inbox_is_full_and_never_wait() -> None:
    schedule = Schedule("n-1", ProbeConfig(), BackoffConfig(), lambda: 0.0)
    never_started = Scheduler(schedule, FakeProbe(), FakeTargets(), SystemClock(), lambda error: None, inbox_max=2)
    for job_id in ("j-1", "j-2"):
        never_started.interrupt(SHARD, job_id, "{}")
    with pytest.raises(QueueFull):
        never_started.interrupt(SHARD, "j-3", "{}")
    never_started.request(VerifyWithdrawn(SHARD, "v-1"))
    never_started.post(HoldIterations(True))
    never_started.notify(SHARD, False)
    never_started.close(0)
    never_started.post(IterationEnded(1))
    never_started.interrupt(SHARD, "j-3", "{}")


def test_what_the_node_itself_has_to_say_comes_through_a_full_inbox(make: Make) -> None:
    """Lost, the answer of a probe behind a network would be the last one, and a job whose end did would never run."""
    node = make(inbox_max=0)
    far = "s3://far/1"
    node.source.far = {far}
    node.source.commit(far, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", uri=far),)))
    until(lambda: node.reached() == 2)
    node.source.commit(far)
    until(lambda: node.reached() == 3)


def test_a_broken_invariant_is_reported_once() -> None:
    node = Node(GatedRunner())
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"),)))
    until(lambda: node.runner.order == [1])
    node.scheduler.post(StopShard(SHARD))
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x"),)))
    until(lambda: len(node.broken) == 1)
    node.executor.close(drain=False, wait_s=0)
    assert node.scheduler.close(WAIT_S)


def view(other: str) -> JobRow:
    """One that is up to date with its own table."""
    tables = {"own": URI, "other": other}
    consumer = {"kind": "view", "target": "/v", "options": {"tables": tables}}
    return specified(job("x", 2), iteration={"consumer": consumer})


def test_a_commit_of_a_further_table_is_noticed_also_behind_a_network(make: Make) -> None:
    runner, other = GatedRunner(), "s3://tables/other"
    marks = {other: SourceMark("o", Watermark(0, 1.0))}
    row = view(other)._replace(status_json=JobStatus(sources=marks).to_json())
    node = make(runner)
    node.source.far.add(other)
    node.source.commit(URI, 3)
    node.source.commit(other)
    node.scheduler.post(StartShard(SHARD, EPOCH, (row,)))
    until(lambda: node.source.looks.get(other, 0) > 2)
    assert runner.order == []
    node.source.commit(other)
    until(lambda: len(runner.order) == 1)
    runner.gate(runner.order[0]).set()


def test_a_further_table_that_cannot_be_probed_ends_no_loop(make: Make) -> None:
    runner = GatedRunner()
    node = make(runner)
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (view("/tables/gone"),)))
    until(lambda: len(runner.order) == 1)


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
