"""Health at an address of its own, over real sockets: what probes see there, and that nothing else is served."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from iscp.model.values.errors import ConfigurationError
from iscp.server.admin.admin_server import AdminServer
from iscp.system.http_exchange import free_port
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin

SERVING = health_pb2.HealthCheckResponse.SERVING
USERS = health_pb2.HealthCheckRequest(service="iscp.wire.v1.Admin")


def test_probes_see_when_users_are_served_and_can_call_nothing_else() -> None:
    address = f"127.0.0.1:{free_port()}"
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", health_address=address)
    server.start()
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(USERS)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        server.ready()
        assert health.Check(USERS).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            pb_grpc.AdminStub(channel).CountJobs(pb.CountJobsRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        server.stop(grace_s=0)
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(USERS)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_address_that_is_taken_is_named() -> None:
    taken = AdminServer(FakeAdmin(), "127.0.0.1:0")
    taken.start()
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", health_address=taken.address)
    with pytest.raises(ConfigurationError, match="Is the port taken") as refused:
        server.start()
    assert refused.value.field == "health.listen"
    taken.stop(grace_s=0)
