"""The service `Node`, by which a node serves the owner: the owner's stream of messages, and the calls that the owner
makes at the node that runs a shard.

The module also has the queues and frames of messages, which the owner's side of a stream uses too.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import grpc

from iscp.client.channel.grpc_calls import Meant, meant_of, refuse_other, trace_in, translate_errors
from iscp.client.channel.silent_calls import handlers_of
from iscp.client.codec.api_messages import (
    LOG_PAGE,
    PROGRESS,
    UPKEEP,
    VERIFY_REPORT,
    event_pages,
    finished_to_wire,
    query_from_wire,
)
from iscp.model.build.build_task import DEPTH_MAX
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    OwnerMessage,
    Sync,
)
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthorized, QueueFull
from iscp.model.values.ids import WIRE_FORMAT, ShardId
from iscp.model.values.untrusted_values import error_text, exact_int, exact_name, named_error
from iscp.ports.cluster import WORK_WAIT_S, BuildAnswer, NodeCalls
from iscp.ports.system import within_trace
from iscp.server.node.node_messages import SHARD, decode_owner, encode_node
from iscp.system.tls.renewing_channel import names_shown
from iscp.wire.v1 import admin_pb2, operator_pb2
from iscp.wire.v1 import node_pb2 as pb

# --- messages in frames -----------------------------------------------------------------------------------------------
# Messages between owner and nodes are queued and cut into frames, and frames are put together again. This part decides
# what is dropped: everything is repeated by those who sent it, so the newest message counts. It knows no streams.

log = logging.getLogger(__name__)
M = TypeVar("M", bound=OwnerMessage | NodeMessage)

FRAME_BYTES_MAX = 1024 * 1024
"""Bytes of a frame; a message that does not fit travels in parts."""

MESSAGE_PARTS_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of a message that travels in parts; a larger one is dropped, and logged."""

QUEUE_MESSAGES_MAX = 10_000
"""Messages that wait for one other node; beyond them the oldest are dropped, and sent again by the machines."""

GATHER_S = 0.002
"""How long messages are gathered for one frame: a frame for each costs both sides more than the message."""

_HEAD_BYTES = 8
"""More than protobuf spends on a field's number and length."""


def cut(encoded: Iterable[bytes]) -> Iterator[pb.Frame]:
    """Cut messages into frames, in order, as many as fit into each."""
    batch: list[bytes] = []
    batch_bytes = 0
    for raw in encoded:
        raw_bytes = len(raw) + _HEAD_BYTES
        if batch and batch_bytes + raw_bytes > FRAME_BYTES_MAX:
            yield pb.Frame(messages=batch)
            batch, batch_bytes = [], 0
        if raw_bytes > FRAME_BYTES_MAX:
            yield from _parts(raw)
        else:
            batch.append(raw)
            batch_bytes += raw_bytes
    if batch:
        yield pb.Frame(messages=batch)


def _parts(raw: bytes) -> Iterator[pb.Frame]:
    if len(raw) > MESSAGE_PARTS_BYTES_MAX:
        log.error("coordinate.too_large", extra={"bytes": len(raw)})
        return
    step = FRAME_BYTES_MAX - 2 * _HEAD_BYTES
    for start in range(0, len(raw), step):
        yield pb.Frame(part=raw[start : start + step], last=start + step >= len(raw))


@dataclass(slots=True)
class Unreadable:
    """The `count` of messages that could not be read, on all streams of one side."""

    count: int = 0


class FrameReader(Generic[M]):
    """The messages of one stream's frames, in order; what cannot be read is left out, and counted."""

    def __init__(self, decode: Callable[[bytes], M], unreadable: Unreadable) -> None:
        self._decode = decode
        self._unreadable = unreadable
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._reported = False

    def take(self, frame: pb.Frame) -> list[M]:
        found = []
        for raw in self._whole(frame):
            try:
                found.append(self._decode(raw))
            except Exception as error:  # noqa: BLE001  (whatever it is, those after it are to be read)
                self._unreadable.count += 1
                self._report(named_error(error))
        return found

    def _whole(self, frame: pb.Frame) -> Iterable[bytes]:
        if not frame.part:
            return frame.messages
        self._parts_bytes += len(frame.part)
        if self._parts_bytes > MESSAGE_PARTS_BYTES_MAX:
            self._parts.clear()
        else:
            self._parts.append(frame.part)
        if not frame.last:
            return ()
        parts, self._parts = self._parts, []
        parts_bytes, self._parts_bytes = self._parts_bytes, 0
        if parts_bytes > MESSAGE_PARTS_BYTES_MAX:
            self._report(f"a message has {parts_bytes} bytes")
            return ()
        return (b"".join(parts),)

    def _report(self, reason: str) -> None:
        """Log once a stream, as a newer node may send what is unknown here again and again."""
        if not self._reported:
            self._reported = True
            log.warning("coordinate.unreadable", extra={"reason": reason})


def about(message: OwnerMessage | NodeMessage) -> Hashable:
    """Return the subject of a message: the newer of two about the same subject has all that is still true."""
    match message:
        case DispatchTable() | DispatchTableResponse():
            return message.shard
        case Checkpoint():
            return message.number
        case Sync():
            return "Sync", message.part
        case Announce() | Acknowledge() | Alive():
            return type(message).__name__


class WaitingMessages(Generic[M]):
    """The messages that wait for one other node, `to`, and are cut into frames when they are taken; for one thread at a
    time.

    A newer message takes an older one's place, at the end. Above `messages_max` the oldest are dropped, and counted in
    `dropped`.
    """

    def __init__(self, encode: Callable[[M], bytes], to: str, messages_max: int = QUEUE_MESSAGES_MAX) -> None:
        self._encode = encode
        self._to = to
        self._waiting: OrderedDict[Hashable, M] = OrderedDict()
        self._overflowing = False
        self.messages_max = messages_max
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: M) -> None:
        subject = about(message)
        self._waiting.pop(subject, None)
        self._waiting[subject] = message
        if len(self._waiting) > self.messages_max:
            self._waiting.popitem(last=False)
            self.dropped += 1
            if not self._overflowing:
                self._overflowing = True
                log.warning("coordinate.overflow", extra={"to": self._to, "messages": self.messages_max})

    def take(self) -> list[M]:
        """Take all messages that wait."""
        batch = list(self._waiting.values())
        self._waiting.clear()
        self._overflowing = False
        return batch

    def frames_of(self, batch: list[M]) -> Iterator[pb.Frame]:
        return cut(self._encode_batch(batch))

    def _encode_batch(self, batch: list[M]) -> Iterator[bytes]:
        for message in batch:
            try:
                yield self._encode(message)
            except Exception:  # a value that the wire has no form for; the others must not suffer
                log.exception("coordinate.unsayable", extra={"to": self._to})


class Outgoing(Generic[M]):
    """WaitingMessages for one stream after another; safe to use from several threads."""

    def __init__(self, encode: Callable[[M], bytes], to: str) -> None:
        self._waiting = WaitingMessages(encode, to)
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        return self._waiting.dropped

    def put(self, message: M) -> None:
        """Never waits."""
        with self._changed:
            self._waiting.put(message)
            self._changed.notify()

    def frames(self, ended: threading.Event) -> Iterator[pb.Frame]:
        """Yield all that waits at a time, cut into frames, until `ended`; whoever sets that calls `wake`."""
        while batch := self._take(ended):
            yield from self._waiting.frames_of(batch)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take(self, ended: threading.Event) -> list[M]:
        with self._changed:
            while not (self._waiting or ended.is_set()):
                self._changed.wait()
        if ended.wait(GATHER_S):  # a moment more, so that what comes in a burst goes out in few frames
            return []
        with self._changed:
            return self._waiting.take()


# --- admission of callers, and the threads of methods -----------------------------------------------------------------


def refuse_stranger(names: Collection[str], node_name: str) -> None:
    """Raise NotAuthorized unless a caller whose certificate has these names is a node; without TLS everybody passes."""
    if node_name and node_name.lower() not in (name.lower() for name in names):
        raise NotAuthorized(
            f"this is for nodes alone, and the caller's certificate does not have {node_name} among its DNS names",
            about="security.tls.node_name",
            remedy="Give a node the certificate of one, and the same name to all nodes of a cluster",
        )


class AdmittedMethod:
    """A method for nodes alone, in threads of its own (gRPC reads that attribute; its health service has it too).

    Every method of the service is one: there is no other way to it.
    """

    def __init__(
        self, method: Callable[[Any, grpc.ServicerContext], Any], pool: ThreadPoolExecutor, node_name: str
    ) -> None:
        self._method = method
        self._node_name = node_name
        self.experimental_thread_pool = pool

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._node_name:
            with translate_errors(context, "admit", "node_call"):
                refuse_stranger(names_shown(context).dns, self._node_name)
        return self._method(request, context)


# --- calls that wait for tasks of a build -----------------------------------------------------------------------------

BUILD_CALLS_MAX = 16
"""Calls of owners that wait for tasks of builds at a node; one more is refused with QUEUE_FULL, and repeated."""


class BuildCallServer:
    """Serves an owner that waits for tasks of a build: a thread for each call, until the tasks are finished or nobody
    waits.
    """

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


# --- the service ------------------------------------------------------------------------------------------------------

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

    The server decides which stream of an owner counts (its newest) and how many there may be. It knows nothing of the
    messages. Threads are the service's own, so that no number of users' calls keeps an owner out. A stream takes one
    that sends, from the pool, and one that reads.

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
        self._unreadable = Unreadable()
        self._builds = BuildCallServer(node_id, calls)
        self._verifies = threading.BoundedSemaphore(VERIFIES_MAX)
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def quarantined(self) -> int:
        """Return how many messages of owners could not be read."""
        return self._unreadable.count

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
        reader = FrameReader(decode_owner, self._unreadable)
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
