"""The releases of etcd's members, where a proxy answers in their place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from iscp.etcd import channels as pb
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import HOST, member_releases
from tests.fakes.clock import FakeClock

RELEASE = "3.5.21"


@pytest.fixture
def proxy() -> Iterator[str]:
    """The address of a server that has a status and no list of members, as some proxies and stand-ins have."""
    answer = pb.StatusResponse(version=RELEASE).SerializeToString()
    handlers = {"Status": grpc.unary_unary_rpc_method_handler(lambda request, context: answer)}
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(
            pool, handlers=[grpc.method_handlers_generic_handler("etcdserverpb.Maintenance", handlers)]
        )
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        yield f"{HOST}:{port}"
        server.stop(None).wait()


def test_where_members_are_not_listed_the_one_that_answers_counts(proxy: str) -> None:
    settings, clock = EtcdSettings((proxy,)), FakeClock()
    with EtcdClient(settings, clock) as etcd:
        assert member_releases(etcd, settings, clock, settings.timeout_s) == {"that answers": RELEASE}
