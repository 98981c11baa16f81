"""What callers can do to the audit over real gRPC: little, under their own account, and nothing secret."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import from_rpc
from iscp.model.access.authorization import TokenRecord
from iscp.model.access.service_table import Role
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthorized, OutcomeUnknown, TableNotFound
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.access.call_audit import NAMED_MAX
from iscp.server.access.known_callers import TokenService
from iscp.server.admin.admin_server import AdminServer, OperatorServer, Service
from iscp.system.threads import SystemClock
from iscp.wire.v1 import admin_pb2, operator_pb2
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from iscp.wire.v1 import operator_pb2_grpc as operator_grpc
from tests.fakes.access import Access, FakeTokens
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator


@pytest.fixture
def access() -> Access:
    return Access(SystemClock())


@pytest.fixture
def endpoint(access: Access) -> Iterator[str]:
    services: list[Service] = [OperatorServer(FakeOperator()), AccessServer(access.service)]
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=services, interceptors=[access.interceptor])
    server.start()
    server.ready()
    yield server.address
    server.stop(0.0)


@pytest.fixture
def channel(endpoint: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(endpoint) as opened:
        yield opened


def change(channel: grpc.Channel, token: str, count: int, table: str = "/lake/t") -> IscpError:
    """The error of a call that names `count` accounts."""
    request = admin_pb2.ChangeJobsRequest(format_version=1)
    for number in range(count):
        request.changes.add(job=admin_pb2.JobName(table=table, name="j", account=f"a{number}"))
    with pytest.raises(grpc.RpcError) as refused:
        pb_grpc.AdminStub(channel).ChangeJobs(request, metadata=(("authorization", f"Bearer {token}"),), timeout=30)
    return from_rpc(refused.value, "node", changes=False)


def test_a_call_that_names_many_accounts_has_one_entry_of_the_callers_own(
    access: Access, channel: grpc.Channel
) -> None:
    viewer, editor = access.token(Role.VIEWER), access.token(Role.EDITOR)
    assert isinstance(change(channel, viewer, 5_000), NotAuthorized)
    assert isinstance(change(channel, editor, 5_000), TableNotFound)
    began_s = time.monotonic()
    assert isinstance(change(channel, viewer, 50_000), InvalidRequest)
    assert time.monotonic() - began_s < 5.0
    assert [entry.account for entry in access.audit.entries] == ["acme"] * 3
    assert [json.loads(entry.what)["count"] for entry in access.audit.entries] == [5_000, 5_000, 50_000]


def test_of_all_accounts_a_call_has_few_entries(access: Access, channel: grpc.Channel) -> None:
    assert isinstance(change(channel, access.token(Role.VIEWER, "system"), NAMED_MAX), NotAuthorized)
    assert len(access.audit.entries) == 21
    assert json.loads(access.audit.entries[-1].what)["accounts"] == NAMED_MAX - 20


def test_entries_are_small_whatever_is_sent(access: Access, channel: grpc.Channel) -> None:
    assert isinstance(change(channel, access.token(Role.VIEWER), 1, "x" * 3_000_000), NotAuthorized)
    (entry,) = access.audit.entries
    assert entry.chars < 2_000


def test_a_verb_that_is_not_known_is_audited_too(access: Access, channel: grpc.Channel) -> None:
    request = operator_pb2.ChangeNodeRequest(format_version=1, verb=77, node_id="n1")  # type: ignore[arg-type]
    metadata = (("authorization", f"Bearer {access.token(Role.OPERATOR, 'system')}"),)
    with pytest.raises(grpc.RpcError):
        operator_grpc.OperatorStub(channel).ChangeNode(request, metadata=metadata, timeout=10)
    (entry,) = access.audit.entries
    assert json.loads(entry.what)["things"] == [{"verb": 77, "node_id": "n1"}]


def test_explanations_and_checks_are_audited_as_registrations_are(access: Access, endpoint: str) -> None:
    """What they name is read, and the SQL in them analyzed."""
    with Client(endpoint, token=access.token(Role.EDITOR), timeout_s=5.0) as editor:
        for call in (
            lambda: editor.explain_view("SELECT 1 FROM t", {"t": "/t"}),
            lambda: editor.check_many([RegisterRequest(JobName("/t", "v"), "{}")]),
            lambda: editor.register_many([RegisterRequest(JobName("/t", "v"), "{}")]),
        ):
            with suppress(IscpError):
                call()
    assert [entry.method for entry in access.audit.entries] == [
        f"/iscp.wire.v1.Admin/{name}" for name in ("ExplainConsumer", "Check", "Register")
    ]


def test_a_whole_token_revokes_itself_and_is_never_sent(access: Access, endpoint: str) -> None:
    secret = access.token(Role.VIEWER)
    with Client(endpoint, token=access.token(Role.ADMIN), timeout_s=5.0) as admin:
        assert admin.access.revoke_token(secret)
    assert secret[5:17] not in access.tokens.kept
    (entry,) = access.audit.entries
    assert json.loads(entry.what)["things"] == [{"token_id": secret[5:17]}]


def test_a_token_whose_making_is_not_certain_is_not_made_again(access: Access) -> None:
    made = access.tokens.create

    class Lost(FakeTokens):
        """The token is kept, and the answer lost."""

        def create(self, record: TokenRecord) -> bool:
            made(record)
            raise OutcomeUnknown("etcd has not answered")

    token, lost = access.token(Role.ADMIN), Lost()
    service = TokenService(lost, access.audit, SystemClock(), secrets.token_hex)
    server = AdminServer(
        FakeAdmin(), "127.0.0.1:0", services=[AccessServer(service)], interceptors=[access.interceptor]
    )
    server.start()
    try:
        unknown = pytest.raises(OutcomeUnknown, match="etcd has not answered")
        with Client(server.address, token=token, timeout_s=3.0) as admin, unknown as raised:
            admin.access.create_token("viewer", ttl_s=60)
        assert "iscp-admin token list" in raised.value.remedy
        assert len(access.tokens.kept) == 2  # the admin's own, and one
    finally:
        server.stop(0.0)
