"""The board of all targets: its order, its filters, its pages.

The board of trouble: each kind with those who have it, the worst first.

Rows left out become a table of a few columns, whatever a tenant has written into them.

The time line: which iterations are in the span, in which lanes, and what is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iscp.model.api.api_requests import LeftOutRow, LeftOutRows
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.server.boards.freshness_board import (
    BARS_MAX,
    COLUMNS_SHOWN_MAX,
    FILTER_CHARS_MAX,
    HISTORIES_MAX,
    LANE_HEIGHT,
    LANES_MAX,
    ROWS_MAX,
    ROWS_PER_PAGE,
    VALUE_CHARS_MAX,
    WIDTH,
    FreshnessFilter,
    TimeLine,
    busy_lanes,
    freshness_board,
    jobs_with_history,
    leaves_out,
    left_out_table,
    read_filter,
    time_line,
    trouble_board,
)
from iscp.server.boards.job_board import JobFacts, all_facts, facts_of
from tests.fakes.viewed_cluster import NOW_S, history_entry, job_view

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


def board_of(*jobs: object) -> dict[str, list[tuple[str, str]]]:
    board = trouble_board(all_facts(jobs), NOW_S, [], "", [])  # type: ignore[arg-type]
    return {each.title: [(row.job.name, row.what) for row in each.rows] for each in board.troubles}


def test_nobody_is_in_trouble() -> None:
    assert board_of(job_view(1), job_view(2, reason=Reason.PAUSED)) == {}


def test_each_kind_has_its_jobs() -> None:
    found = board_of(
        job_view(1, state=JobState.ERROR, status=JobStatus(error_code=10_004, error_msg="twice")),
        job_view(2, state=JobState.ERROR, reason=Reason.QUARANTINED, status=JobStatus(error_code=10, error_msg="disk")),
        job_view(3, reason=Reason.RETRYING, status=JobStatus(error_code=9, error_msg="d", retry_at_s=NOW_S + 30)),
        job_view(4, state=JobState.ERROR, status=JobStatus(error_code=10_015, error_msg="gone")),
        job_view(5, status=JobStatus(dead_letters=1200)),
        job_view(6, status=JobStatus(doubted_at_s=NOW_S)),
        job_view(7, status=JobStatus(warning="a column is left out")),
        job_view(8, reason=Reason.PAUSED, lag_s=4 * 86_400.0, retained_s=7 * 86_400.0),
        job_view(9, lag_s=3 * 86_400.0, retained_s=7 * 86_400.0),
    )
    assert list(found) == [
        *(
            "History gone",
            "Retention about to bite",
            "Failed",
            "Quarantined",
            "Retrying",
            "Dead letters",
            "In doubt",
            "Warnings",
        )
    ]
    assert found["Failed"] == [("copy1", "DUPLICATE_KEY: twice")]
    assert found["History gone"] == [("copy4", "VERSION_GONE: gone")]
    assert found["Retrying"] == [("copy3", "STORAGE: d Tried again in 30 s.")]
    assert found["Dead letters"] == [("copy5", "1,200 rows")]
    assert found["Retention about to bite"] == [("copy8", "behind by 4 d; the source retains 7 d")]
    assert found["Warnings"] == [("copy7", "a column is left out")]


def test_those_that_lag_most_are_shown_and_the_others_counted() -> None:
    jobs = all_facts(job_view(n, state=JobState.ERROR, lag_s=float(n)) for n in range(ROWS_MAX + 5))
    (failed,) = trouble_board(jobs, NOW_S, [], "", []).troubles
    assert (len(failed.rows), failed.found) == (ROWS_MAX, ROWS_MAX + 5)
    assert failed.rows[0].job.lag_s == ROWS_MAX + 4


def test_columns_are_those_of_any_row() -> None:
    rows = (LeftOutRow({"id": 1, "v": None}, "shared"), LeftOutRow({"id": 2, "w": [1]}, "no vector"))
    table = left_out_table(LeftOutRows(rows, "/copy_dead_letter"))
    assert (table.place, table.columns, table.columns_more) == ("/copy_dead_letter", ["id", "v", "w"], 0)
    assert table.rows == [(["1", "null", "null"], "shared"), (["2", "null", "[1]"], "no vector")]


def test_many_columns_and_long_values_are_cut() -> None:
    columns = {f"c{number}": "x" * 5_000 for number in range(COLUMNS_SHOWN_MAX + 3)}
    table = left_out_table(LeftOutRows((LeftOutRow(columns, "shared"),)))
    assert (len(table.columns), table.columns_more) == (COLUMNS_SHOWN_MAX, 3)
    assert {len(value) for value in table.rows[0][0]} == {VALUE_CHARS_MAX}


def test_a_job_leaves_out_rows_by_its_status_or_the_figures_of_its_index() -> None:
    assert not leaves_out(job_view())
    assert leaves_out(job_view(status=JobStatus(dead_letters=1)))
    assert leaves_out(replace(job_view(), figures={"faults": 2.0}))


def job(number: int, start: float, end: float, **changes: Any) -> JobFacts:
    """A job whose last iteration began and ended so many seconds ago; it runs if that end is 0."""
    status = JobStatus(start_at_s=NOW_S - start, end_at_s=NOW_S - end if end else 0.0)
    state = JobState.COMPLETED if end else JobState.RUNNING
    return facts_of(job_view(number, status=status, state=state, **changes))


def lanes(line: TimeLine) -> dict[str, dict[str, int]]:
    return {node.node_id: {bar.job.name: bar.y // LANE_HEIGHT for bar in node.bars} for node in line.nodes}


def test_iterations_that_overlap_have_lanes_of_their_own() -> None:
    jobs = [job(1, 100, 50), job(2, 80, 20), job(3, 40, 10), job(4, 30, 0), job(5, 30, 5, node_id="iscp-1")]
    line = time_line(jobs, {}, NOW_S)
    assert lanes(line) == {"iscp-0": {"copy1": 0, "copy2": 1, "copy3": 0, "copy4": 2}, "iscp-1": {"copy5": 0}}
    assert [(node.lanes, node.running) for node in line.nodes] == [(3, 1), (1, 0)]


def test_places_are_those_of_the_span() -> None:
    (node,) = time_line([job(1, 450, 300), job(2, 9000, 0)], {}, NOW_S).nodes
    by_name = {bar.job.name: bar for bar in node.bars}
    assert (by_name["copy1"].x, by_name["copy1"].width) == (WIDTH // 4, WIDTH // 4)
    assert (by_name["copy2"].x, by_name["copy2"].width) == (0, WIDTH)  # it began before
    assert by_name["copy1"].text == "c1 took 2 min"
    assert by_name["copy2"].running


def test_what_is_not_in_the_span_or_has_not_run_is_left_out() -> None:
    jobs = [job(1, 5000, 4000), facts_of(job_view(2, status=JobStatus())), job(3, 50, 40, node_id=""), job(4, -60, -50)]
    assert time_line(jobs, {}, NOW_S).nodes == []
    assert [len(time_line(jobs, {"window": each}, NOW_S).nodes) for each in ("1 d", "x")] == [1, 0]


def test_times_beneath_end_now() -> None:
    line = time_line([], {"window": "1 h"}, NOW_S)
    assert line.ticks[0] == (0, "-60 min")
    assert line.ticks[-1] == (WIDTH, "now")


def test_earlier_iterations_are_shown_at_the_nodes_that_ran_them() -> None:
    of = job(1, 100, 50)
    entries = [
        history_entry(start_at_s=NOW_S - 100, end_at_s=NOW_S - 50),  # the last one, which the job has too
        history_entry(start_at_s=NOW_S - 200, end_at_s=NOW_S - 150, node_id="iscp-1", error_code=9),
        history_entry(start_at_s=NOW_S - 300, end_at_s=NOW_S - 260),
        history_entry(start_at_s=NOW_S - 9000, end_at_s=NOW_S - 8000),
        history_entry(start_at_s=NOW_S - 150, end_at_s=NOW_S - 160),
    ]
    line = time_line([of, job(2, 30, 10)], {}, NOW_S, {of.job_id: entries})
    assert {node.node_id: [(bar.job.name, bar.failed) for bar in node.bars] for node in line.nodes} == {
        "iscp-0": [("copy1", False), ("copy1", False), ("copy2", False)],
        "iscp-1": [("copy1", True)],
    }


def test_histories_are_those_of_the_jobs_that_ended_last() -> None:
    jobs = [job(n, 100 + n, 50 + n) for n in range(HISTORIES_MAX + 5)]
    jobs += [job(100, 9000, 8000), job(101, 20, 10, seq=1)]  # too long ago; its first one
    assert [each.name for each in jobs_with_history(jobs, {}, NOW_S)] == [f"copy{n}" for n in range(HISTORIES_MAX)]
    assert "copy100" in {each.name for each in jobs_with_history(jobs[-2:], {"window": "1 d"}, NOW_S)}


def test_the_busy_parts_of_a_span_are_counted() -> None:
    (node,) = time_line([job(1, 450, 300), job(2, 400, 0), job(3, 1, 0)], {}, NOW_S).nodes
    assert busy_lanes(node, 4) == [0, 2, 1, 2]


def test_very_many_are_drawn_in_part_those_that_run_first() -> None:
    jobs = [job(n, 100, 1, node_id=f"n{n % 40}") for n in range(2000)] + [job(3000, 200, 0)]
    line = time_line(jobs, {}, NOW_S)
    assert line.shown <= BARS_MAX
    assert line.shown + line.more == 2001
    assert any(bar.running for node in line.nodes for bar in node.bars)
    (crowded,) = time_line([job(n, 100, 1) for n in range(100)], {}, NOW_S).nodes
    assert (crowded.lanes, len(crowded.bars)) == (LANES_MAX, LANES_MAX)
