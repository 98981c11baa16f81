"""The board of trouble: each kind with those who have it, the worst first."""

from __future__ import annotations

from iscp.core.job.job_row import JobState, JobStatus, Reason
from iscp.page.boards.job_facts import all_facts
from iscp.page.boards.trouble_board import ROWS_MAX, trouble_board
from tests.fakes.viewed_cluster import NOW_S, job_view


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
