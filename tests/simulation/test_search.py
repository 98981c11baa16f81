"""The exhaustive search over all orders of events of a small cluster ends without a violation."""

from __future__ import annotations

import pytest

from iscp.cluster.membership.assignments import Assignments
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import OwnerEffect, OwnerEvent
from iscp.model.values.ids import ShardId
from tests.simulation.search import Bounds, Search
from tests.simulation.violation import ViolationError

pytestmark = pytest.mark.thorough


def ends(bounds: Bounds, least: int) -> None:
    search = Search(bounds)
    assert search.run() >= least
    assert search.ends, "there are states in which nothing is left to happen"


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(crashes=2, elections=1), 4_500),
        (Bounds(crashes=0, elections=1, moves=1), 2_500),
        (Bounds(crashes=0, elections=0, lapses=2), 5_000),
        (Bounds(crashes=0, elections=0, lapses=1, moves=1), 4_000),
        (Bounds(crashes=0, elections=0, lapses=1, ticks=1), 1_000),
        pytest.param(Bounds(crashes=1, elections=0, lapses=1, ticks=1), 1_000, marks=pytest.mark.further),
        (Bounds(nodes=2, crashes=0, elections=1, splits=1), 3_000),
        (Bounds(nodes=2, crashes=0, elections=0, splits=2), 2_000),
        (Bounds(nodes=2, crashes=1, elections=0, splits=1), 300),
    ],
    ids=[
        "owner and crashes",
        "owner and move",
        "lapses",
        "lapse and move",
        "lapse and repetitions",
        "crash, lapse and repetitions",
        "split and owner",
        "split and merge",
        "split and crash",
    ],
)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds, least: int) -> None:
    ends(bounds, least)


class NothingInTheWay(Assignments):
    def in_the_way(self, shard: ShardId) -> ShardId | None:
        return None


class PlacesHalvesAtOnce(OwnerMachine):
    """While the whole that they are of still runs."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if self.term is not None:
            self.term.assignments.__class__ = NothingInTheWay
        return super().step(event, now_s, read_s)


def test_a_range_that_does_not_wait_for_what_it_was_made_of_is_missed() -> None:
    with pytest.raises(ViolationError, match="share keys"):
        Search(Bounds(nodes=2, crashes=0, elections=0, splits=1), owner=PlacesHalvesAtOnce).run()


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(crashes=2, shards=2), 8_000),
        (Bounds(crashes=1, moves=1), 45_000),
        (Bounds(crashes=1, ticks=1, losses=1), 15_000),
    ],
    ids=["two shards", "crash and move", "crash and loss"],
)
def test_no_order_of_events_breaks_a_promise_in_a_larger_world(bounds: Bounds, least: int) -> None:
    ends(bounds, least)
