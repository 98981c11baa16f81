"""The time line: which iterations are in the span, in which lanes, and what is left out."""

from __future__ import annotations

from typing import Any

from iscp.core.job.job_row import JobState, JobStatus
from iscp.page.boards.job_facts import JobFacts, facts_of
from iscp.page.boards.time_line import (
    BARS_MAX,
    HISTORIES_MAX,
    LANE_HEIGHT,
    LANES_MAX,
    WIDTH,
    TimeLine,
    busy_lanes,
    jobs_with_history,
    time_line,
)
from tests.fakes.viewed_cluster import NOW_S, history_entry, job_view


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
