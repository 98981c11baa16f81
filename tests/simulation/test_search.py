"""The search over all orders of events ends, and finds nothing."""

from __future__ import annotations

import pytest

from tests.simulation.search import Bounds, Search


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(crashes=2, elections=1), 5_000),
        (Bounds(crashes=0, elections=0, lapses=2), 5_000),
        (Bounds(crashes=1, elections=0, lapses=1, ticks=1), 1_000),
    ],
)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds, least: int) -> None:
    """An owner change and two crashes; two lapsed leases; and both with machines that repeat themselves."""
    search = Search(bounds)
    assert search.run() >= least
    assert search.ends, "there are states in which nothing is left to happen"
