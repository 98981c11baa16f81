"""The search over all orders of events ends, and finds nothing."""

from __future__ import annotations

import pytest

from tests.simulation.search import Bounds, Search


def ends(bounds: Bounds, least: int) -> None:
    search = Search(bounds)
    assert search.run() >= least
    assert search.ends, "there are states in which nothing is left to happen"


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(crashes=2, elections=1), 5_000),
        (Bounds(crashes=0, elections=1, moves=1), 3_000),
        (Bounds(crashes=0, elections=0, lapses=2), 5_000),
        (Bounds(crashes=0, elections=0, lapses=1, moves=1), 4_000),
        (Bounds(crashes=1, elections=0, lapses=1, ticks=1), 1_000),
    ],
    ids=["owner and crashes", "owner and move", "lapses", "lapse and move", "crash, lapse and repetitions"],
)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds, least: int) -> None:
    ends(bounds, least)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "bounds",
    [Bounds(crashes=2, shards=2), Bounds(crashes=1, moves=1), Bounds(crashes=1, ticks=1, losses=1)],
    ids=["two shards", "crash and move", "crash and loss"],
)
def test_no_order_of_events_breaks_a_promise_in_a_larger_world(bounds: Bounds) -> None:
    ends(bounds, 20_000)
