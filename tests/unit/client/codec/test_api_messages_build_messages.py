"""Builds go over the wire and back without a loss, in pages that stay small."""

from __future__ import annotations

import pytest

from iscp.client.codec.api_messages import build_pages, builds_from_wire
from iscp.client.codec.message_codec import PAGE_ITEMS_MAX
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.values.errors import PermanentError
from iscp.wire.v1 import builds_pb2 as pb

WAITING = BuildView("/u", "u-1", "b", ("z",), 3, BuildStage.WAITING)


def building(tasks: int) -> BuildView:
    states = list(TaskState)
    return BuildView(
        *("/t", "t-1", "a", ("x", "y"), 7, BuildStage.BUILDING, 1_000.5, 10_000, 80_000, 0.375, 12.5, 100.0, 30.25),
        tuple(BuildTaskView(1 + each, "x", f"n-{each % 3}", states[each % 3]) for each in range(tasks)),
        *(3_750, 30_000, (BuildNodeView("n-0", 3_000, 24_000), BuildNodeView("n-1", -1, -1))),
    )


@pytest.mark.parametrize("tasks", [0, 3, PAGE_ITEMS_MAX + 1])
def test_builds_come_as_they_went(tasks: int) -> None:
    views = [building(tasks), WAITING, building(tasks)]
    assert builds_from_wire(build_pages(views)) == views


def test_tasks_travel_in_pages_of_their_own() -> None:
    pages = list(build_pages([building(2 * PAGE_ITEMS_MAX + 1), WAITING]))
    assert [len(page.tasks) for page in pages] == [0, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX, 1, 0]
    assert [page.build.table for page in pages if page.HasField("build")] == ["/t", "/u"]


def test_what_a_newer_node_speaks_of_is_refused() -> None:
    with pytest.raises(PermanentError, match="state 9 of a build"):
        builds_from_wire([pb.BuildPage(build=pb.Build(state=9))])  # type: ignore[arg-type]
    with pytest.raises(PermanentError, match="state 9 of a task"):
        builds_from_wire([pb.BuildPage(tasks=[pb.BuildTask(state=9)])])  # type: ignore[arg-type]


def test_what_an_earlier_node_does_not_count_is_unknown() -> None:
    state = pb.BUILD_STAGE_BUILDING
    (view,) = builds_from_wire([pb.BuildPage(build=pb.Build(table="/t", state=state, rows_total=-1))])
    assert (view.rows_total, view.rows_done, view.bytes_done, view.nodes) == (-1, -1, -1, ())


def test_tasks_of_no_build_are_dropped() -> None:
    """Only what is no node of iscp sends them first."""
    state = pb.BUILD_TASK_STATE_WAITING
    assert builds_from_wire([pb.BuildPage(tasks=[pb.BuildTask(state=state)])]) == []
