"""A fence that no test needs is no fence: each one, dropped, is missed."""

from __future__ import annotations

import warnings

import pytest

from tests.simulation.mutants import BUDGET, MUTANTS, SEARCHED, convicting, convicts
from tests.simulation.search import Search
from tests.simulation.violation import ViolationError

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_guard_is_missed(name: str) -> None:
    """By the seeds that are recorded; where these find it no more, others have to, and are to be recorded."""
    mutant = MUTANTS[name]
    if not any(convicts(seed, mutant) for seed in mutant.seeds):
        found = next(convicting(mutant), None)
        assert found is not None, f"{name}: {BUDGET} seeds do not miss it: find what needs it, or take it out"
        warnings.warn(f"{name}: none of {mutant.seeds} misses it any more, and {found} does: record it", stacklevel=1)


@pytest.mark.parametrize("name", SEARCHED)
def test_a_dropped_guard_is_missed_by_the_search(name: str) -> None:
    parts = MUTANTS[name].parts
    search = Search(SEARCHED[name], parts.worker, parts.owner)
    with pytest.raises(ViolationError):
        search.run()
