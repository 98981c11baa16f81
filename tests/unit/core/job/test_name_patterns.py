"""Patterns over tables and jobs."""

from __future__ import annotations

import pytest

from iscp.core.job.job_row import JobRow
from iscp.core.job.name_patterns import is_pattern, matcher
from iscp.core.values.ids import JobKey

ROW = JobRow(JobKey("default", "t-1", "copy"), "id", "{}", "sales.orders", "/lake/sales/orders")


@pytest.mark.parametrize(
    ("table", "name", "matches"),
    [
        ("", "", True),
        ("*", "*", True),
        ("sales.*", "", True),
        ("sales.order?", "cop[xy]", True),
        ("*orders", "*", True),
        ("/lake/*", "copy", True),
        ("/lake/sales/orders", "", True),
        ("sales.", "", False),
        ("order*", "", False),
        ("Sales.*", "", False),
        ("sales.*", "cop", False),
        ("sales.*", "Copy", False),
        ("t-*", "", False),
    ],
)
def test_a_pattern_is_of_the_whole_name_of_the_table_or_of_its_place(table: str, name: str, matches: bool) -> None:
    assert matcher(table, name)(ROW) is matches


def test_what_is_a_pattern() -> None:
    assert [text for text in ("sales.*", "a?", "[ab]", "/lake/orders", "sales.orders", "") if is_pattern(text)] == [
        "sales.*",
        "a?",
        "[ab]",
    ]
