"""The loop around a machine: the order of events, wake-ups, and that its failure is reported.

Each effect is carried out by all that have subscribed to its type, and none is lost.

Wake-ups coalesce, and none is missed.

What is read of a loop is read by its own thread, and comes as it is found, refused, or not in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from iscp.model.values.errors import InvariantBroken, NotOwner, QueueFull
from iscp.system.inbox import (
    EVENTS_MAX,
    PUT_WAIT_S,
    Gathered,
    Inbox,
    InboxLimits,
    Notifier,
    Subscriptions,
    Turns,
    query_loop,
)
from iscp.system.threads import THREADS, SystemClock
from tests.fakes.waiting import until

WAIT_S = 10.0
STREAM_S = 2.0


class Machine:
    """Remembers what it took and when it ticked; `due_s` is when it wants to be woken."""

    def __init__(self, take: Callable[[object], None] = lambda event: None) -> None:
        self.clock = SystemClock()
        self.taken: list[object] = []
        self.ticks: list[float] = []
        self.threads: set[str] = set()
        self.due_s: float | None = None
        self.broken: list[Exception] = []
        self._then = take
        self.inbox: Inbox[object] = Inbox(
            "test", self.clock, Turns(self.take, self.tick, lambda: self.due_s), self.break_off
        )

    def take(self, event: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.taken.append(event)
        self._then(event)

    def tick(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.ticks.append(self.clock.monotonic_s())
        self.due_s = None

    def break_off(self, error: Exception) -> None:
        self.broken.append(error)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.inbox.close()
    assert made.broken == []


def test_events_are_taken_in_order_also_those_from_before_the_start(machine: Machine) -> None:
    for number in range(100):
        machine.inbox.put(number)
    machine.inbox.start()
    for number in range(100, 200):
        machine.inbox.put(number)
    machine.inbox.close()
    assert machine.taken == list(range(200))


def test_many_givers_are_served_by_one_thread_each_in_its_own_order(machine: Machine) -> None:
    machine.inbox.start()

    def give(who: int) -> None:
        for number in range(500):
            machine.inbox.put((who, number))

    givers = [threading.Thread(target=give, args=(who,)) for who in range(4)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    machine.inbox.close()
    for who in range(4):
        assert [event for event in machine.taken if isinstance(event, tuple) and event[0] == who] == [
            (who, n) for n in range(500)
        ]
    assert machine.threads == {"test"}


def test_the_tick_comes_when_it_is_due_and_not_before(machine: Machine) -> None:
    due_s = machine.due_s = machine.clock.monotonic_s() + 0.1
    machine.inbox.start()
    until(lambda: bool(machine.ticks))
    assert due_s <= machine.ticks[0] < due_s + WAIT_S
    time.sleep(0.05)
    assert len(machine.ticks) == 1  # nothing is due any more: it sleeps


def test_an_event_that_makes_the_machine_due_earlier_is_heeded() -> None:
    def be_due(_: object) -> None:
        made.due_s = made.clock.monotonic_s() + 0.02

    made = machine = Machine(be_due)
    machine.due_s = machine.clock.monotonic_s() + 3_600
    machine.inbox.start()
    machine.inbox.put("sooner")
    until(lambda: bool(machine.ticks))
    machine.inbox.close()


def test_a_stream_of_events_does_not_keep_the_tick_from_coming() -> None:
    def again(event: object) -> None:
        if not machine.ticks and time.monotonic() < end_s:
            machine.inbox.put(event)

    machine = Machine(again)
    end_s = time.monotonic() + STREAM_S
    machine.due_s = machine.clock.monotonic_s() + 0.02
    machine.inbox.put("again and again")
    machine.inbox.start()
    until(lambda: bool(machine.ticks) or time.monotonic() > end_s)
    assert machine.ticks
    assert machine.ticks[0] < end_s
    machine.inbox.close()


def test_a_machine_that_stays_due_still_takes_its_events() -> None:
    machine = Machine()
    machine.inbox = Inbox("test", machine.clock, Turns(machine.take, lambda: None, lambda: 0.0), machine.break_off)
    machine.inbox.start()
    machine.inbox.put("heard")
    until(lambda: machine.taken == ["heard"])
    machine.inbox.close()


def test_a_broken_machine_is_reported_once_and_takes_nothing_more() -> None:
    def breaks(event: object) -> None:
        raise ZeroDivisionError(event)

    machine = Machine(breaks)
    for event in ("first", "second"):
        machine.inbox.put(event)
    machine.inbox.start()
    until(lambda: bool(machine.broken))
    machine.inbox.close()
    assert machine.taken == ["first"]
    assert [type(error) for error in machine.broken] == [ZeroDivisionError]


def fill(machine: Machine) -> None:
    for number in range(EVENTS_MAX):
        machine.inbox.put(number)


def test_a_full_inbox_refuses_what_comes_from_elsewhere_and_breaks_nothing() -> None:
    machine = Machine()
    machine.inbox = Inbox(
        "test", machine.clock, Turns(machine.take, machine.tick, lambda: None), machine.break_off, InboxLimits(3, 0.05)
    )
    for number in range(3):
        machine.inbox.put(number)
    with pytest.raises(QueueFull):
        machine.inbox.put("one too many")
    machine.inbox.post("said once")
    machine.inbox.start()
    machine.inbox.close()
    assert (machine.taken, machine.broken) == ([0, 1, 2, "said once"], [])


def test_who_waits_for_room_goes_on_when_there_is_some() -> None:
    machine = Machine()
    machine.inbox = Inbox(
        "test", machine.clock, Turns(machine.take, machine.tick, lambda: None), machine.break_off, InboxLimits(1)
    )
    machine.inbox.put("first")
    giver = threading.Thread(target=lambda: machine.inbox.put("second"))
    giver.start()
    machine.inbox.start()
    giver.join(WAIT_S)
    machine.inbox.close()
    assert (machine.taken, machine.broken) == (["first", "second"], [])


def test_a_full_inbox_does_not_end_a_machine_that_gives_itself_something() -> None:
    """As an owner does when it records a checkpoint: if its own event were refused, it would end itself."""

    def puts(event: object) -> None:
        if event == "first":
            gate.wait(WAIT_S)
            machine.inbox.put("its own")

    gate = threading.Event()
    machine = Machine(puts)
    machine.inbox.start()
    machine.inbox.put("first")
    until(lambda: machine.taken == ["first"])
    fill(machine)
    began_s = time.monotonic()
    gate.set()
    until(lambda: machine.taken[-1] == "its own")
    assert time.monotonic() - began_s < PUT_WAIT_S / 2
    machine.inbox.close()
    assert machine.broken == []


def test_a_broken_machine_with_a_full_inbox_does_not_hold_up_the_end() -> None:
    def breaks(event: object) -> None:
        gate.wait(WAIT_S)
        raise ZeroDivisionError(event)

    gate = threading.Event()
    machine = Machine(breaks)
    machine.inbox.start()
    machine.inbox.put("first")
    until(lambda: machine.taken == ["first"])
    fill(machine)
    gate.set()
    until(lambda: "test" not in {thread.name for thread in threading.enumerate()})
    began_s = time.monotonic()
    machine.inbox.close()
    assert time.monotonic() - began_s < WAIT_S / 2


def test_what_is_gathered_for_one_event_is_joined_until_it_is_taken() -> None:
    gathered: Gathered[int] = Gathered(lambda before, now: before + now)
    assert [gathered.add(1), gathered.add(2), gathered.take(), gathered.add(4), gathered.take()] == [
        True,
        False,
        3,
        True,
        4,
    ]


def test_it_may_be_closed_from_its_own_thread() -> None:
    def close(_: object) -> None:
        made.inbox.close()

    made = machine = Machine(close)
    machine.inbox.start()
    machine.inbox.put("close")
    until(lambda: machine.taken == ["close"])
    machine.inbox.close()
    assert machine.broken == []


@dataclass(frozen=True)
class Start:
    number: int


@dataclass(frozen=True)
class Stop:
    number: int


def test_an_effect_goes_to_those_of_its_type_in_the_order_of_their_subscription() -> None:
    taken: list[tuple[str, object]] = []
    orders = Subscriptions()
    orders.subscribe(lambda effect: taken.append(("first", effect)), Start, Stop)
    orders.subscribe(lambda effect: taken.append(("second", effect)), Start)
    for effect in (Start(1), Stop(2), Start(3)):
        orders.publish(effect)
    assert taken == [
        ("first", Start(1)),
        ("second", Start(1)),
        ("first", Stop(2)),
        ("first", Start(3)),
        ("second", Start(3)),
    ]


def test_what_nobody_carries_out_is_no_silent_loss() -> None:
    orders = Subscriptions()
    orders.subscribe(lambda effect: None, Start)
    with pytest.raises(InvariantBroken, match="Stop"):
        orders.publish(Stop(1))


def test_what_one_raises_ends_it_for_those_behind_it() -> None:
    """As the loop is broken then, nobody is to go on by an order that another has not got."""
    taken: list[object] = []
    orders = Subscriptions()

    def refuse(effect: Start) -> None:
        raise ValueError(effect.number)

    orders.subscribe(refuse, Start)
    orders.subscribe(taken.append, Start)
    with pytest.raises(ValueError, match="1"):
        orders.publish(Start(1))
    assert taken == []


def test_many_calls_wake_once() -> None:
    notifier = Notifier()
    for _ in range(5):
        notifier.notify()
    assert notifier.wait(0)
    assert not notifier.wait(0)


def test_a_call_before_the_wait_is_not_missed() -> None:
    notifier = Notifier()
    notifier.notify()
    began_s = time.monotonic()
    assert notifier.wait(30)
    assert time.monotonic() - began_s < 10


def test_a_waiter_is_woken_from_another_thread() -> None:
    notifier = Notifier()
    threading.Timer(0.05, notifier.notify).start()
    assert notifier.wait(None)


def test_of_ten_thousand_calls_the_last_is_always_seen() -> None:
    notifier, given, taken = Notifier(), [0], 0

    def give() -> None:
        for _ in range(2_500):
            with lock:
                given[0] += 1
            notifier.notify()

    lock = threading.Lock()
    givers = [threading.Thread(target=give) for _ in range(4)]
    for giver in givers:
        giver.start()
    while taken < 10_000:
        assert notifier.wait(10), "a call was missed"
        with lock:
            taken = given[0]
    for giver in givers:
        giver.join()


def aside(act: Callable[[], None]) -> None:
    threading.Thread(target=act, name="the loop").start()


def test_the_answer_is_found_on_the_loop_s_thread() -> None:
    assert query_loop(aside, lambda: threading.current_thread().name, WAIT_S, THREADS) == "the loop"


def test_a_loop_that_answers_at_once_holds_nobody_up() -> None:
    assert query_loop(lambda act: act(), lambda: 7, WAIT_S, THREADS) == 7


def test_what_the_read_raises_is_the_caller_s() -> None:
    def read() -> None:
        raise NotOwner("another leads")

    with pytest.raises(NotOwner, match="another leads"):
        query_loop(aside, read, WAIT_S, THREADS)


def test_a_full_loop_takes_no_read() -> None:
    def put(act: Callable[[], None]) -> None:
        raise QueueFull("the loop does not keep up")

    with pytest.raises(QueueFull):
        query_loop(put, lambda: 7, WAIT_S, THREADS)


def test_a_loop_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        query_loop(lambda act: None, lambda: 7, 0.01, THREADS)
