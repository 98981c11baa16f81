"""Calls that begin and say nothing more, and answers that nobody reads, leave threads for everybody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from iscp.client.admin_client import Client
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.settings.config import WaitBounds
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import HealthListener
from iscp.server.node.owner_streams import describe
from iscp.system.http_exchange import free_port
from tests.fakes.admin import FakeAdmin
from tests.fakes.streams import NodeUnderTest
from tests.fakes.waiting import until

THREADS = 12
CALLS = 3 * THREADS
NODE_CALLS = 300
"""More than the node's own threads."""

SERVED_S = 60.0
OF_NODES = "/iscp.wire.v1.node.Node/Notify"
SILENT = {
    "unary": "/iscp.wire.v1.Admin/GetJob",
    "pages": "/iscp.wire.v1.Admin/ListJobs",
    "reflection": "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "health": "/grpc.health.v1.Health/Check",
    "watch": "/grpc.health.v1.Health/Watch",
}


class Silence:
    """Calls of a method, as many as wanted, whose requests never come."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._over = threading.Event()
        self.calls: list[Any] = []

    def call(self, method: str, count: int) -> None:
        open_call = self._channel.stream_stream(method)
        self.calls += [open_call(self._nothing()) for _ in range(count)]

    def _nothing(self) -> Iterator[bytes]:
        self._over.wait()
        yield from ()

    def end(self) -> None:
        self._over.set()
        self._channel.close()


@pytest.fixture
def node() -> Iterator[NodeUnderTest]:
    made = NodeUnderTest()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def server() -> Iterator[AdminServer]:
    made = AdminServer(FakeAdmin(), "127.0.0.1:0", max_workers=THREADS - 4, waits=WaitBounds(node_max=4))
    made.start()
    made.ready()
    yield made
    made.stop(grace_s=0)


@pytest.fixture
def silence() -> Iterator[Callable[[str], Silence]]:
    made = []

    def begin(address: str) -> Silence:
        made.append(Silence(address))
        return made[-1]

    yield begin
    for each in made:
        each.end()


@pytest.mark.parametrize("kind", SILENT)
def test_calls_without_a_request_leave_others_served(
    server: AdminServer, silence: Callable[[str], Silence], kind: str
) -> None:
    silent = silence(server.address)
    silent.call(SILENT[kind], CALLS)
    with Client(server.address, timeout_s=SERVED_S) as client:
        assert client.count() == 0
    until(lambda: sum(call.code() is grpc.StatusCode.CANCELLED for call in silent.calls if call.done()) >= THREADS // 2)


def test_calls_of_nodes_without_a_request_leave_the_owner_served(
    node: NodeUnderTest, silence: Callable[[str], Silence]
) -> None:
    silence(node.address).call(OF_NODES, NODE_CALLS)
    assert describe(node.address, tls=None, timeout_s=SERVED_S).node_id == "n"


def test_streams_of_nodes_that_say_nothing_give_way_to_the_owner(
    node: NodeUnderTest, silence: Callable[[str], Silence]
) -> None:
    """Without words about whom they mean they are refused at once."""
    strangers = silence(node.address)
    strangers.call("/iscp.wire.v1.node.Node/Coordinate", NODE_CALLS)
    until(lambda: all(call.done() for call in strangers.calls))
    assert {call.code() for call in strangers.calls} <= {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    assert describe(node.address, tls=None, timeout_s=SERVED_S).node_id == "n"


def test_answers_that_nobody_reads_leave_others_served(server: AdminServer) -> None:
    spec = JobSpec(ConsumerSpec("replica", "/copy/" + "x" * 2_000)).to_json()
    requests = [RegisterRequest(JobName("/sales", f"copy-{n}"), spec) for n in range(4_000)]
    with Client(server.address, timeout_s=SERVED_S) as client, ExitStack() as opened:
        client.register_many(requests)
        listed = []
        for _ in range(CALLS):  # each on a connection of its own, as what is sent is bounded for both
            channel = opened.enter_context(
                grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            listed.append(channel.unary_stream(SILENT["pages"])(b""))
        until(lambda: sum(call.initial_metadata() is not None for call in listed[: THREADS // 2]))
        assert client.count() == len(requests)
        ended = []
        for call in listed[: THREADS // 2]:  # on a busy machine not all of them had begun
            with suppress(grpc.RpcError):
                list(call)
            ended.append(call.code())
        assert grpc.StatusCode.CANCELLED in ended


def test_a_call_without_any_request_is_refused_in_words(server: AdminServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_unary(SILENT["unary"])
        with pytest.raises(grpc.RpcError) as failure:
            call(iter(()), timeout=SERVED_S)
    assert isinstance(failure.value, grpc.Call)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "has no request" in (failure.value.details() or "")


def test_probes_that_say_nothing_leave_others_probed(silence: Callable[[str], Silence]) -> None:
    servicer = health.HealthServicer(experimental_thread_pool=ThreadPoolExecutor(1))
    listener = HealthListener(servicer, address := f"127.0.0.1:{free_port()}")
    listener.start()
    try:
        silence(address).call(SILENT["health"], 4)
        with grpc.insecure_channel(address) as channel:
            request = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=SERVED_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        listener.stop()
