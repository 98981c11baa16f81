"""Builds as users see them, what a job requests of one, and what nodes have finished of it, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, repeat

from iscp.adapters.grpc.codec.message_codec import Codec, EnumCodec, pages
from iscp.core.build.api_builds import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.build.build_request import BuildRequest
from iscp.core.values.progress import UNCOUNTED, UNKNOWN, SnapshotSize, TableSize, count_or_unknown
from iscp.wire.v1 import admin_pb2, node_pb2
from iscp.wire.v1 import builds_pb2 as pb

_UNCOUNTED = dict.fromkeys(("rows", "bytes", "pieces"), UNKNOWN)

BUILD_REQUEST = Codec(
    BuildRequest, admin_pb2.BuildRequest, size=Codec(SnapshotSize, admin_pb2.BuildRequest, absent=_UNCOUNTED)
)
_TASK = Codec(BuildTaskView, pb.BuildTask, state=EnumCodec(TaskState, pb.BuildTaskState, "state {} of a task"))
_BUILD = Codec(
    BuildView,
    pb.Build,
    state=EnumCodec(BuildStage, pb.BuildStage, "state {} of a build"),
    nodes=Codec(BuildNodeView, pb.BuildNode),
)


def build_pages(views: Iterable[BuildView]) -> Iterator[pb.BuildPage]:
    """Yield for each build a page without its tasks, and as many with them as it takes."""
    for view in views:
        yield pb.BuildPage(build=_BUILD.to_wire(view))
        for page in pages(map(_TASK.to_wire, view.tasks)):
            yield pb.BuildPage(tasks=page)


def builds_from_wire(found: Iterable[pb.BuildPage]) -> list[BuildView]:
    """Raises PermanentError where the node is newer and speaks of states unknown here."""
    views: list[BuildView] = []
    tasks: list[BuildTaskView] = []
    for page in found:
        if page.HasField("build"):
            views = _with_tasks(views, tasks)
            views.append(_BUILD.from_wire(page.build))
            tasks = []
        tasks += map(_TASK.from_wire, page.tasks)
    return _with_tasks(views, tasks)


def _with_tasks(views: list[BuildView], tasks: list[BuildTaskView]) -> list[BuildView]:
    return [*views[:-1], replace(views[-1], tasks=tuple(tasks))] if tasks and views else views


def finished_to_wire(finished: Mapping[str, TableSize]) -> node_pb2.WorkOnBuildTasksResponse:
    sizes = [node_pb2.RangeSize(rows=size.rows, bytes=size.bytes) for size in finished.values()]
    return node_pb2.WorkOnBuildTasksResponse(finished=finished, sizes=sizes)


def finished_from_wire(answer: node_pb2.WorkOnBuildTasksResponse) -> dict[str, TableSize]:
    """Return the sizes by finished tasks, UNCOUNTED where the node gives none; raises ValueError."""
    sizes = (
        TableSize(count_or_unknown(each.rows, "sizes.rows"), count_or_unknown(each.bytes, "sizes.bytes"))
        for each in answer.sizes
    )
    return dict(zip(answer.finished, chain(sizes, repeat(UNCOUNTED)), strict=False))
