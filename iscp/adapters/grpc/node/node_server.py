"""Serves the owner: its stream of messages, and the calls that it makes at the node that runs a shard.

Decides which stream of an owner counts (its newest) and how many there may be. Knows nothing of the messages. Threads
are the service's own, so that no number of users' calls keeps an owner out. A stream takes one that sends, from the
pool, and one that reads.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from iscp.adapters.grpc.channel.call_metadata import Meant, meant_of, refuse_other
from iscp.adapters.grpc.channel.grpc_errors import translate_errors
from iscp.adapters.grpc.channel.method_kinds import handlers_of
from iscp.adapters.grpc.channel.trace_metadata import trace_in
from iscp.adapters.grpc.codec.cluster_messages import event_pages
from iscp.adapters.grpc.codec.job_messages import PROGRESS, UPKEEP, VERIFY_REPORT
from iscp.adapters.grpc.codec.log_messages import LOG_PAGE, query_from_wire
from iscp.adapters.grpc.codec.node_messages import SHARD, decode_owner, encode_node
from iscp.adapters.grpc.codec.quarantine import Quarantine
from iscp.adapters.grpc.node.admitted_method import AdmittedMethod
from iscp.adapters.grpc.node.build_calls import BUILD_CALLS_MAX, BuildCallServer
from iscp.adapters.grpc.node.framing import FrameReader, Outgoing
from iscp.coordination.protocol.messages import NodeMessage, OwnerMessage
from iscp.core.values.errors import InvalidRequest, QueueFull
from iscp.core.values.ids import ShardId
from iscp.core.values.members import WIRE_FORMAT
from iscp.core.values.untrusted_values import error_text
from iscp.ports.cluster import NodeCalls
from iscp.ports.tracing import within_trace
from iscp.wire.v1 import admin_pb2, operator_pb2
from iscp.wire.v1 import node_pb2 as pb

log = logging.getLogger(__name__)

_SERVICE = pb.DESCRIPTOR.services_by_name["Node"]

OWNERS_MAX = 8
"""Streams at once, each of another owner: one leads, and those before it may not know yet that they do not. The oldest
is ended.
"""

VERIFIES_MAX = 200
"""Comparisons that owners wait for at a node; one more is refused with QUEUE_FULL."""

SHORT_CALLS_MAX = 24
"""Calls that answer at once, and streams that were replaced but whose thread has not ended yet; more queue."""


class _Stream:
    """The stream of one owner, and the messages that wait for it."""

    def __init__(self, owner_id: str, context: grpc.ServicerContext) -> None:
        self.outgoing: Outgoing[NodeMessage] = Outgoing(encode_node, owner_id)
        self.ended = threading.Event()
        self._context = context

    def end(self) -> None:
        self.ended.set()
        self.outgoing.wake()

    def cut(self) -> None:
        """End it also where the owner does not read, so that a message cannot be got rid of."""
        self.end()
        self._context.cancel()


class NodeServer:
    """The service `Node` of one node; give it to AdminServer as one of its `services`.

    `epoch` returns the node's current one. `heard` is called with the messages of owners, in order of each stream;
    until it returns, no more of them is read; errors that it raises are logged, and that batch is lost. Callers need a
    certificate with `node_name` among its names; empty: none.
    """

    names = ()  # the nodes' own
    calls_max = OWNERS_MAX + VERIFIES_MAX + BUILD_CALLS_MAX + SHORT_CALLS_MAX

    def __init__(
        self,
        node_id: str,
        epoch: Callable[[], int],
        cluster: str,
        version: str,
        calls: NodeCalls,
        heard: Callable[[Sequence[OwnerMessage]], None],
        wire_format: int = WIRE_FORMAT,
        node_name: str = "",
    ) -> None:
        self._node_id = node_id
        self._node_name = node_name
        self._epoch = epoch
        self._cluster = cluster
        self._version = version
        self._calls = calls
        self._heard = heard
        self._wire_format = wire_format
        self._pool = ThreadPoolExecutor(self.calls_max, thread_name_prefix="iscp-node-call")
        self._quarantine = Quarantine()
        self._builds = BuildCallServer(node_id, calls)
        self._verifies = threading.BoundedSemaphore(VERIFIES_MAX)
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def quarantined(self) -> int:
        """Return how many parts of owners' messages were dead-lettered."""
        return self._quarantine.count

    def add_to(self, server: grpc.Server) -> None:
        behaviours: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {
            "Coordinate": self._coordinate,
            "Notify": self._notify,
            "Interrupt": self._interrupt,
            "Verify": self._verify,
            "WorkOnBuildTasks": self._build,
            "Upkeep": self._upkeep,
            "Progress": self._progress,
            "Events": self._events,
            "Logs": self._logs,
            "Describe": self._describe,
        }
        admitted = {name: AdmittedMethod(each, self._pool, self._node_name) for name, each in behaviours.items()}
        handlers = handlers_of(_SERVICE, admitted)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))

    def send(self, owner_id: str, message: NodeMessage) -> None:
        """Never waits. Lost where this owner has no stream open."""
        stream = self._streams.get(owner_id)
        if stream is not None:
            stream.outgoing.put(message)

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.cut()

    # --- the stream --------------------------------------------------------------------------------------------

    def _coordinate(self, frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Frame]:
        with self._answering(context, "coordinate") as meant:
            owner_id = meant.owner_id
        stream = _Stream(owner_id, context)
        if not context.add_callback(stream.end):
            return  # the call has ended already, and nothing would end the stream
        self._take_in(owner_id, stream)
        try:
            with suppress(grpc.RpcError):  # the owner has gone meanwhile
                context.send_initial_metadata(())
                reader = threading.Thread(
                    target=self._read, args=(owner_id, stream, frames), name=f"iscp-owner-{owner_id}", daemon=True
                )
                reader.start()
                yield from stream.outgoing.frames(stream.ended)
        finally:
            stream.end()
            self._leave(owner_id, stream)

    def _take_in(self, owner_id: str, stream: _Stream) -> None:
        """The newest stream of an owner is the one that counts, and the newest owners are."""
        with self._lock:
            ended = [former] if (former := self._streams.pop(owner_id, None)) is not None else []
            self._streams[owner_id] = stream
            if len(self._streams) > OWNERS_MAX:
                ended.append(self._streams.popitem(last=False)[1])
        log.info("coordinate.begun", extra={"owner": owner_id})
        # Without the lock, which the thread of a stream that ends takes in `_leave`.
        for each in ended:
            each.cut()

    def _leave(self, owner_id: str, stream: _Stream) -> None:
        with self._lock:
            if self._streams.get(owner_id) is stream:  # not where the owner has come back on another one
                del self._streams[owner_id]
        log.info("coordinate.ended", extra={"owner": owner_id})

    def _read(self, owner_id: str, stream: _Stream, frames: Iterator[pb.Frame]) -> None:
        reader = FrameReader(decode_owner, self._quarantine)
        try:
            for frame in frames:
                self._hear(owner_id, reader.take(frame))
        except grpc.RpcError:
            pass  # the owner has gone, or the stream was cut
        finally:
            stream.end()

    def _hear(self, owner_id: str, messages: Sequence[OwnerMessage]) -> None:
        try:
            if messages:
                self._heard(messages)
        except Exception:
            log.exception("coordinate.not_heard", extra={"owner": owner_id})

    # --- the calls ---------------------------------------------------------------------------------------------

    def _notify(self, request: pb.NotifyRequest, context: grpc.ServicerContext) -> pb.NotifyResponse:
        with self._answering(context, "notify"):
            self._calls.notify(_shard(request.shard), request.targets)
            return pb.NotifyResponse()

    def _interrupt(self, request: pb.InterruptRequest, context: grpc.ServicerContext) -> pb.InterruptResponse:
        with self._answering(context, "interrupt"):
            self._calls.interrupt(_shard(request.shard), request.job_id, request.spec_json)
            return pb.InterruptResponse()

    def _verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> admin_pb2.VerifyReport:
        with self._answering(context, "verify"):
            # Comparisons take long: more of them would leave no threads for streams and short calls.
            if not self._verifies.acquire(blocking=False):
                raise QueueFull(f"{VERIFIES_MAX} comparisons wait at {self._node_id}", remedy="Retry later")
            try:
                timeout_s = _waiting_s(request.timeout_s, context.time_remaining())
                shard, repair = _shard(request.shard), request.repair
                report = self._calls.verify(shard, request.job_id, repair, timeout_s, context.is_active)
                return VERIFY_REPORT.to_wire(report)
            finally:
                self._verifies.release()

    def _build(self, request: pb.WorkOnBuildTasksRequest, context: grpc.ServicerContext) -> pb.WorkOnBuildTasksResponse:
        with self._answering(context, "build"):
            return self._builds.work(request, context)

    def _upkeep(self, request: pb.UpkeepRequest, context: grpc.ServicerContext) -> admin_pb2.JobUpkeep:
        with self._answering(context, "upkeep"):
            return UPKEEP.to_wire(self._calls.maintenance(request.job_id))

    def _progress(self, request: pb.ProgressRequest, context: grpc.ServicerContext) -> pb.ProgressResponse:
        with self._answering(context, "progress"):
            found = self._calls.progress(request.job_id)
            return pb.ProgressResponse(progress=PROGRESS.to_wire(found) if found else None)

    def _events(self, request: pb.EventsRequest, context: grpc.ServicerContext) -> Iterator[operator_pb2.EventPage]:
        with self._answering(context, "events"):
            yield from event_pages(self._calls.events(request.known))

    def _logs(self, request: pb.LogsRequest, context: grpc.ServicerContext) -> operator_pb2.LogPage:
        with self._answering(context, "logs"):
            return LOG_PAGE.to_wire(self._calls.logs(query_from_wire(request)))

    def _describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.Description:
        with translate_errors(context, "describe", "node_call"):
            return pb.Description(
                node_id=self._node_id,
                epoch=self._epoch(),
                cluster=self._cluster,
                version=self._version,
                wire_format=self._wire_format,
                counters=self._calls.counters(),
            )

    @contextmanager
    def _answering(self, context: grpc.ServicerContext, verb: str) -> Iterator[Meant]:
        """Yield whom the call means, and turn every error of a method into a status, also where that is not this
        node.
        """
        with translate_errors(context, verb, "node_call"):
            metadata = context.invocation_metadata()
            meant = meant_of(metadata)
            refuse_other(meant, self._cluster, self._node_id, self._epoch(), self._wire_format)
            with within_trace(trace_in(metadata)):
                yield meant


def _shard(wire: pb.ShardId) -> ShardId:
    try:
        return SHARD.from_wire(wire)
    except ValueError as error:
        raise InvalidRequest(error_text(error), about="shard") from error


def _waiting_s(wanted_s: float, remaining_s: float) -> float:
    """Return for how many seconds to wait: no longer than the caller does, which is never for ever."""
    return min(wanted_s, remaining_s) if wanted_s >= 0 else 0.0
