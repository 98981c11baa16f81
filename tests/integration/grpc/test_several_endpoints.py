"""A client that knows several nodes: where one cannot reach the owner, is silent or gone, another one is called."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from iscp import aio
from iscp.client.admin_client import Client
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values import errors
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding
from iscp.system.http_exchange import free_port
from tests.fakes.admin import FakeAdmin

SPEC = JobSpec(ConsumerSpec("replica", "/copy")).to_json()
TIMEOUT_S = 12.0
AT_ONCE_S = 3.0


class Silent:
    """Accepts connections, and says nothing, as an owner that the node is cut off from."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()


class Cluster:
    """The owner, and a node that looks for it elsewhere."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self.service, self.cut_off_service = FakeAdmin(), FakeAdmin()
        silent = Silent()
        opened.callback(silent.close)
        forwarding = Forwarding(lambda: silent.address)
        opened.callback(forwarding.close)
        self.owner = self._serve(self.service)
        self.cut_off = self._serve(self.cut_off_service, forwarding)

    def _serve(self, service: FakeAdmin, *interceptors: Forwarding) -> str:
        server = AdminServer(service, "127.0.0.1:0", max_workers=8, interceptors=interceptors)
        server.start()
        self._opened.callback(server.stop, 0.0)
        return server.address


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as opened:
        yield Cluster(opened)


def spent_s(since_s: float) -> float:
    return time.monotonic() - since_s


def test_a_change_is_made_by_another_node_and_the_bad_one_is_remembered(cluster: Cluster) -> None:
    with Client(f"{cluster.cut_off},{cluster.owner}", timeout_s=TIMEOUT_S) as client:
        assert client.register("/t", "a", target="/copy").created
        begun_s = time.monotonic()
        assert client.register("/t", "b", target="/copy").created
        assert client.count() == 2
        assert spent_s(begun_s) < AT_ONCE_S
    assert cluster.cut_off_service.asked == {}


def test_so_it_is_with_asyncio(cluster: Cluster) -> None:
    async def main() -> None:
        async with aio.Client(f"{cluster.cut_off},{cluster.owner}", timeout_s=TIMEOUT_S) as client:
            assert (await client.register("/t", "a", target="/copy")).created
            begun_s = time.monotonic()
            assert [job.name for job in await client.jobs()] == ["a"]
            assert spent_s(begun_s) < AT_ONCE_S

    asyncio.run(main())


def test_a_node_that_does_not_listen_or_is_not_there_costs_no_time(cluster: Cluster) -> None:
    begun_s = time.monotonic()
    gone = f"127.0.0.1:{free_port()},nobody.invalid:7430,{cluster.owner}"
    with Client(gone, timeout_s=TIMEOUT_S, wait_for_ready=False) as client:
        assert client.register("/t", "a", target="/copy").created
    assert spent_s(begun_s) < AT_ONCE_S


def test_a_change_that_may_have_been_made_is_repeated_with_its_request_id(cluster: Cluster) -> None:
    """One node's answer is lost: the other gives the same answer, and there is one job."""
    cluster.service.fail_late = True
    cluster.service.failures = [errors.OutcomeUnknown("the node went away")]
    second = cluster._serve(cluster.service)
    with Client(f"{cluster.owner},{second}", timeout_s=TIMEOUT_S) as client:
        (result,) = client.register_many([RegisterRequest(JobName("/t", "a"), SPEC)])
        assert result.created
        assert client.count() == 1
    assert len(set(cluster.service.request_ids)) == 1


def test_where_all_fail_the_call_ends_in_its_time(cluster: Cluster) -> None:
    begun_s = time.monotonic()
    with (
        Client(f"{cluster.cut_off},127.0.0.1:{free_port()}", timeout_s=5.0) as client,
        pytest.raises((errors.Unavailable, errors.TimedOut)),
    ):
        client.count()
    assert 2.0 < spent_s(begun_s) < 5.0 + AT_ONCE_S


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.register("/t", "a", target="/copy"),
        lambda client: client.check_many([RegisterRequest(JobName("/t", "a"), SPEC)], timeout_s=900.0),
    ],
)
def test_who_does_not_wait_is_refused_at_once_where_there_is_no_node(
    host: str, call: Callable[[Client], object]
) -> None:
    begun_s, endpoint = time.monotonic(), f"{host}:{free_port()}"
    with Client(endpoint, wait_for_ready=False) as client, pytest.raises(errors.Unavailable) as refused:
        call(client)
    assert spent_s(begun_s) < AT_ONCE_S
    assert endpoint in refused.value.message
    assert "--endpoint" in refused.value.remedy


def test_a_call_that_may_take_long_is_not_repeated_for_so_long_without_a_node() -> None:
    begun_s = time.monotonic()
    with Client(f"127.0.0.1:{free_port()}", timeout_s=1.0) as client, pytest.raises(errors.Unavailable):
        client.wait("/t", "a", timeout_s=900.0)
    assert spent_s(begun_s) < 1.0 + AT_ONCE_S
