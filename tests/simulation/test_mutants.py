"""A fence that no test needs is no fence: each one, dropped, is missed."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import BUDGET, MUTANTS, SEARCHED
from tests.simulation.search import Search
from tests.simulation.simulation import simulate
from tests.simulation.violation import Violation


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_guard_is_missed(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in (*mutant.seeds, *range(BUDGET)):
        try:
            simulate(seed, mutant.parts, trouble=mutant.trouble)
        except Violation:
            return
    pytest.fail(f"{name}: {BUDGET} seeds do not miss it")


@pytest.mark.parametrize("name", SEARCHED)
def test_a_dropped_guard_is_missed_by_the_search(name: str) -> None:
    parts = MUTANTS[name].parts
    search = Search(SEARCHED[name], parts.worker, parts.owner)
    with pytest.raises(Violation):
        search.run()
