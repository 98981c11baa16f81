"""Contexts cross gRPC over real sockets: from a client over a node that forwards to the owner, and on to a node."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from iscp.client.admin_client import Client
from iscp.cluster.owner.node_clients import NodeClients
from iscp.model.values.errors import JobFailed
from iscp.model.values.ids import ShardId
from iscp.ports.system import current_trace, within_trace
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding, TracedCalls
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin
from tests.fakes.node_calls import FakeNodeCalls
from tests.fakes.streams import SHARD, NodeUnderTest, OwnerUnderTest
from tests.fakes.tracing import RecordingTracer, traceparent
from tests.fakes.waiting import until

WAIT_S = 20.0
NOTIFY = "iscp.wire.v1.Admin/Notify"


class Admin(FakeAdmin):
    """Remembers the context in which it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[str] = []

    def _enter(self, verb: str) -> None:
        self.traces.append(current_trace())
        super()._enter(verb)


class Nodes:
    """A node that forwards to an owner; both record."""

    def __init__(self) -> None:
        self.admin, self.entry_tracer, self.owner_tracer = Admin(), RecordingTracer(), RecordingTracer()
        self.owner = AdminServer(self.admin, "127.0.0.1:0", interceptors=[TracedCalls(self.owner_tracer)])
        self.owner.start()
        self.forwarding = Forwarding(lambda: self.owner.address)
        interceptors = [TracedCalls(self.entry_tracer), self.forwarding]
        self.entry = AdminServer(FakeAdmin(), "127.0.0.1:0", interceptors=interceptors)
        self.entry.start()

    def close(self) -> None:
        self.entry.stop(0)
        self.forwarding.close()
        self.owner.stop(0)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


def test_a_call_is_part_of_its_callers_trace_at_each_node_that_it_comes_to(nodes: Nodes) -> None:
    with Client(nodes.entry.address, timeout_s=WAIT_S) as client, within_trace(traceparent(77)):
        client.notify("/t")
    until(lambda: nodes.entry_tracer.one(NOTIFY).ended)
    entry, owner = nodes.entry_tracer.one(NOTIFY), nodes.owner_tracer.one(NOTIFY)
    assert (entry.parent, owner.parent) == (traceparent(77), entry.trace)
    assert nodes.admin.traces == [owner.trace]
    assert owner.attributes == {"rpc.system": "grpc", "rpc.service": "iscp.wire.v1.Admin", "rpc.method": "Notify"}


def test_a_call_without_a_context_or_with_a_forged_one_begins_a_trace(nodes: Nodes) -> None:
    with grpc.insecure_channel(nodes.owner.address) as channel:
        notify = pb_grpc.AdminStub(channel).Notify
        for metadata in ((), (("traceparent", "00-" + "z" * 32 + "-1-1"),), (("traceparent", "x" * 7_000),)):
            notify(pb.NotifyRequest(table="/t"), metadata=metadata, timeout=WAIT_S)
    assert [span.parent for span in nodes.owner_tracer.named(NOTIFY)] == ["", "", ""]


def test_an_error_keeps_its_words_and_its_span_says_its_status(nodes: Nodes) -> None:
    nodes.admin.failures = [JobFailed("it is broken", remedy="Repair it")]
    with Client(nodes.owner.address, timeout_s=WAIT_S) as client, pytest.raises(JobFailed, match="it is broken"):
        client.notify("/t")
    until(lambda: nodes.owner_tracer.one(NOTIFY).ended)
    kind, message = nodes.owner_tracer.one(NOTIFY).failure or ("", "")
    assert kind in {code.name for code in grpc.StatusCode}
    assert "it is broken" in message


def test_calls_that_list_end_their_spans(nodes: Nodes) -> None:
    with Client(nodes.entry.address, timeout_s=WAIT_S) as client:
        client.jobs()
    until(lambda: nodes.entry_tracer.spans and all(span.ended for span in nodes.entry_tracer.spans))
    assert [span.failure for span in nodes.owner_tracer.spans] == [None]


class Noting(FakeNodeCalls):
    def __init__(self) -> None:
        super().__init__()
        self.traces: list[str] = []

    def notify(self, shard: ShardId, targets: bool) -> None:
        self.traces.append(current_trace())
        super().notify(shard, targets)


class HeldBy(NodeClients):
    def __init__(self, calls: object, node: NodeUnderTest) -> None:
        super().__init__(None, lambda record: calls)  # type: ignore[arg-type,return-value]
        self._record = node.record

    def _holder(self, shard: ShardId) -> object:  # type: ignore[override]
        return self._record


def test_a_hint_takes_the_context_of_the_call_that_led_to_it_to_the_node(owner: OwnerUnderTest) -> None:
    calls = Noting()
    node = NodeUnderTest(calls=calls)
    node.start()
    clients = HeldBy(owner.peers.call(node.record), node)
    try:
        with within_trace(traceparent(5)):
            clients.notify(SHARD, True)
        until(lambda: len(calls.traces) == 1)
        clients.notify(SHARD, True)
        until(lambda: len(calls.traces) == 2)
        assert calls.traces == [traceparent(5), ""]
    finally:
        clients.close()
        node.stop()
