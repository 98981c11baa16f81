"""The slots of the executor: their number, their order, how runs end, and that a slot is free only then."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.settings.config import SchedulerConfig
from iscp.model.values.errors import EngineError, ErrorCode, IscpError, LeaseLost
from iscp.ports.system import Guard
from iscp.schedule.executor import LEFT_OF_ACCOUNT_MAX, Executor, IterationQueue
from iscp.schedule.schedule_events import IterationEnded, IterationStarted
from iscp.system.threads import SystemClock
from tests.fakes.poison import StrExitsError
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.timetable import job
from tests.fakes.waiting import until

WAIT_S = 20.0


def iteration(number: int, *, account: str = "a", priority: int = 0, deadline_s: float = 0.0) -> Iteration:
    return Iteration(number, "t-1", "/t-1", (job("x", account=account),), None, priority, deadline_s)


class Bench:
    def __init__(self, runner: FakeRunner, **config: float) -> None:
        self.runner = runner
        self.events: queue.Queue[IterationStarted | IterationEnded] = queue.Queue()
        self.stuck: list[int] = []
        self.lease_lost = False
        self.epoch = 0
        settings = replace(SchedulerConfig(concurrency=1, cancel_wait_s=WAIT_S), **config)  # type: ignore[arg-type]
        self.executor = Executor(
            runner,
            SystemClock(),
            settings,
            self.check_lease,
            self.events.put,
            lambda one: self.stuck.append(one.number),
        )

    def check_lease(self, epoch: int) -> None:
        if self.lease_lost or epoch != self.epoch:
            raise LeaseLost("no")

    def submit(self, *iterations: Iteration) -> None:
        for one in iterations:
            assert self.executor.submit(one) is None

    def ends(self, count: int) -> list[IterationEnded]:
        found: list[IterationEnded] = []
        while len(found) < count:
            event = self.events.get(timeout=WAIT_S)
            if isinstance(event, IterationEnded):
                found.append(event)
        return found

    def counted(self, **numbers: int) -> bool:
        counters = self.executor.counters()
        return all(getattr(counters, name) == number for name, number in numbers.items())


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(runner: FakeRunner, **config: float) -> Bench:
        made.append(Bench(runner, **config))
        return made[-1]

    yield bench
    for each in made:
        if isinstance(each.runner, GatedRunner):
            for number in list(each.runner.order):
                each.runner.gate(number).set()
        each.executor.close(drain=False, wait_s=0)


Make = Callable[..., Bench]


def test_an_iteration_is_started_and_ended(make: Make) -> None:
    bench = make(FakeRunner())
    bench.submit(iteration(1))
    assert bench.events.get(timeout=WAIT_S) == IterationStarted(1)
    (ended,) = bench.ends(1)
    assert ended.outcomes == applied(iteration(1), 0)
    until(lambda: bench.counted(submitted=1, running=0, waiting=0, completed=1))


def test_no_more_run_at_once_than_there_are_slots(make: Make) -> None:
    def take_a_while(one: Iteration, _: object) -> tuple[JobOutcome, ...]:
        time.sleep(0.01)
        return applied(one, 0)

    bench = make(FakeRunner(take_a_while), concurrency=3)
    bench.submit(*(iteration(n) for n in range(1, 31)))
    bench.ends(30)
    assert bench.runner.most_running == 3


def test_higher_priority_then_earlier_deadline_then_first_come(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner)
    bench.submit(iteration(1))
    until(lambda: runner.order == [1])
    bench.submit(
        iteration(2, deadline_s=20),
        iteration(3, deadline_s=10),
        iteration(4, priority=1, deadline_s=99),
        iteration(5, deadline_s=10),
        iteration(6, priority=-1),
    )
    for number in range(1, 7):
        runner.gate(number).set()
    bench.ends(6)
    assert runner.order == [1, 4, 3, 5, 2, 6]


def test_an_account_with_many_waiting_does_not_starve_another(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner, concurrency=2)
    bench.submit(*(iteration(n, account="crowd", priority=9) for n in range(1, 41)))
    until(lambda: bench.counted(running=2))
    bench.submit(iteration(100, account="b"), iteration(101, account="b"), iteration(102, account="c"))
    for number in (*range(1, 41), 100, 101, 102):
        runner.gate(number).set()
    bench.ends(43)
    assert max(runner.order.index(number) for number in (100, 101, 102)) < 9


def test_a_full_queue_turns_away_and_makes_room_for_the_smaller_account(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner, queue_max=3)
    bench.submit(iteration(1))
    until(lambda: bench.counted(running=1))
    bench.submit(iteration(2), iteration(3), iteration(4))
    assert bench.executor.submit(iteration(5)) == iteration(5)
    assert bench.executor.submit(iteration(6, account="b")) == iteration(4)
    assert bench.executor.submit(iteration(7, priority=5)) == iteration(3), "its own, which comes later"
    assert bench.counted(waiting=3, rejected=3, submitted=6)
    for number in range(1, 8):
        runner.gate(number).set()
    bench.ends(4)
    assert sorted(runner.order) == [1, 2, 6, 7]


def test_a_cancel_of_what_waits_is_over_at_once(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner)
    bench.submit(iteration(1), iteration(2))
    until(lambda: bench.counted(running=1))
    assert bench.executor.cancel(2)
    assert not bench.executor.cancel(2)
    assert not bench.executor.cancel(77)
    runner.gate(1).set()
    bench.ends(1)
    time.sleep(0.02)
    assert runner.order == [1]
    assert bench.events.empty()


def test_a_cancel_stops_the_work_and_the_guard_lets_nothing_through(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner)
    bench.submit(iteration(1))
    until(lambda: runner.order == [1])
    assert not bench.executor.cancel(1)
    bench.executor.cancel(1)
    (ended,) = bench.ends(1)
    assert ended.error is not None
    assert ended.error.code == ErrorCode.CANCELED
    assert runner.cancelled == [1], "once"
    until(lambda: bench.counted(canceled=1, failed=0, running=0))


def test_what_was_committed_before_a_cancel_counts(make: Make) -> None:
    go = threading.Event()
    bench = make(FakeRunner(lambda one, guard: (go.wait(WAIT_S), applied(one, 4))[1]))
    bench.submit(iteration(1))
    until(lambda: bench.counted(running=1))
    bench.executor.cancel(1)
    go.set()
    (ended,) = bench.ends(1)
    assert [outcome.watermark.version for outcome in ended.outcomes] == [4]


def test_a_timeout_stops_the_work(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner, iteration_timeout_s=0.05)
    bench.submit(iteration(1))
    (ended,) = bench.ends(1)
    assert ended.error is not None
    assert ended.error.code == ErrorCode.TIMEOUT
    assert runner.cancelled == [1]
    until(lambda: bench.counted(timeout=1, failed=0))


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_no_timeout(make: Make, timeout_s: float) -> None:
    runner = GatedRunner()
    bench = make(runner, iteration_timeout_s=timeout_s)
    bench.submit(iteration(1))
    time.sleep(0.1)
    assert bench.counted(running=1)
    runner.gate(1).set()
    assert bench.ends(1)[0].error is None


def test_jobs_that_spark_reports_as_cancelled_after_a_timeout_have_timed_out(make: Make) -> None:
    """Otherwise a job that always takes too long would look as if somebody had cancelled it, for ever."""

    def body(one: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        until(lambda: runner.cancelled == [1])
        good, bad, other = (*applied(one, 3), *applied(one, 3), *applied(one, 3))
        failed = replace(bad, error_code=ErrorCode.CANCELED, error_msg="Job 7 cancelled part of cancelled job group")
        return good, failed, replace(other, error_code=ErrorCode.DUPLICATE_KEY)

    runner = FakeRunner(body)
    bench = make(runner, iteration_timeout_s=0.05)
    bench.submit(iteration(1))
    (ended,) = bench.ends(1)
    assert [o.error_code for o in ended.outcomes] == [ErrorCode.OK, ErrorCode.TIMEOUT, ErrorCode.DUPLICATE_KEY]


def test_a_slot_is_not_free_while_the_work_goes_on_and_past_a_deadline_somebody_is_called(make: Make) -> None:
    runner = GatedRunner(deaf=True)
    bench = make(runner, cancel_wait_s=0.1)
    bench.submit(iteration(1), iteration(2))
    until(lambda: runner.order == [1])
    bench.executor.cancel(1)
    until(lambda: bench.stuck == [1])
    time.sleep(0.2)
    assert bench.stuck == [1], "once"
    runner.gate(1).set()
    bench.ends(1)
    until(lambda: runner.order == [1, 2])


def test_a_run_that_nothing_ends_loses_its_slot_to_others(make: Make) -> None:
    runner = GatedRunner(deaf=True)
    bench = make(runner, cancel_wait_s=0.1)
    bench.submit(iteration(1), iteration(2, account="b"))
    until(lambda: runner.order == [1])
    bench.executor.cancel(1)
    until(lambda: runner.order == [1, 2])
    assert bench.counted(running=2, hanging=1)
    bench.submit(iteration(3, account="b"))
    runner.gate(1).set()
    (ended,) = bench.ends(1)
    assert ended.number == 1
    assert runner.order == [1, 2], "the slot that was given away is not there twice"
    runner.gate(2).set()
    until(lambda: runner.order == [1, 2, 3])
    until(lambda: bench.counted(running=1, hanging=0))


def test_an_account_of_which_many_runs_hang_begins_no_others(make: Make) -> None:
    runner = GatedRunner(deaf=True)
    bench = make(runner, cancel_wait_s=0.1)
    for number in range(LEFT_OF_ACCOUNT_MAX):
        bench.submit(iteration(number))
        until(lambda number=number: runner.order[-1:] == [number])  # type: ignore[misc]
        bench.executor.cancel(number)
    until(lambda: bench.counted(hanging=LEFT_OF_ACCOUNT_MAX))
    bench.submit(iteration(8), iteration(9, account="b"))
    until(lambda: runner.order[-1] == 9)
    runner.gate(0).set()
    runner.gate(9).set()
    until(lambda: runner.order[-1] == 8)


def test_a_lost_lease_stops_iterations_before_they_begin(make: Make) -> None:
    bench = make(FakeRunner())
    bench.lease_lost = True
    bench.submit(iteration(1))
    (ended,) = bench.ends(1)
    assert isinstance(ended.error, LeaseLost)
    assert bench.runner.order == []


def test_an_iteration_of_a_former_epoch_passes_no_guard_once_the_node_has_registered_again(make: Make) -> None:
    """The order to stop it may still be under way, when the new lease is confirmed already."""

    def registers_again(one: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        guard.check()
        bench.epoch = 2
        guard.check()
        return applied(one, 0)

    bench = make(FakeRunner(registers_again))
    bench.epoch = 1
    bench.submit(replace(iteration(1), epoch=1), replace(iteration(2), epoch=1))
    assert [type(ended.error) for ended in bench.ends(2)] == [LeaseLost, LeaseLost]
    assert bench.runner.order == [1], "what still waited does not even begin"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (EngineError("spark"), ErrorCode.ENGINE),
        (KeyError("bug"), ErrorCode.INTERNAL),
        (SystemExit("gone"), ErrorCode.INTERNAL),
        (StrExitsError(), ErrorCode.INTERNAL),
    ],
)
def test_what_a_run_raises_is_its_own(make: Make, raised: BaseException, code: int) -> None:
    def body(one: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if one.number == 1:
            raise raised
        return applied(one, 0)

    bench = make(FakeRunner(body))
    bench.submit(iteration(1), iteration(2))
    first, second = bench.ends(2)
    assert isinstance(first.error, IscpError)
    assert first.error.code == code
    assert second.error is None
    until(lambda: bench.counted(failed=1, completed=1))


def test_an_iteration_of_which_a_job_failed_is_failed(make: Make) -> None:
    bench = make(FakeRunner(lambda one, guard: tuple(replace(o, error_code=9) for o in applied(one, 0))))
    bench.submit(iteration(1))
    until(lambda: bench.counted(failed=1, completed=0))


def test_lines_about_an_iteration_say_whose_it_is(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Several accounts may have jobs on a table, and each reads its own lines alone."""

    def breaks(one: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        raise KeyError("bug")

    deaf = GatedRunner(deaf=True)
    broken, stuck = make(FakeRunner(breaks)), make(deaf, cancel_wait_s=0.1)
    for bench in (broken, stuck):
        bench.submit(iteration(1, account="acme"))
    until(lambda: deaf.order == [1])
    stuck.executor.cancel(1)
    until(lambda: stuck.stuck == [1])
    deaf.gate(1).set()
    broken.ends(1)
    said = {record.message: vars(record).get("account") for record in caplog.records}
    assert (said["iteration.broke"], said["iteration.stuck"]) == ("acme", "acme")


def test_close_lets_what_runs_end_and_cancels_what_waits(make: Make) -> None:
    runner = GatedRunner()
    bench = make(runner)
    bench.submit(iteration(1), iteration(2))
    until(lambda: runner.order == [1])
    threading.Timer(0.1, runner.gate(1).set).start()
    assert bench.executor.close(drain=True, wait_s=WAIT_S)
    ended = {event.number: event for event in bench.ends(2)}
    assert ended[1].error is None
    assert ended[2].error is not None
    assert runner.order == [1]
    assert runner.cancelled == []


@pytest.mark.parametrize(("drain", "wait_s"), [(False, WAIT_S), (True, 0.05)])
def test_close_cancels_at_once_or_after_its_time(make: Make, drain: bool, wait_s: float) -> None:
    runner = GatedRunner()
    bench = make(runner)
    bench.submit(iteration(1))
    until(lambda: runner.order == [1])
    assert bench.executor.close(drain=drain, wait_s=wait_s)
    assert runner.cancelled == [1]


def test_close_does_not_wait_for_ever(make: Make) -> None:
    runner = GatedRunner(deaf=True)
    bench = make(runner, cancel_wait_s=0.1)
    bench.submit(iteration(1))
    until(lambda: runner.order == [1])
    assert not bench.executor.close(drain=False, wait_s=0)
    until(lambda: bench.stuck == [1])


def test_after_close_everything_is_turned_away_and_nothing_breaks(make: Make) -> None:
    bench = make(FakeRunner())
    bench.submit(iteration(1))
    bench.ends(1)
    assert bench.executor.close(drain=True, wait_s=WAIT_S)
    assert bench.executor.submit(iteration(2)) == iteration(2)
    assert not bench.executor.cancel(2)
    assert bench.executor.close(drain=True, wait_s=WAIT_S)
    assert bench.counted(rejected=1, submitted=1)


def test_submits_and_cancels_at_once_lose_nothing(make: Make) -> None:
    bench = make(FakeRunner(), concurrency=4, queue_max=100_000)
    over: list[int] = []

    def client(first: int) -> None:
        for number in range(first, first + 500):
            bench.submit(iteration(number, account=str(number % 3)))
            if number % 5 == 0 and bench.executor.cancel(number):
                over.append(number)

    clients = [threading.Thread(target=client, args=(first,)) for first in (1, 1_001, 2_001)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(WAIT_S)
    ends = bench.ends(1_500 - len(over))
    assert len({end.number for end in ends} | set(over)) == 1_500
    until(lambda: bench.counted(running=0, waiting=0, submitted=1_500))


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "pop", "remove", "finish"]), st.sampled_from("abc"), st.integers(-2, 2)),
    max_size=80,
)


@given(STEPS)
def test_the_queue_keeps_count_and_order_within_an_account(steps: list[tuple[str, str, int]]) -> None:
    waiting: dict[int, Iteration] = {}
    running: list[Iteration] = []
    made = IterationQueue(length_max=10)
    for number, (action, account, choice) in enumerate(steps, start=1):
        if action == "put":
            one = iteration(number, account=account, priority=choice)
            turned_away = made.put(one)
            waiting[number] = one
            if turned_away is not None:
                del waiting[turned_away.number]
        elif action == "pop":
            one_popped = made.pop()
            assert (one_popped is None) == (not waiting)
            if one_popped is not None:
                del waiting[one_popped.number]
                running.append(one_popped)
                rivals = [other for other in waiting.values() if other.account == one_popped.account]
                assert all(other.priority <= one_popped.priority for other in rivals)
        elif action == "remove" and waiting:
            number = sorted(waiting)[choice % len(waiting)]
            assert made.remove(number)
            assert not made.remove(number)
            del waiting[number]
        elif action == "finish" and running:
            made.finish(running.pop(choice % len(running)))
        assert len(made) == len(waiting) <= 10
    assert {one.number for one in made.drain()} == set(waiting)
