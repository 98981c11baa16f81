"""Builds under random trouble, by seed, and each of their guards dropped; `play.py` plays more of them."""

from __future__ import annotations

import warnings

import pytest

from tests.simulation.builds.mutants import MUTANTS, SEEDS_MAX, finding, finds
from tests.simulation.builds.play import play, violation
from tests.simulation.builds.world import BuildWorld

SEEDS_FAST = 100
SEEDS_FULL = 50_000
CHUNK = 100


def run(first: int) -> None:
    found = [f"seed {seed}: {what}" for seed in range(first, first + CHUNK) if (what := violation(seed))]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS_FAST, CHUNK))
def test_no_trouble_breaks_a_promise_of_builds(first: int) -> None:
    run(first)


@pytest.mark.full
@pytest.mark.parametrize("first", range(SEEDS_FAST, SEEDS_FULL, CHUNK))
def test_no_trouble_breaks_a_promise_of_builds_for_long(first: int) -> None:
    run(first)


def test_a_seed_always_gives_the_same_builds() -> None:
    def told() -> list[str]:
        lines: list[str] = []
        play(3, trace=lambda now_s, who, what, effects: lines.append(f"{now_s} {who} {what} {effects}"))
        return lines

    assert told() == told()


def test_the_trouble_is_some() -> None:
    """In the seeds that are played each time, tasks are aborted, batches are cancelled, builds come to an end, and jobs
    apply what was kept for them."""
    worlds: list[BuildWorld] = [play(seed) for seed in range(20)]
    assert sum(len(world.published) for world in worlds) > 20
    assert sum(world.built_ranges for world in worlds) > 200
    assert sum(world.store.term for world in worlds) > 60
    assert any(play(seed).landing.tailed_from_kept for seed in range(200))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_guard_of_builds_is_missed(name: str) -> None:
    """The recorded seeds find it; where they do not any more, others have to be found and recorded."""
    mutant = MUTANTS[name]
    if not any(finds(seed, mutant) for seed in mutant.seeds):
        found = next(finding(mutant), None)
        assert found is not None, f"{name}: {SEEDS_MAX} seeds do not miss it: find what needs it, or take it out"
        warnings.warn(f"{name}: none of {mutant.seeds} misses it any more, and {found} does: record it", stacklevel=1)
