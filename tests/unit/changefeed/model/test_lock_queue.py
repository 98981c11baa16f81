"""Acquiring a shard's lock: every way in which an attempt can end, and that each attempt ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.changefeed.model.lock_queue import (
    SHORT_TRY_S,
    Acquired,
    Began,
    CheckConnection,
    Counted,
    CountIncidents,
    GiveUp,
    GiveUpReason,
    Incidents,
    LockTimedOut,
    Proceed,
    QueueEffect,
    QueueEvent,
    QueueLimits,
    RaiseIncidents,
    Sampled,
    SampleState,
    TryLock,
    Waiting,
)
from iscp.model.values.errors import InvariantBroken

LIMITS = QueueLimits(timeout_s=1.0, wait_max_s=3.0)
SEEN = Incidents(4, 71)
BEGUN: tuple[tuple[float, QueueEvent], ...] = ((0.0, Began()), (0.0, Counted(SEEN)))
WAITED = (*BEGUN, (0.02, LockTimedOut()), (0.02, Sampled("s0")), (1.02, LockTimedOut()))


def play(*events: tuple[float, QueueEvent]) -> list[QueueEffect]:
    """The effects of the last of these."""
    waiting, effects = Waiting(LIMITS), list[QueueEffect]()
    for now_s, event in events:
        effects = waiting.step(event, now_s)
    return effects


def test_a_free_lock_is_had_at_the_first_try_and_nothing_is_sampled() -> None:
    assert play((0.0, Began())) == [CountIncidents()]
    assert play(*BEGUN) == [TryLock(4, SHORT_TRY_S)]
    assert play(*BEGUN, (0.0, Acquired())) == [Proceed()]


def test_after_the_first_try_the_state_is_sampled_and_then_waited() -> None:
    assert play(*BEGUN, (0.02, LockTimedOut())) == [SampleState()]
    assert play(*BEGUN, (0.02, LockTimedOut()), (0.02, Sampled("s0"))) == [TryLock(4, 1.0)]
    assert play(*WAITED[:4], (0.7, Acquired())) == [Proceed()]


def test_waited_in_vain_while_nothing_moved_is_an_incident() -> None:
    assert play(*WAITED) == [SampleState()]
    raised = [RaiseIncidents(SEEN), CheckConnection(), GiveUp(GiveUpReason.INCIDENT, 1.02)]
    assert play(*WAITED, (1.02, Sampled("s0"))) == raised


def test_a_line_that_moves_is_waited_in_for_another_round_under_the_name_that_holds_by_then() -> None:
    moved = (*WAITED, (1.02, Sampled("s1")))
    assert play(*moved) == [CountIncidents()]
    again = (*moved, (1.02, Counted(Incidents(5, 90))))
    assert play(*again) == [TryLock(5, 1.0)]
    assert play(*again, (1.5, Acquired())) == [Proceed()]
    in_vain = (*again, (2.02, LockTimedOut()), (2.02, Sampled("s1")))
    assert play(*in_vain)[0] == RaiseIncidents(Incidents(5, 90)), "it is the round's own sample that counts"


def test_a_line_that_moves_for_too_long_is_given_up_and_burns_nothing() -> None:
    events = [*WAITED]
    for now_s, state in ((1.02, "s1"), (2.02, "s2")):
        events += [(now_s, Sampled(state)), (now_s, Counted(SEEN)), (now_s + 1, LockTimedOut())]
    assert play(*events, (3.02, Sampled("s3"))) == [GiveUp(GiveUpReason.LONG_LINE, 3.02)]
    assert play(*events, (3.02, Sampled("s2")))[0] == RaiseIncidents(SEEN), "but it may stop at the end"


@pytest.mark.parametrize("event", [Began(), Counted(SEEN), Acquired(), Sampled("s")], ids=lambda each: repr(each)[:8])
def test_what_was_not_requested_is_refused(event: QueueEvent) -> None:
    with pytest.raises(InvariantBroken, match="cannot take the event"):
        play(*WAITED, (1.02, event), (1.02, event))


def test_an_attempt_that_is_over_stays_over() -> None:
    with pytest.raises(InvariantBroken, match="is over, and cannot take"):
        play(*BEGUN, (0.0, Acquired()), (0.0, Began()))


class World:
    """Answers as it is drawn: how long each answer takes, whether a lock is had, whether state and count have moved."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw
        self.now_s = 1000.0
        self.seen = Incidents()
        self.samples: list[tuple[float, int]] = []
        self.waits: list[float] = []

    def answer(self, effect: QueueEffect) -> QueueEvent | None:
        match effect:
            case CountIncidents():
                self._pass_call()
                raised = self._draw(st.integers(0, 1))
                self.seen = Incidents(self.seen.count + raised, self.seen.revision + 10 * raised)
                return Counted(self.seen)
            case TryLock(incidents, wait_s):
                assert incidents == self.seen.count
                had = self._draw(st.integers(0, 9)) == 0
                self.waits.append(wait_s)
                self.now_s += wait_s * self._draw(st.integers(0, 9)) / 10 if had else wait_s
                return Acquired() if had else LockTimedOut()
            case SampleState():
                self._pass_call()
                state = (self.samples[-1][1] if self.samples else 0) + (self._draw(st.integers(0, 5)) != 0)
                self.samples.append((self.now_s, state))
                return Sampled(state)
            case _:
                return None

    def _pass_call(self) -> None:
        self.now_s += self._draw(st.integers(0, 100)) / 1000


CALL_MAX_S = 0.1


@given(st.data(), st.integers(1, 20), st.integers(0, 300))
def test_whatever_happens_it_ends_in_time_and_raises_only_what_paused(
    data: st.DataObject, timeout_ds: int, wait_max_ds: int
) -> None:
    limits = QueueLimits(timeout_s=timeout_ds / 10, wait_max_s=wait_max_ds / 10)
    world, waiting = World(data.draw), Waiting(limits)
    began_s, effects = world.now_s, waiting.step(Began(), world.now_s)
    while not isinstance(effects[-1], Proceed | GiveUp):
        (effect,) = effects
        event = world.answer(effect)
        assert event is not None
        effects = waiting.step(event, world.now_s)
    waited_s = world.now_s - began_s
    round_s = SHORT_TRY_S + limits.timeout_s + 4 * CALL_MAX_S
    assert waited_s < limits.wait_max_s + round_s + 1e-6
    stood_still = len(world.samples) > 1 and world.samples[-1][1] == world.samples[-2][1]
    match effects:
        case [Proceed()]:
            pass
        case [RaiseIncidents(seen), CheckConnection(), GiveUp(GiveUpReason.INCIDENT, told_s)]:
            assert stood_still
            assert (seen, told_s) == (world.seen, waited_s)
            assert world.samples[-1][0] - world.samples[-2][0] >= limits.timeout_s - 1e-6
        case [GiveUp(GiveUpReason.LONG_LINE, told_s)]:
            assert not stood_still
            assert told_s == waited_s >= limits.wait_max_s
        case _:
            pytest.fail(f"{effects}")
