"""Random events in any order: every job reaches the newest version, and none holds up another.

Comparisons in the schedule: never beside an iteration of their job, never in the way of others, always answered.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.model.job.iteration import JobOutcome, Purpose
from iscp.model.job.job_row import JobRow, Reason
from iscp.model.job.start_rule import Comparison, VerifyReport, VerifyRequest
from iscp.model.protocol.events import HoldIterations
from iscp.model.values.errors import Canceled, EngineError, ErrorCode, IscpError, Unavailable
from iscp.model.values.ids import ShardId
from iscp.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn
from tests.fakes.timetable import SHARD, URI, Timetable, greedy, job, periodic, stopped

NAMES = ("x", "y", "z")


class Anything:
    """Drives a timetable by random actions, and checks after each what must always hold."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.world = Timetable(draw=draw)
        self.world.source.commit(URI, 2)
        self.rows: dict[str, JobRow] = {"x": job("x"), "y": job("y", account="b")}
        self.ids = 0
        self.missing: int | None = None
        self.world.start(*self.rows.values())

    def dispatch(self) -> None:
        self.world.update(*self.rows.values())

    def registered(self, name: str) -> JobRow:
        self.ids += 1
        return job(name, job_id=f"{name}-{self.ids}", account="b" if name == "y" else "a")

    def act(self, action: str, pick: int) -> None:
        getattr(self, action)(pick)
        self.check()

    def pick_running(self, pick: int) -> int | None:
        numbers = sorted(self.world.running)
        return numbers[pick % len(numbers)] if numbers else None

    @property
    def newest(self) -> int | None:
        return self.world.source.versions.get(URI)

    def respecify(self, pick: int) -> None:
        name, kind = NAMES[pick % len(NAMES)], pick // len(NAMES)
        if name in self.rows:
            plain = self.rows[name]._replace(spec_json=job(name).spec_json)
            self.rows[name] = [plain, greedy(plain), periodic(plain, 30.0), periodic(plain, 30.0, share=True)][kind]
            self.dispatch()
            if pick % 2:
                self.world.interrupt(self.rows[name])

    # The source

    def commit(self, pick: int) -> None:
        if self.newest is not None:
            self.world.source.commit(URI, 1 + pick % 2)

    def anew(self, pick: int) -> None:
        if self.newest is not None:
            self.world.source.anew(URI, self.newest)

    def vanish(self, pick: int) -> None:
        if self.newest is not None:
            self.missing = self.world.source.versions.pop(URI)

    def reappear(self, pick: int) -> None:
        if self.newest is None and self.missing is not None:
            self.world.source.versions[URI] = self.missing

    # The node

    def notify(self, pick: int) -> None:
        self.world.notify(targets=pick % 2 == 0)

    def wait(self, pick: int) -> None:
        self.world.wait([0.5, 10, 400][pick % 3])

    def hold(self, pick: int) -> None:
        self.world.step(HoldIterations(pick % 2 == 0))

    def slow_probes(self, pick: int) -> None:
        self.world.hold_probes = not self.world.hold_probes
        while self.world.probes and not self.world.hold_probes:
            self.world.answer()

    # Iterations

    def succeed(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            self.world.started(number)
            self.world.succeed(number)

    def succeed_partly(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            version = self.world.running[number].jobs[0].watermark.version
            self.world.succeed(number, version=min(self.newest, max(0, version + 1)))

    def fail(self, pick: int) -> None:
        if number := self.pick_running(pick):
            self.world.fail(number, code=[ErrorCode.ENGINE, ErrorCode.TABLE_NOT_FOUND, ErrorCode.TIMEOUT][pick % 3])

    def fail_x(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            self.world.fail(number, names=["x"])

    def turn_away(self, pick: int) -> None:
        if number := self.pick_running(pick):
            self.world.reject(number)

    def end_cancelled(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and number in self.world.cancelled:
            self.world.end_cancelled(number)

    # Jobs

    def add(self, pick: int) -> None:
        name = NAMES[pick % len(NAMES)]
        self.rows[name] = self.rows.get(name) or self.registered(name)
        self.dispatch()

    def remove(self, pick: int) -> None:
        self.rows.pop(NAMES[pick % len(NAMES)], None)
        self.dispatch()

    def recreate(self, pick: int) -> None:
        self.rows[NAMES[pick % len(NAMES)]] = self.registered(NAMES[pick % len(NAMES)])
        self.dispatch()

    def pause(self, pick: int) -> None:
        name = NAMES[pick % len(NAMES)]
        if name in self.rows:
            self.rows[name] = self.rows[name]._replace(reason=[Reason.PAUSED, Reason.NONE][pick // 3 % 2])
            self.dispatch()

    def restart(self, pick: int) -> None:
        """The shard is moved away and comes back with what was reported."""
        self.world.stop()
        for number in list(self.world.running):
            self.check()
            self.world.end_cancelled(number)
        assert stopped(self.world)
        for report in self.world.reports:
            row = self.rows.get(report.key.job_name)
            if row is not None and row.job_id == report.job_id:
                self.rows[report.key.job_name] = row._replace(watermark=report.watermark, seq=report.seq)
        self.world.forget()
        self.world.start(*self.rows.values())

    def check(self) -> None:
        world = self.world
        keys = [row.key for iteration in world.running.values() for row in iteration.jobs]
        assert len(keys) == len(set(keys)), "a job is in two iterations"
        for iteration in world.running.values():
            assert len({row.key.account for row in iteration.jobs}) == 1
        due_s = world.schedule.next_due_s()
        if self.rows and not world.probes:
            assert due_s is not None or world.running, "the table would be forgotten"

    def settle(self) -> None:
        """From now on everything succeeds, and nothing new happens."""
        world = self.world
        world.hold_probes = False
        while world.probes:
            world.answer()
        self.reappear(0)
        world.step(HoldIterations(False))
        for name in list(self.rows):
            self.rows[name] = self.rows[name]._replace(reason=Reason.NONE)
        self.dispatch()
        for _ in range(200):
            world.wait(400)
            self.check()
            if not world.running:
                if world.schedule.next_due_s() is not None:
                    world.wait(4_000)
                if not world.running:
                    break
            for number in list(world.running):
                world.succeed(number)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("commit", "anew", "vanish", "reappear", "notify", "wait", "hold", "slow_probes"),
                *("succeed", "succeed_partly", "fail", "fail_x", "turn_away", "end_cancelled"),
                *("add", "remove", "recreate", "pause", "restart", "respecify"),
            )
        ),
        st.integers(0, 11),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(ACTIONS, st.randoms(use_true_random=False))
def test_whatever_happened_each_job_reaches_the_newest_version(actions: list[tuple[str, int]], random: object) -> None:
    anything = Anything(random.random)  # type: ignore[attr-defined]
    for action, pick in actions:
        anything.act(action, pick)
    anything.settle()
    world = anything.world
    assert world.running == {}
    world.source.commit(URI)
    world.notify()
    for _ in range(10):
        world.wait(60)
        for number in list(world.running):
            world.succeed(number)
    newest = world.source.versions[URI]
    reached = {report.job_id: report.watermark.version for report in world.reports}
    for row in anything.rows.values():
        assert reached.get(row.job_id, row.watermark.version) == newest


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["commit", "wait", "notify"]), st.integers(0, 2)), max_size=40))
def test_a_job_that_always_fails_never_holds_up_another(actions: list[tuple[str, int]]) -> None:
    world = Timetable()
    world.source.commit(URI, 2)
    world.start(job("good"), job("bad"))

    def run() -> None:
        for number in list(world.running):
            world.fail(number, names=["bad"])

    for action, pick in actions:
        if action == "commit":
            world.source.commit(URI)
        elif action == "wait":
            world.wait([0.5, 10, 400][pick % 3])
        elif action == "notify":
            world.notify()
        run()
        run()
        world.notify()
        run()
        good = [report for report in world.reports if report.key.job_name == "good"]
        assert good[-1].watermark.version == world.source.versions[URI]


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
