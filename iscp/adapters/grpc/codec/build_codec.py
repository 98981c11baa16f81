"""Builds as messages of `Builds`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from iscp.adapters.grpc.codec.convert import fields_of, pages
from iscp.core.build.api_builds import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.values.errors import PermanentError
from iscp.core.values.progress import UNKNOWN
from iscp.wire.v1 import builds_pb2 as pb

_STAGE_TO_WIRE = {stage: pb.BuildStage.Value(f"BUILD_STAGE_{stage.name}") for stage in BuildStage}
_STAGE_FROM_WIRE = {number: stage for stage, number in _STAGE_TO_WIRE.items()}
_STATE_TO_WIRE = {state: pb.BuildTaskState.Value(f"BUILD_TASK_STATE_{state.name}") for state in TaskState}
_STATE_FROM_WIRE = {number: state for state, number in _STATE_TO_WIRE.items()}

_APART = ("jobs", "state", "nodes", "rows_done", "bytes_done")
_BUILD_FIELDS = tuple(each.name for each in pb.Build.DESCRIPTOR.fields if each.name not in _APART)
_NODE_FIELDS = tuple(each.name for each in pb.BuildNode.DESCRIPTOR.fields)
_TASK_FIELDS = tuple(each.name for each in pb.BuildTask.DESCRIPTOR.fields if each.name != "state")


def build_pages(views: Iterable[BuildView]) -> Iterator[pb.BuildPage]:
    """Of each build a page without its tasks, and as many with them as it takes."""
    for view in views:
        yield pb.BuildPage(build=_build_to_wire(view))
        for page in pages(map(_task_to_wire, view.tasks)):
            yield pb.BuildPage(tasks=page)


def builds_from_wire(found: Iterable[pb.BuildPage]) -> list[BuildView]:
    """Raises PermanentError where the node is newer and speaks of states unknown here."""
    views: list[BuildView] = []
    tasks: list[BuildTaskView] = []
    for page in found:
        if page.HasField("build"):
            views = _with_tasks(views, tasks)
            views.append(_build_from_wire(page.build))
            tasks = []
        tasks += map(_task_from_wire, page.tasks)
    return _with_tasks(views, tasks)


def _with_tasks(views: list[BuildView], tasks: list[BuildTaskView]) -> list[BuildView]:
    return [*views[:-1], replace(views[-1], tasks=tuple(tasks))] if tasks and views else views


def _build_to_wire(view: BuildView) -> pb.Build:
    return pb.Build(
        jobs=view.jobs,
        state=_STAGE_TO_WIRE[view.state],
        rows_done=view.rows_done,
        bytes_done=view.bytes_done,
        nodes=[pb.BuildNode(**fields_of(node, _NODE_FIELDS)) for node in view.nodes],
        **fields_of(view, _BUILD_FIELDS),
    )


def _build_from_wire(message: pb.Build) -> BuildView:
    state = _STAGE_FROM_WIRE.get(message.state)
    if state is None:
        raise _unknown("a build", message.state)
    return BuildView(
        jobs=tuple(message.jobs),
        state=state,
        rows_done=message.rows_done if message.HasField("rows_done") else UNKNOWN,
        bytes_done=message.bytes_done if message.HasField("bytes_done") else UNKNOWN,
        nodes=tuple(BuildNodeView(**fields_of(node, _NODE_FIELDS)) for node in message.nodes),
        **fields_of(message, _BUILD_FIELDS),
    )


def _task_to_wire(task: BuildTaskView) -> pb.BuildTask:
    return pb.BuildTask(state=_STATE_TO_WIRE[task.state], **fields_of(task, _TASK_FIELDS))


def _task_from_wire(message: pb.BuildTask) -> BuildTaskView:
    state = _STATE_FROM_WIRE.get(message.state)
    if state is None:
        raise _unknown("a task", message.state)
    return BuildTaskView(state=state, **fields_of(message, _TASK_FIELDS))


def _unknown(what: str, number: int) -> PermanentError:
    return PermanentError(
        f"the node reports state {number} of {what}, which is not known here",
        remedy="Use a client as new as the node",
    )
