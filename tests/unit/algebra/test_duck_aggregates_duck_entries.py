"""The allow-list has no entry that the table of equality does not show, and no guard that no row needs."""

from __future__ import annotations

from functools import cache

import pyarrow.compute as pc
import pytest

from iscp.algebra.duck_text import ALLOW_LIST
from tests.equality.cases import CASES, Shape, rows_of
from tests.equality.comparison import UNSHOWN, Guard, Witness, computed, guards, key_of, witnesses
from tests.equality.engines import RAISED, Ducks, Written

GUARDS = guards()


@cache
def known() -> dict[Guard, Witness]:
    return {each.guard: each for each in witnesses()}


def test_each_entry_has_cases() -> None:
    assert {each.name for each in ALLOW_LIST} - {each.entry for each in CASES} == set()


def test_each_case_shows_an_entry() -> None:
    assert {each.entry for each in CASES} - {each.name for each in ALLOW_LIST} == set()


def test_entries_have_names_of_their_own() -> None:
    names = [each.name for each in ALLOW_LIST]
    assert len({*names}) == len(names)


def test_each_guard_has_a_witness() -> None:
    """`python -m tests.equality --write` finds them, with Spark."""
    assert {*known()} == {*GUARDS} - UNSHOWN


@pytest.mark.parametrize("guard", [each for each in GUARDS if each not in UNSHOWN], ids=": ".join)
def test_a_row_is_wrong_without_the_guard(guard: Guard) -> None:
    """With it the row is handed over. Spark's value is kept beside the table, and a slow test computes it again."""
    witness = known()[guard]
    case = witness.case
    rows = rows_of(case.shape, case.types)
    if case.shape is not Shape.WINDOWS:
        rows = rows.filter(pc.equal(rows.column(key_of(case)), witness.number))
    ducks, written = Ducks(rows), Written(case, witness.relation)
    text = written.translated().text
    if text is not None:
        assert computed(ducks, case, text)[0][witness.number] == RAISED
    less = written.translated(GUARDS[guard]).text
    assert less is not None
    found, _ = computed(ducks, case, less)
    assert found[witness.number] != RAISED
    assert repr(found[witness.number]) != witness.spark
