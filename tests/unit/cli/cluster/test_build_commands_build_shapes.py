"""Builds as they are drawn: what is known, and nothing that is not; never further than they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.cli.cluster.build_commands import (
    BAR_WIDTH,
    TASKS_SHOWN_MAX,
    bar,
    percent,
    progress_line,
    show_bar,
    show_build,
    show_builds,
)
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState

TASKS = (
    BuildTaskView(5, "x", "n-2", TaskState.WAITING),
    BuildTaskView(6, "x", "n-1", TaskState.RUNNING),
    BuildTaskView(7, "x", "n-1", TaskState.ABORTED),
)
VIEW = BuildView(
    *("/t", "t-1", "a", ("x", "y"), 7, BuildStage.BUILDING, 1_000.0, 10_000, 8_000_000, 0.25, 250.0, 2e5, 30.0, TASKS),
    *(2_500, 2_000_000, (BuildNodeView("n-1", 1_500, 1_200_000), BuildNodeView("n-3", 1_000, 800_000))),
)
WAITING = BuildView("/u", "u-1", "b", ("z",), 3, BuildStage.WAITING)


@pytest.mark.parametrize(
    ("share", "text", "full"),
    [(0.0, "0.0%", 0), (0.9999, "99.9%", 9), (1.0, "100.0%", 10), (0.25, "25.0%", 2)],
)
def test_a_share_is_never_rounded_up(share: float, text: str, full: int) -> None:
    assert percent(share) == text
    assert bar(share, 10) == "█" * full + "░" * (10 - full)
    assert len(bar(share)) == BAR_WIDTH


def test_a_line_says_what_is_known() -> None:
    assert progress_line(VIEW) == (
        "/t  version 7  x, y  25.0%  building  2,500 of 10,000 rows  2.0 MB of 8.0 MB  250 rows/s, 200.0 kB/s"
        "  about 30.0 s left"
        "  1 waiting, 1 running, 1 aborted"
    )
    assert progress_line(WAITING) == "/u  version 3  z  0.0%  waiting"
    unsaid = replace(VIEW, rows_total=-1, left_s=-1.0, tasks=())
    assert progress_line(unsaid).endswith("building  2,500 rows  2.0 MB of 8.0 MB  250 rows/s, 200.0 kB/s")
    uncounted = replace(VIEW, rows_done=-1, rows_total=-1, rows_per_s=-1.0, bytes_done=-1, left_s=-1.0, tasks=())
    assert progress_line(uncounted) == "/t  version 7  x, y  25.0%  building  of 8.0 MB  200.0 kB/s"


def test_a_list_has_a_line_for_each_build(capsys: pytest.CaptureFixture[str]) -> None:
    show_builds([VIEW, WAITING], wide=True)
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == [
        "TABLE",
        "VERSION",
        "JOBS",
        "STATE",
        "DONE",
        "ROWS",
        "BYTES",
        "RATE",
        "LEFT",
        "NODES",
        "TASKS",
        "ACCOUNT",
        "BEGAN",
    ]
    assert first[:6] == ["/t", "7", "x,", "y", "building", "25.0%"]
    assert second == ["/u", "3", "z", "waiting", "0.0%", "b", "-"]


def test_a_page_has_the_tasks_by_node_and_by_range_those_in_work_first(capsys: pytest.CaptureFixture[str]) -> None:
    show_build(VIEW)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(["by", "node"])
    assert lines[at + 1 : at + 5] == [
        ["NODE", "ROWS", "BYTES", "WAITING", "RUNNING", "ABORTED"],
        ["n-1", "1,500", "1.2", "MB", "1", "1"],
        ["n-2", "1"],
        ["n-3", "1,000", "800.0", "kB"],
    ]
    assert lines[-4:] == [
        ["RANGE", "JOB", "NODE", "STATE"],
        ["6", "x", "n-1", "running"],
        ["5", "x", "n-2", "waiting"],
        ["7", "x", "n-1", "aborted"],
    ]


def test_a_page_of_very_many_tasks_is_short_unless_all_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    many = tuple(BuildTaskView(each, "x", "n-1", TaskState.WAITING) for each in range(1_024, 1_124))
    show_build(replace(VIEW, tasks=many))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"and {100 - TASKS_SHOWN_MAX} more; -o wide shows all"
    show_build(replace(VIEW, tasks=many), wide=True)
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "1123"


def test_a_bar_stands_below_what_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    show_bar(VIEW)
    first, second, third, *nodes = capsys.readouterr().out.splitlines()
    assert first == "/t  version 7  x, y"
    assert second == f"{'█' * 10}{'░' * 30}  25.0%  building"
    assert third.startswith("2,500 of 10,000 rows  2.0 MB of 8.0 MB  250 rows/s, 200.0 kB/s  about 30.0 s left")
    assert [line.split()[0] for line in nodes] == ["NODE", "n-1", "n-2", "n-3"]
    show_bar(WAITING)
    assert capsys.readouterr().out.splitlines()[1:] == [f"{'░' * 40}  0.0%  waiting"]
