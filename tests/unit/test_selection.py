"""What runs each time of a parametrization, and what only with `scripts/test --full`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.selection import in_full

TESTS = Path(__file__).parents[1]
SLOW = "mark" + ".slow"


def others(cases: list[Any]) -> list[object]:
    """The values that do not run each time."""
    return [
        case.values[0] for case in cases if hasattr(case, "marks") and [mark.name for mark in case.marks] == ["further"]
    ]


def test_the_first_case_runs_each_time_and_none_is_lost() -> None:
    cases = in_full("abc")
    assert cases[0] == "a"
    assert others(cases) == ["b", "c"]


def test_as_many_as_are_named_run_each_time_in_their_places() -> None:
    assert others(in_full("abcd", but=2)) == ["c", "d"]
    assert others(in_full([("id",), (), ("v",)], but=[()])) == [("id",), ("v",)]


def test_cases_of_several_names_keep_all_of_their_values() -> None:
    first, second = in_full([(1, "a"), (2, "b")], unpack=True)
    assert first == (1, "a")
    assert second.values == (2, "b")


@pytest.mark.parametrize("but", [0, ["e"], []])
def test_a_selection_of_nothing_or_of_what_is_not_there_is_refused(but: int | list[str]) -> None:
    with pytest.raises(AssertionError):
        in_full("abcd", but)


def test_what_is_slow_runs_in_ci_after_all_others() -> None:
    marked = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if SLOW in path.read_text()}
    assert marked == {"e2e", "integration"}  # what scripts/test --slow runs
    commands = (TESTS.parent / ".ci/run").read_text().splitlines()
    assert commands.index('scripts/test "$@" || exit') < commands.index("scripts/test --slow || exit")
