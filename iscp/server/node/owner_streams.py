"""The owner's side of its connections to nodes: a stream to each, opened again for as long as the node is a member, and
the calls that the owner makes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_random_exponential,
)

from iscp.client.channel.grpc_calls import Meant, Pairs, from_rpc, open_channel, with_trace
from iscp.client.codec.api_messages import (
    EVENT,
    LOG_PAGE,
    PROGRESS,
    UPKEEP,
    VERIFY_REPORT,
    finished_from_wire,
    query_to_wire,
)
from iscp.client.codec.message_codec import Codec
from iscp.model.api.api_requests import EventView, LogPage, LogQuery
from iscp.model.job.iteration import JobMaintenance
from iscp.model.job.start_rule import VerifyReport
from iscp.model.protocol.messages import NodeMessage, OwnerMessage
from iscp.model.values.errors import Canceled, IscpError, PermanentError, Unavailable
from iscp.model.values.ids import NODES_MAX, WIRE_FORMAT, NodeRecord, ShardId
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import error_text
from iscp.ports.cluster import WORK_WAIT_S, BuildAnswer, NodeCalls
from iscp.server.node.node_messages import SHARD, decode_node, encode_owner
from iscp.server.node.node_server import FrameReader, Outgoing, Unreadable
from iscp.system.tls.tls_files import TlsSource
from iscp.wire.v1 import node_pb2 as pb
from iscp.wire.v1 import node_pb2_grpc as pb_grpc
from iscp.wire.v1.operator_pb2 import EventPage

log = logging.getLogger(__name__)

# --- calls of the owner -----------------------------------------------------------------------------------------------
# This part decides how long each call may take. No call is repeated here: its caller repeats it.

CALL_TIMEOUT_S = 5.0
"""How long a node may take to answer an owner's call, comparisons excepted; then the call has failed."""

VERIFY_MARGIN_S = 5.0
"""Seconds that a comparison's answer may take beyond the comparison's own timeout; then the call has failed."""

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether the caller of a running comparison is still there."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node's description of itself; `counters` are its executor's."""

    node_id: str
    epoch: int
    cluster: str
    version: str
    wire_format: int
    counters: Mapping[str, int]


_DESCRIPTION = Codec(NodeDescription, pb.Description)


def describe(address: str, *, tls: TlsSource | None = None, timeout_s: float = CALL_TIMEOUT_S) -> NodeDescription:
    """Return the description of who answers at `address`, be it a stranger.

    Raises Unavailable, TimedOut, PermanentError if it is no node.
    """
    with open_channel(address, tls) as channel:
        return _describe(pb_grpc.NodeStub(channel), address, timeout_s)


def _describe(stub: pb_grpc.NodeStub, address: str, timeout_s: float) -> NodeDescription:
    try:
        found = stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        raise from_rpc(error, address, changes=False) from error
    return _DESCRIPTION.from_wire(found)


class RemoteNode:
    """The port `NodeCalls` at another node.

    It is one life of a node at `address`, called through a channel that is somebody else's to close.
    """

    def __init__(self, channel: grpc.Channel, address: str, meant: Meant) -> None:
        self._stub = pb_grpc.NodeStub(channel)
        self._address = address
        self._meant = meant
        self._own = meant.to_metadata()

    @property
    def _metadata(self) -> Pairs:
        return with_trace(self._own)

    def notify(self, shard: ShardId, targets: bool) -> None:
        self._request(self._stub.Notify, pb.NotifyRequest(shard=SHARD.to_wire(shard), targets=targets))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        request = pb.InterruptRequest(shard=SHARD.to_wire(shard), job_id=job_id, spec_json=spec_json)
        self._request(self._stub.Interrupt, request)

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        request = pb.VerifyRequest(shard=SHARD.to_wire(shard), job_id=job_id, repair=repair, timeout_s=timeout_s)
        deadline_s = timeout_s + VERIFY_MARGIN_S
        call = self._begun(lambda: self._stub.Verify.future(request, timeout=deadline_s, metadata=self._metadata))
        try:
            while True:
                try:
                    return VERIFY_REPORT.from_wire(call.result(ALIVE_LOOK_S))
                except grpc.FutureTimeoutError:
                    if not alive():
                        raise Unavailable("the comparison was given up: the caller is gone") from None
                except grpc.FutureCancelledError as error:
                    raise self._closed() from error
                except grpc.RpcError as error:
                    raise from_rpc(error, self._address, changes=repair) from error
        finally:
            call.cancel()

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        request = pb.WorkOnBuildTasksRequest(owner_rev=owner_rev, range_id=range_id, task_ids=task_ids)
        method, deadline_s = self._stub.WorkOnBuildTasks, WORK_WAIT_S + CALL_TIMEOUT_S
        try:
            call = self._begun(lambda: method.future(request, timeout=deadline_s, metadata=self._metadata))
        except Unavailable as error:
            answered(error)
            return lambda: None
        call.add_done_callback(lambda done: answered(self._build_answer(done)))

        def cancel() -> None:
            call.cancel()

        return cancel

    def _build_answer(self, call: Any) -> BuildAnswer:
        try:
            return finished_from_wire(call.result())
        except ValueError as error:
            return Unavailable(f"{self._address} answers finished tasks that cannot be: {error_text(error)}")
        except grpc.FutureCancelledError:
            return Canceled("the owner does not wait any more")
        except grpc.RpcError as error:
            return from_rpc(error, self._address, changes=False)

    def maintenance(self, job_id: str) -> JobMaintenance:
        return UPKEEP.from_wire(self._request(self._stub.Upkeep, pb.UpkeepRequest(job_id=job_id)))

    def progress(self, job_id: str) -> RunProgress | None:
        answer = self._request(self._stub.Progress, pb.ProgressRequest(job_id=job_id))
        return PROGRESS.from_wire(answer.progress) if answer.HasField("progress") else None

    def counters(self) -> dict[str, int]:
        found = self._begun(lambda: _describe(self._stub, self._address, CALL_TIMEOUT_S))
        meant = self._meant
        if (found.cluster, found.node_id, found.epoch) != (meant.cluster, meant.node_id, meant.epoch):
            raise Unavailable(f"{self._address} is {found.node_id} in epoch {found.epoch} now")
        return dict(found.counters)

    def events(self, known: Sequence[int]) -> list[EventView]:
        def all_pages(request: pb.EventsRequest, **given: Any) -> list[EventPage]:
            return list(self._stub.Events(request, **given))

        answer = self._request(all_pages, pb.EventsRequest(known=known))
        return [EVENT.from_wire(event) for page in answer for event in page.events]

    def logs(self, query: LogQuery) -> LogPage:
        return LOG_PAGE.from_wire(self._request(self._stub.Logs, query_to_wire(query)))

    def _request(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return self._begun(lambda: method(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata))
        except grpc.RpcError as error:
            raise from_rpc(error, self._address, changes=False) from error

    def _begun(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ValueError as error:  # gRPC's way to say that the channel is closed
            raise self._closed() from error

    def _closed(self) -> Unavailable:
        return Unavailable(f"{self._meant.node_id} is no longer a member", remedy="Retry")


# --- streams ----------------------------------------------------------------------------------------------------------
# This part decides when to connect again. It knows nothing of the messages: the machines repeat them, so anything may
# get lost here, and nobody who sends ever waits.

RECONNECT_FIRST_S = 0.1
"""Pause before a broken stream to a node is opened again for the first time; it doubles up to RECONNECT_MAX_S."""

RECONNECT_MAX_S = 3.0
"""Longest pause before a broken stream to a node is opened again, for as long as it is a member."""

CLOSE_WAIT_S = 5.0
"""How long all streams' threads are waited for when a term ends; then they are left to end by themselves."""

Heard = Callable[[str, Sequence[NodeMessage]], None]
Refused = Callable[[NodeRecord, IscpError], None]
Life = tuple[str, int, str]


def life_of(record: NodeRecord) -> Life:
    """Return what a stream leads to: one life of a node at one address. All else in a record may change under way."""
    return record.node_id, record.epoch, record.address


class _BrokenStreamError(Exception):
    """The stream could not be opened."""


class _Peer:
    """One life of a node: the channel to it, what waits for it, and the thread that keeps the stream open."""

    def __init__(
        self,
        record: NodeRecord,
        meant: Meant,
        heard: Heard,
        on_refused: Refused,
        tls: TlsSource | None,
        unreadable: Unreadable,
    ) -> None:
        self._record = record
        self._unreadable = unreadable
        self._heard = heard
        self._on_refused = on_refused
        self._metadata = meant.to_metadata()
        self._channel = open_channel(record.address, tls)
        self._stub = pb_grpc.NodeStub(self._channel)
        self._outgoing: Outgoing[OwnerMessage] = Outgoing(encode_owner, record.node_id)
        # For `_call` and the start of the thread, which `close` must neither miss nor overtake.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._call: grpc.Call | None = None
        self._refusal = ""
        self._thread = threading.Thread(target=self._run, name=f"iscp-peer-{record.node_id}", daemon=True)
        self.node = RemoteNode(self._channel, record.address, meant)

    def send(self, message: OwnerMessage) -> None:
        self._outgoing.put(message)
        if self._thread.ident is None:
            with self._lock:  # and checked again: of several senders one starts it, and none after `close`
                if self._thread.ident is None and not self._closed.is_set():
                    self._thread.start()

    def close(self) -> None:
        """Ends soon after; never waits."""
        with self._lock:
            self._closed.set()
            if self._call is not None:
                self._call.cancel()
            if self._thread.ident is None:
                self._channel.close()

    def join(self, wait_s: float) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self._retrying()(self._hold_stream)
                except RetryError:
                    return
                except Exception:
                    log.exception("peer.failed", extra=self._named())
                # Two that take the stream from each other must not do it as fast as they can.
                self._closed.wait(RECONNECT_FIRST_S)
        finally:
            self._channel.close()

    def _retrying(self) -> Retrying:
        return Retrying(
            retry=retry_if_exception_type(_BrokenStreamError),
            wait=wait_random_exponential(multiplier=RECONNECT_FIRST_S, max=RECONNECT_MAX_S),
            stop=stop_when_event_set(self._closed),
            sleep=sleep_using_event(self._closed),
        )

    def _hold_stream(self) -> None:
        """Open the stream and read it to its end; raises _Broken if it could not be opened."""
        began, ended = threading.Event(), threading.Event()
        call = self._stub.Coordinate(self._frames(began, ended), metadata=self._metadata)
        try:
            with self._lock:
                self._call = call
                if self._closed.is_set():  # `close` found no call to cancel
                    call.cancel()
            call.initial_metadata()  # waits for the node's, or for the end
            if call.is_active():
                began.set()
                self._refusal = ""
                log.info("peer.connected", extra=self._named())
            self._read(call)
        except grpc.RpcError as error:
            self._note(from_rpc(error, self._record.address, changes=False))
            if not began.is_set():
                raise _BrokenStreamError from error
        finally:
            ended.set()
            began.set()  # frees gRPC's thread in `_frames`, where the node never let the stream in
            self._outgoing.wake()
            call.cancel()

    def _frames(self, began: threading.Event, ended: threading.Event) -> Iterator[pb.Frame]:
        """Yield the frames to send; none before the node has let the stream in, as it would be lost."""
        began.wait()
        yield from self._outgoing.frames(ended)

    def _read(self, frames: Iterable[pb.Frame]) -> None:
        reader = FrameReader(decode_node, self._unreadable)
        for frame in frames:
            messages = reader.take(frame)
            try:
                if messages and not self._closed.is_set():
                    self._heard(self._record.node_id, messages)
            except Exception:
                log.exception("peer.not_heard", extra=self._named())

    def _note(self, error: IscpError) -> None:
        """A refusal needs a person: it is reported each time, and logged where it is another one than the last."""
        if self._closed.is_set():
            return
        if not isinstance(error, PermanentError):
            log.info("peer.away", extra={**self._named(), "reason": error.message})
            return
        if str(error) != self._refusal:
            self._refusal = str(error)
            log.warning("peer.refused", extra={**self._named(), "reason": str(error)})
        self._on_refused(self._record, error)

    def _named(self) -> dict[str, object]:
        return {"peer": self._record.node_id, "epoch": self._record.epoch, "address": self._record.address}


class Peers:
    """The streams of one owner; several threads may use it.

    `cluster` is its name with the prefix in etcd. `heard` is called with the messages of a node, in order, by a thread
    of that node; until it returns, no more of them is read; errors that it raises are logged, and that batch is lost.
    `on_refused` is called each time that a node refuses the stream.
    """

    def __init__(
        self,
        cluster: str,
        owner_id: str,
        heard: Heard,
        *,
        on_refused: Refused = lambda record, error: None,
        tls: TlsSource | None = None,
        wire_format: int = WIRE_FORMAT,
    ) -> None:
        self._wire_format = wire_format
        self._cluster = cluster
        self._owner_id = owner_id
        self._heard = heard
        self._on_refused = on_refused
        self._tls = tls
        self._unreadable = Unreadable()
        self._peers: dict[Life, _Peer] = {}
        # Never held while a peer is called: no lock of a peer is taken under it.
        self._lock = threading.Lock()
        self._closed = False
        self._full = False

    @property
    def quarantined(self) -> int:
        """Return how many messages of nodes could not be read."""
        return self._unreadable.count

    def send(self, record: NodeRecord, message: OwnerMessage) -> None:
        """Never waits. Lost where there are NODES_MAX streams already, and after `close`."""
        with suppress(Unavailable):
            self._peer(record).send(message)

    def call(self, record: NodeRecord) -> NodeCalls:
        """Return the node's methods, which make calls with deadlines. Raises Unavailable as `send` loses."""
        return self._peer(record).node

    def keep(self, members: Iterable[NodeRecord]) -> None:
        """Close the streams of all others; never waits."""
        lives = {life_of(record) for record in members}
        with self._lock:
            ended = [self._peers.pop(life) for life in self._peers.keys() - lives]
            self._full = False
        for peer in ended:
            peer.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()
        until_s = time.monotonic() + CLOSE_WAIT_S
        for peer in peers:
            peer.join(max(0.0, until_s - time.monotonic()))

    def _peer(self, record: NodeRecord) -> _Peer:
        life = life_of(record)
        # First without the lock: every message to a node goes through here.
        if (known := self._peers.get(life)) is not None:
            return known
        with self._lock:
            if (known := self._peers.get(life)) is not None:
                return known
            if self._closed:
                raise Unavailable("the streams to the nodes are closed")
            if len(self._peers) >= NODES_MAX:
                if not self._full:
                    self._full = True
                    log.warning("peer.too_many", extra={"nodes": NODES_MAX})
                raise Unavailable(f"there are {NODES_MAX} nodes already")
            meant = Meant(self._cluster, record.node_id, record.epoch, self._owner_id, self._wire_format)
            peer = self._peers[life] = _Peer(record, meant, self._heard, self._on_refused, self._tls, self._unreadable)
            return peer
