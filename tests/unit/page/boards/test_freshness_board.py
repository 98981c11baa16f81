"""The board of all targets: its order, its filters, its pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.core.job.job_row import JobState, Reason
from iscp.page.boards.freshness_board import (
    FILTER_CHARS_MAX,
    ROWS_PER_PAGE,
    FreshnessFilter,
    freshness_board,
    read_filter,
)
from iscp.page.boards.job_facts import all_facts, facts_of
from tests.fakes.viewed_cluster import job_view

FAILED = facts_of(job_view(1, state=JobState.ERROR))
LATE = facts_of(job_view(2, lag_s=90.0, late=True))
LATER = facts_of(job_view(3, lag_s=600.0, late=True))
PAUSED = facts_of(job_view(4, reason=Reason.PAUSED, lag_s=9000.0))
FRESH = facts_of(job_view(5, account="other"))
ALL = (FRESH, LATE, PAUSED, FAILED, LATER)


def names(chosen: FreshnessFilter) -> list[str]:
    return [job.name for job in freshness_board(ALL, chosen).rows]


def test_the_worst_comes_first() -> None:
    board = freshness_board(ALL, FreshnessFilter())
    assert list(board.rows) == [FAILED, LATER, LATE, PAUSED, FRESH]
    assert dict(board.counts) == {"failed": 1, "late": 2, "paused": 1, "fresh": 1}
    assert (board.found, board.total, board.pages) == (5, 5, 1)
    assert list(board.accounts) == ["acme", "other"]


def test_a_lag_counts_by_the_lag_that_is_wanted() -> None:
    """Five minutes are much for who wants ten seconds, and little for who wants an hour."""
    hasty = replace(LATE, lag_s=300.0, target_lag_s=10.0, name="hasty")
    slow = replace(LATE, lag_s=4000.0, target_lag_s=3600.0, name="slow")
    assert [job.name for job in freshness_board((slow, hasty), FreshnessFilter()).rows] == ["hasty", "slow"]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (FreshnessFilter(account="other"), ["copy5"]),
        (FreshnessFilter(condition="late"), ["copy3", "copy2"]),
        (FreshnessFilter(kind="view"), []),
        (FreshnessFilter(kind="replica", words="T4"), ["copy4"]),
        (FreshnessFilter(words="lake COPY1"), ["copy1"]),
        (FreshnessFilter(words="copies nothing"), []),
    ],
)
def test_filters_hold_together(chosen: FreshnessFilter, found: list[str]) -> None:
    assert names(chosen) == found


def test_pages_follow_each_other() -> None:
    jobs = all_facts(job_view(number, lag_s=float(number)) for number in range(2 * ROWS_PER_PAGE + 1))
    boards = [freshness_board(jobs, FreshnessFilter(page=page)) for page in (1, 2, 3, 99)]
    assert [len(board.rows) for board in boards] == [ROWS_PER_PAGE, ROWS_PER_PAGE, 1, 1]
    assert boards[3].chosen.page == 3  # the last one there is
    assert [board.rows[0].lag_s for board in boards[:3]] == [100.0, 50.0, 0.0]


def test_an_address_says_the_filters_and_nonsense_is_none() -> None:
    chosen = read_filter({"account": " acme ", "condition": "late", "words": "x" * 999, "page": "3"})
    assert chosen == FreshnessFilter("acme", "", "late", "x" * (FILTER_CHARS_MAX - 1) + "…", 3)
    assert read_filter(chosen.query()) == chosen
    assert chosen.query(1).get("page") is None
    for page in ("0", "-1", "x", "", "³", "9" * 99):
        assert read_filter({"page": page, "condition": "<script>"}) == FreshnessFilter()
