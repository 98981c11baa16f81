"""Proves which jobs patterns choose, and that a pattern for nothing is refused."""

from __future__ import annotations

import pytest

from iscp.core.run.job_selection import PATTERNS_MAX, JobSelection, NamedJob
from iscp.core.values.errors import InvalidRequest

JOBS = (NamedJob("sales.daily", {"nightly"}), NamedJob("sales.total"), NamedJob("stock", {"nightly", "slow"}))


@pytest.mark.parametrize(
    ("select", "exclude", "chosen"),
    [
        ((), (), [True, True, True]),
        (("sales.*",), (), [True, True, False]),
        (("sales.*", "stock"), (), [True, True, True]),
        ((), ("sales.total",), [True, False, True]),
        (("tag:nightly",), (), [True, False, True]),
        (("tag:night*",), ("tag:slow",), [True, False, False]),
        (("sales.*",), ("sales.*",), [False, False, False]),
    ],
)
def test_patterns_choose_names_and_tags(select: tuple[str, ...], exclude: tuple[str, ...], chosen: list[bool]) -> None:
    assert JobSelection(select, exclude).choose(JOBS) == chosen


@pytest.mark.parametrize("field", ["select", "exclude"])
def test_a_pattern_that_fits_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'Sales\.\*' fits no job") as refused:
        JobSelection(**{field: ("Sales.*",)}).choose(JOBS)
    assert refused.value.field == f"--{field}"


def test_patterns_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match="more than"):
        JobSelection(("sales.*",) * (PATTERNS_MAX + 1)).choose(JOBS)
