"""Serves an owner that waits for tasks of a build: a thread for each call, until they are finished or nobody waits."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

import grpc

from iscp.adapters.grpc.codec.build_messages import finished_to_wire
from iscp.core.build.build_task import DEPTH_MAX
from iscp.core.values.errors import InvalidRequest, IscpError, QueueFull
from iscp.core.values.untrusted_values import error_text, exact_int, exact_name
from iscp.ports.cluster import WORK_WAIT_S, BuildAnswer, NodeCalls
from iscp.wire.v1 import node_pb2 as pb

BUILD_CALLS_MAX = 16
"""Calls of owners that wait for tasks of builds at a node; one more is refused with QUEUE_FULL, and repeated."""


class BuildCallServer:
    def __init__(self, node_id: str, calls: NodeCalls) -> None:
        self._node_id = node_id
        self._calls = calls
        self._free = threading.BoundedSemaphore(BUILD_CALLS_MAX)

    def work(self, request: pb.WorkOnBuildTasksRequest, context: grpc.ServicerContext) -> pb.WorkOnBuildTasksResponse:
        """Raises what the work has raised, QueueFull, InvalidRequest of what no owner says."""
        try:
            range_id = exact_int(request.range_id, "range_id", 1, (2 << DEPTH_MAX) - 1)
            task_ids = [exact_name(task_id, "task_ids") for task_id in request.task_ids]
        except ValueError as error:
            raise InvalidRequest(error_text(error)) from error
        if not self._free.acquire(blocking=False):
            raise QueueFull(f"{BUILD_CALLS_MAX} calls wait for builds at {self._node_id}", remedy="Retry later")
        answers: SimpleQueue[BuildAnswer] = SimpleQueue()
        context.add_callback(lambda: answers.put({}))
        end_wait = self._calls.work_on_build_tasks(request.owner_rev, range_id, task_ids, answers.put)
        try:
            answer = answers.get(timeout=WORK_WAIT_S)
        except Empty:
            answer = {}
        finally:
            end_wait()
            self._free.release()
        if isinstance(answer, IscpError):
            raise answer
        return finished_to_wire(answer)
