"""Clusters under random trouble, by seed; `make simulate SEEDS=1000000` plays more of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.__main__ import command, failure
from tests.simulation.mutant_troubles import BUILDS
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.simulation import simulate, trouble_of
from tests.simulation.trouble import Trouble

SEEDS_FAST = 100
SEEDS = 150
SEEDS_FULL = 50_000
BUILDING_FAST = 12
BUILDING_FULL = 5_000
CHUNK = 50


def run(seeds: range, building: bool = False) -> None:
    told = (failure(seed, building) for seed in seeds)
    failed = [f"{what}\n  {command(seed, building)}" for seed, what in told if what]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS_FAST, CHUNK))
def test_no_trouble_breaks_a_promise_at_first_sight(first: int) -> None:
    run(range(first, first + CHUNK))


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(SEEDS_FAST, SEEDS, CHUNK))
def test_no_trouble_breaks_a_promise(first: int) -> None:
    run(range(first, first + CHUNK))


@pytest.mark.full
@pytest.mark.parametrize("first", range(SEEDS, SEEDS_FULL, CHUNK))
def test_no_trouble_breaks_a_promise_for_long(first: int) -> None:
    run(range(first, first + CHUNK))


def test_no_trouble_breaks_a_promise_of_builds_at_first_sight() -> None:
    run(range(BUILDING_FAST), building=True)


@pytest.mark.full
@pytest.mark.parametrize("first", range(BUILDING_FAST, BUILDING_FULL, CHUNK))
def test_no_trouble_breaks_a_promise_of_builds_for_long(first: int) -> None:
    run(range(first, first + CHUNK), building=True)


def test_the_trouble_of_builds_is_some() -> None:
    """Ranges are staged and staged again, are cut and put together, and what they make up is published."""
    worlds = [simulate(seed, trouble=BUILDS) for seed in range(4)]
    assert sum(world.staging.published for world in worlds) >= 10
    assert sum(world.staging.attempts for world in worlds) >= 30
    assert sum(world.build_checks.aborted for world in worlds) >= 20
    assert all(world.log.term > 1 for world in worlds)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_was_repaired_stays_so(seed: int) -> None:
    run(range(seed, seed + 1))


def test_seeds_reach_commits_that_nobody_announces_and_notices_of_none() -> None:
    drawn = [trouble_of(seed) for seed in range(SEEDS_FAST)]
    silent = Counter(each.silent for each in drawn)
    assert silent[1.0] >= 3
    assert silent[0.3] >= 3
    assert sum(each.stray > 0.0 for each in drawn) >= 3
    assert sum(each.silent > 0.0 and each.talkative for each in drawn) >= 1, "lags move meanwhile"


def test_a_seed_always_gives_the_same_run() -> None:
    told: list[list[str]] = [[], []]
    for lines in told:
        simulate(3, trace=lambda now_s, who, what, lines=lines: lines.append(f"{now_s} {who} {what}"))  # type: ignore[misc]
    assert told[0] == told[1]
    assert len(told[0]) > 100


def test_without_trouble_every_table_is_kept_up() -> None:
    world = simulate(1, trouble=Trouble(nodes=3, shards=6))
    assert len(world.log.rows) == 6
    assert all(len(where) == 1 for where in world.placed().values())


LARGE = Trouble(nodes=30, shards=400, length_s=20.0, version_rate=0.0002, step_s=0.004, loaded=True)


def in_a_large_world(seed: int, trouble: Trouble) -> None:
    """All is placed under the first owner, which does not keep up at first, with a dispatch or little more each."""
    world = simulate(seed, trouble=trouble)
    assert world.log.term == 1
    assert world.checks.dispatches <= 1.2 * trouble.shards


@pytest.mark.thorough
def test_a_large_world_settles_with_a_dispatch_for_each_table() -> None:
    in_a_large_world(0, LARGE)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step_s", [0.0005, 0.002, 0.01])
def test_a_larger_world_settles_with_a_dispatch_for_each_table(seed: int, step_s: float) -> None:
    in_a_large_world(seed, replace(LARGE, nodes=50, shards=5_000, version_rate=0.00001, step_s=step_s))
