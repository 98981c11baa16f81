"""The exhaustive search over a shard's writers ends without a violation, and finds one where a fence is dropped."""

from __future__ import annotations

import pytest

from iscp.changefeed.model.lock_queue import LockPhase, QueueEffect, QueueEvent, RaiseIncidents, Sampled, Waiting
from tests.simulation.feed_search import Bounds, FeedSearch
from tests.simulation.violation import ViolationError

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(writers=2, transactions=2, freezes=2, deaths=0), 10_000),
        (Bounds(writers=3, transactions=1, freezes=1, deaths=0), 10_000),
        (Bounds(writers=3, transactions=1, freezes=0, deaths=2), 10_000),
    ],
    ids=["two freezes", "three writers and a freeze", "three writers and two deaths"],
)
def test_no_order_of_events_breaks_the_feed_or_stops_a_writer(bounds: Bounds, least: int) -> None:
    assert FeedSearch(bounds).run() >= least


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "bounds",
    [Bounds(writers=3, freezes=1, deaths=1), Bounds(writers=3, transactions=2, freezes=0, deaths=1)],
    ids=["freeze and death", "two transactions"],
)
def test_no_order_of_events_breaks_the_feed_in_a_larger_world(bounds: Bounds) -> None:
    assert FeedSearch(bounds).run() >= 30_000


def test_everything_that_can_happen_does() -> None:
    """Also that a writer wakes up too late to commit, and that one waits too long in a queue that moves."""
    search = FeedSearch(Bounds(writers=2, transactions=2, freezes=1, deaths=1))
    assert search.run() >= 10_000
    waiting = {"counts", "joins", "acquires", "times out", "samples", "raises", "gives up"}
    suffered = {"freezes", "wakes up", "dies", "expires"}
    assert search.kinds == {"reads", "commits", "conflicts", "leaves"} | waiting | suffered


# --- what the search would miss ----------------------------------------------------------------------------------


def test_a_commit_that_does_not_compare_is_missed() -> None:
    """A holder that was frozen and given up writes its ulids in the midst of those of the others."""
    with pytest.raises(ViolationError, match="becomes visible after"):
        FeedSearch(Bounds(writers=2, freezes=1, deaths=0), compares=False).run()


class NeverBurns(Waiting):
    """The count stays as it is, so that all go on waiting for the one who is gone."""

    __slots__ = ()

    def step(self, event: QueueEvent, now_s: float) -> list[QueueEffect]:
        return [each for each in super().step(event, now_s) if not isinstance(each, RaiseIncidents)]


def test_a_lock_that_is_never_burned_is_missed() -> None:
    with pytest.raises(ViolationError, match="waits for ever"):
        FeedSearch(Bounds(writers=2, freezes=0, deaths=1), NeverBurns).run()


class BurnsWhatMoves(Waiting):
    """Every long line is an incident, whatever was committed meanwhile."""

    __slots__ = ()

    def step(self, event: QueueEvent, now_s: float) -> list[QueueEffect]:
        if self.phase is LockPhase.SAMPLING_AGAIN and isinstance(event, Sampled):
            self.sample = event.state
        return super().step(event, now_s)


def test_burning_the_lock_of_a_line_that_moves_is_missed() -> None:
    with pytest.raises(ViolationError, match="incidents, and only"):
        FeedSearch(Bounds(writers=2, transactions=2, freezes=0, deaths=0), BurnsWhatMoves).run()
