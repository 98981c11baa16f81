"""What is shown and wanted of builds, by both clients and through any node: over real sockets, with a faked service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import grpc
import pytest

from iscp import aio
from iscp.client.admin_client import Client
from iscp.model.api.api_requests import JobName
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.values.errors import InvalidRequest, NotOwner, PermanentError, TableNotFound
from iscp.server.admin.admin_server import AdminServer, BuildServer
from iscp.server.admin.forwarding import Forwarding
from iscp.wire.v1 import builds_pb2 as pb
from iscp.wire.v1 import builds_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin
from tests.fakes.shown_builds import FakeBuilds

TASKS = tuple(BuildTaskView(4 + each, "x", "n-1", TaskState.RUNNING) for each in range(3))
NODES = (BuildNodeView("n-1", 3, 20),)
VIEW = BuildView(
    "/t", "t-1", "a", ("x",), 7, BuildStage.BUILDING, 1.0, 10, 80, 0.25, 1.0, 8.0, 7.5, TASKS, 3, 20, NODES
)

Serve = Callable[..., str]


@pytest.fixture
def builds() -> FakeBuilds:
    return FakeBuilds([[VIEW]])


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[AdminServer] = []

    def serve(service: FakeBuilds | None, *interceptors: grpc.ServerInterceptor) -> str:
        services = [] if service is None else [BuildServer(service)]
        server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=services, interceptors=interceptors)
        server.start()
        servers.append(server)
        return server.address

    yield serve
    for server in servers:
        server.stop(grace_s=0)


def test_builds_are_shown_and_changed(builds: FakeBuilds, serve: Serve) -> None:
    with Client(serve(builds)) as client:
        assert client.builds.list() == client.builds.list("/t") == [VIEW]
        assert client.builds.list("/u") == []
        assert [client.builds.abort("/t", "x", account="b"), client.builds.abort("/t")] == [3, 3]
        assert [client.builds.prioritize("/t"), client.builds.prioritize("/t")] == [True, False]
        assert [client.builds.split("/t"), client.builds.merge("/t", range_id=5)] == [8, 1]
    assert builds.changes == [
        ("abort", JobName("/t", "x", "b")),
        ("abort", JobName("/t", "")),
        ("split", "/t", 0),
        ("merge", "/t", 5),
    ]


def test_the_async_client_does_the_same(builds: FakeBuilds, serve: Serve) -> None:
    async def program(endpoint: str) -> None:
        async with aio.Client(endpoint) as client:
            assert await client.builds.list("/t") == [VIEW]
            assert await client.builds.split("/t", range_id=4) == 8
            with pytest.raises(TableNotFound):
                await client.builds.prioritize("/none")

    asyncio.run(program(serve(builds)))
    assert builds.changes == [("split", "/t", 4)]


def test_any_node_answers_as_the_owner_does(builds: FakeBuilds, serve: Serve) -> None:
    owner, here = serve(builds), FakeBuilds([NotOwner("this node is not the owner")])
    forwarding = Forwarding(lambda: owner)
    with Client(serve(here, forwarding)) as client:
        assert client.builds.list() == [VIEW]
        assert client.builds.abort("/t") == 3
        with pytest.raises(InvalidRequest, match="/u is not being built"):
            client.builds.abort("/u")
    assert here.changes == []
    forwarding.close()


def test_a_node_that_is_too_old_says_so(serve: Serve) -> None:
    """Also where a newer one forwards to it."""
    older = serve(None)
    forwarding = Forwarding(lambda: older)
    for endpoint in (older, serve(FakeBuilds(), forwarding)):
        with Client(endpoint) as client:
            with pytest.raises(PermanentError, match="does not know this call") as refused:
                client.builds.list()
            assert "new enough" in refused.value.remedy
    forwarding.close()


def test_what_cannot_be_sent_and_what_a_newer_client_sends_is_refused(builds: FakeBuilds, serve: Serve) -> None:
    endpoint = serve(builds)
    with Client(endpoint) as client, pytest.raises(InvalidRequest, match="whole number") as refused:
        client.builds.split("/t", range_id="all")  # type: ignore[arg-type]
    assert refused.value.field == "range_id"
    with grpc.insecure_channel(endpoint) as channel:
        stub = pb_grpc.BuildsStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            stub.AbortBuild(pb.AbortBuildRequest(format_version=2**31))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert builds.changes == []
