"""What other nodes report is accepted unchanged where it is valid, and refused where it is not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from iscp.core.job.report_validation import exact_position
from iscp.core.values.totals import QueryTotals, Total
from iscp.core.values.watermark import DeadLetters, Position, SourceMark, Watermark

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
