"""The exhaustive search over all orders of events of one build ends without a violation, and always with it built."""

from __future__ import annotations

import pytest

from tests.selection import in_full
from tests.simulation.builds.mutants import MUTANTS
from tests.simulation.builds.search import BuildSearch
from tests.simulation.violation import ViolationError

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("bounds", "least"),
    # Each time seeds of test_build_seeds.py lose writes, and the search for a dropped guard below.
    in_full([({}, 500), ({"losses": 1}, 2_500)], unpack=True),
    ids=["nothing goes wrong", "a write is lost"],
)
def test_no_order_of_events_breaks_a_promise_of_builds(bounds: dict[str, int], least: int) -> None:
    search = BuildSearch(bounds)
    assert search.run() >= least
    assert search.ends, "there are states in which nothing is left to happen"


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("owner: both halves of a split", {"splits": 1}),
        ("owner: one task of a merge", {"merges": 1}),
        ("owner: new ids for successors", {"splits": 1}),
        ("owner: begins again after a failed write", {"losses": 1}),
    ],
)
def test_a_dropped_guard_of_builds_is_missed_by_the_search(name: str, bounds: dict[str, int]) -> None:
    parts = MUTANTS[name].parts
    with pytest.raises(ViolationError):
        BuildSearch(bounds, parts.builder, parts.worker).run()
