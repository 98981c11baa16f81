"""Numbers, spans and times as short texts, nonsense included."""

from __future__ import annotations

import math

import pytest

from iscp.page.boards import shown_values as shown
from iscp.page.boards.shown_values import UNKNOWN_TEXT


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1.0, UNKNOWN_TEXT), (math.nan, UNKNOWN_TEXT), (math.inf, UNKNOWN_TEXT), (0.0, "0 s"), (0.0004, "1 ms")),
        *((0.25, "250 ms"), (1.5, "1.5 s"), (59.6, "60 s"), (119.0, "119 s"), (180.0, "3 min")),
        *((7_199.0, "120 min"), (7_200.0, "2 h"), (86_400.0, "24 h"), (172_800.0, "2 d")),
    ],
)
def test_spans_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert shown.span(seconds) == text


def test_times_are_ages_and_moments() -> None:
    assert shown.age(0.0, 100.0) == UNKNOWN_TEXT
    assert shown.age(90.0, 100.0) == "10 s ago"
    assert shown.age(105.0, 100.0) == "now"  # of a clock that is ahead
    assert shown.until(130.0, 100.0) == "in 30 s"
    assert shown.until(90.0, 100.0) == "now"
    assert shown.moment(1_800_000_000.0) == "2027-01-15 08:00:00 UTC"
    assert shown.moment(0.0) == shown.moment(1e30) == shown.moment(math.inf) == UNKNOWN_TEXT


def test_counts_and_sizes() -> None:
    assert shown.count(1234567) == "1,234,567"
    assert shown.count(-1) == shown.size(-1) == shown.size(math.nan) == UNKNOWN_TEXT
    assert [shown.size(each) for each in (0, 1023, 1536, 5 * 1024**3, 2.0**70)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB", "1048576 PiB")
    ]
    assert shown.version(-1) == UNKNOWN_TEXT
    assert shown.version(0) == "0"
    assert (shown.share(1, 0), shown.share(3, 2), shown.share(-1, 2), shown.share(1, 4)) == (0.0, 1.0, 0.0, 0.25)


def test_long_texts_are_cut() -> None:
    assert shown.short("abcdef", 4) == "abc…"
    assert shown.short("abcd", 4) == "abcd"
    assert shown.last_part("s3://bucket/lake/orders/") == "orders"
    assert shown.last_part("db.orders") == "db.orders"
    assert shown.last_part("/" + "x" * 70 + "end", 10) == "…xxxxxxend"
    assert shown.last_part("/") == "/"
