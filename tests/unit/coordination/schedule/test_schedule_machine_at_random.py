"""Random events in any order: every job reaches the newest version, and none holds up another."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.coordination.protocol.effects import HoldIterations
from iscp.core.job.job_row import JobRow, Reason
from iscp.core.values.errors import ErrorCode
from tests.fakes.timetable import URI, Timetable, greedy, job, periodic, stopped

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
