"""The figures of a job on a split table: of all its ranges, and the worst of their faults.

What other nodes report is accepted unchanged where it is valid, and refused where it is not.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from iscp.model.job.iteration import (
    REASONS_MAX,
    SECONDS_MOST,
    UNNAMED,
    MaintenanceFigures,
    SparkNeed,
    Usage,
    UsagePart,
    exact_position,
    exact_usage,
    figures_of,
    joined_needs,
    split_figures,
    summed,
)
from iscp.model.values.watermark import DeadLetters, Position, QueryTotals, SourceMark, Total, Watermark

USED = Usage(1.5, 0.25, 2.0, 0.5, 100, 20, 4_096, 2_048, 3, 1)


def test_the_work_is_all_but_the_wait() -> None:
    assert USED.work_s == 2.75
    assert sum(USED.seconds().values()) == USED.wait_s + USED.work_s


def test_each_part_has_its_seconds_under_its_name() -> None:
    assert USED.seconds() == {part: getattr(USED, f"{part}_s") for part in UsagePart}


def test_what_a_node_measures_may_be_stored() -> None:
    assert exact_usage(USED) == USED
    assert exact_usage(Usage()) == Usage()
    assert exact_usage(None) is None


@pytest.mark.parametrize("name", [field.name for field in fields(Usage)])
def test_a_wrong_number_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1"):
        exact_usage(replace(USED, **{name: -1}))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), SECONDS_MOST * 2, "1"])
def test_seconds_that_no_iteration_takes_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="read_s is"):
        exact_usage(replace(USED, read_s=wrong))  # type: ignore[arg-type]


def test_what_is_no_usage_is_refused() -> None:
    with pytest.raises(ValueError, match="usage is no Usage"):
        exact_usage({"wait_s": 1.0})


@pytest.mark.parametrize("usage", [None, Usage(), USED, Usage(commit_s=1.0)])
def test_figures_stand_among_others_and_come_back(usage: Usage | None) -> None:
    assert split_figures({"plan": 0.5, **figures_of(usage)}) == ({"plan": 0.5}, usage)


def test_only_figures_that_are_not_nothing_are_stored() -> None:
    assert figures_of(Usage(commit_s=1.0)) == {"usage.wait_s": 0.0, "usage.commit_s": 1.0}
    assert figures_of(None) == {}


def test_figures_of_a_later_release_are_left_out_and_wrong_ones_are_no_usage() -> None:
    assert split_figures({**figures_of(USED), "usage.dollars": 3.5}) == ({}, USED)
    for wrong in ("1", -1, None, float("nan")):
        assert split_figures({**figures_of(USED), "usage.rows_read": wrong}) == ({}, None)


def test_reasons_are_said_in_order_each_once_and_not_without_end() -> None:
    need = SparkNeed().and_for("").and_for("b").and_for("a").and_for("b")
    assert (need.reasons, str(need)) == (("b", "a"), "b; a")
    for number in range(2 * REASONS_MAX):
        need = need.and_for(str(number))
    assert len(need.reasons) == REASONS_MAX


def test_a_use_that_nobody_has_named_is_said_to_be_one() -> None:
    assert str(SparkNeed()) == UNNAMED


def test_the_need_of_two_parts_is_that_of_both() -> None:
    first, second = SparkNeed(("a",)), SparkNeed(("b", "a"), started=True)
    assert joined_needs(first, second) == SparkNeed(("a", "b"), started=True)
    assert joined_needs(None, first) == joined_needs(first, None) == first
    assert joined_needs(None, None) is None


def test_counts_are_added_and_the_fault_is_one_that_there_is() -> None:
    good = MaintenanceFigures(submitted=2, completed=2, next_at_s=50.0)
    bad = MaintenanceFigures(submitted=3, failed=1, completed=1, running=1, error_code=9, error_msg="away")
    told = summed([good, bad])
    assert told == MaintenanceFigures(
        submitted=5, running=1, completed=3, failed=1, error_code=9, error_msg="away", next_at_s=50.0
    )
    assert summed([]) is None
    assert summed([good]) == good


SOURCES = {"/t": SourceMark("t-1", Watermark(5, 1.5))}
TOTALS = QueryTotals("shape", ((Total(3, 7),),))
FULL = Position(
    3, Watermark(5, 1.5, 1, 2), "job", "source", "why", 7, DeadLetters(2, 1), {"a": "x"}, SOURCES, 9.5, TOTALS
)


def test_a_position_that_is_right_keeps_all_that_it_says() -> None:
    nothing = Position()
    same = [each.name for each in fields(Position) if getattr(FULL, each.name) == getattr(nothing, each.name)]
    assert not same, "each field is tried"
    assert exact_position(FULL) == FULL
    assert exact_position(nothing) == nothing


@pytest.mark.parametrize("columns", [["a"], {"a": 1}, {1: "a"}, "a"])
def test_columns_that_are_none_are_refused(columns: object) -> None:
    with pytest.raises(ValueError, match="column_ids"):
        exact_position(replace(FULL, column_ids=columns))  # type: ignore[arg-type]


@pytest.mark.parametrize("sources", [["/t"], {"/t": 1}, {1: SOURCES["/t"]}, {"/t": SourceMark(1, Watermark())}])  # type: ignore[arg-type]
def test_sources_that_are_none_are_refused(sources: object) -> None:
    with pytest.raises(ValueError, match="sources"):
        exact_position(replace(FULL, sources=sources))  # type: ignore[arg-type]
