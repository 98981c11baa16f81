"""Callers with tokens of a provider, whose keys a real server publishes, by gRPC and as JSON over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest

from iscp.client.admin_client import Client
from iscp.client.channel.attempts import TOKEN_CHECK_S
from iscp.model.access.authorization import TOKEN_CHARS_MAX
from iscp.model.access.service_table import Role
from iscp.model.values.errors import IscpError, NotAuthenticated, NotAuthorized, TableNotFound, Unavailable
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.access.jwks_keys import HttpJwks
from iscp.server.access.known_callers import ProviderKeys
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from iscp.server.http.gateway_server import GatewayServer
from iscp.system.threads import THREADS, SystemClock
from tests.fakes.access import SYSTEM, Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator
from tests.fakes.provider import OidcProvider, answer_with
from tests.fakes.waiting import until

PAUSE_S = 0.2


class Guarded:
    """A node's servers, and a provider whose tokens count there."""

    def __init__(self) -> None:
        self.provider, clock = OidcProvider("rsa-1", "p256-1"), SystemClock()
        self.config = self.provider.config(leeway_s=0.0)
        self.keys = ProviderKeys(HttpJwks(self.config), self.config, SYSTEM, clock, THREADS, PAUSE_S)
        self.access = Access(clock, provider=self.keys)
        self.server = AdminServer(
            FakeAdmin(),
            "127.0.0.1:0",
            services=[OperatorServer(FakeOperator()), AccessServer(self.access.service)],
            interceptors=[self.access.interceptor],
        )
        self.gateway = GatewayServer(self.server, "127.0.0.1:0", "1")
        self.gateway.start()
        self.gateway.ready()
        self.keys.start()
        until(self.there)

    def there(self) -> bool:
        try:
            self.keys.identify(self.provider.token())
        except Unavailable:
            return False
        return True

    def client(self, token: str | Path, timeout_s: float = 10.0) -> Client:
        return Client(self.server.address, token=token, timeout_s=timeout_s)

    def stop(self) -> None:
        self.keys.close()
        self.gateway.stop(0.0)
        self.provider.close()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    made = Guarded()
    yield made
    made.stop()


def refusal(guarded: Guarded, token: str, timeout_s: float = 10.0) -> IscpError:
    with guarded.client(token, timeout_s) as client, pytest.raises(IscpError) as refused:
        client.jobs()
    return refused.value


@pytest.mark.parametrize("key", ["rsa-1", "p256-1"])
def test_account_and_role_of_a_token_hold_for_all_services(guarded: Guarded, key: str) -> None:
    editor, viewer = (guarded.provider.token(key, role=role) for role in ("editor", ["viewer", "none"]))
    with guarded.client(editor) as ana, guarded.client(viewer) as eve:
        ana.register("/lake/t", "j", target="/x", account="acme")
        assert [job.account for job in eve.jobs()] == ["acme"]
        assert eve.operator.placement() is not None
        with pytest.raises(NotAuthorized, match="needs the role editor"):
            eve.pause("/lake/t", "j", account="acme")
        with pytest.raises(NotAuthorized, match="'system' alone"):
            ana.cluster()
        with pytest.raises(TableNotFound):
            ana.status("/lake/t", "j", account="other")
    (entry, _) = guarded.access.audit.entries
    assert (entry.caller, entry.known_by, entry.caller_account) == ("oidc:ana", "oidc", "acme")
    with guarded.client(guarded.access.token(Role.VIEWER)) as own:  # a token of iscp goes on to count
        assert [job.name for job in own.jobs()] == ["j"]


def test_a_token_may_be_as_long_as_a_client_lets_it_be(guarded: Guarded) -> None:
    """What gRPC lets through as metadata is what bounds it."""
    longest = (TOKEN_CHARS_MAX - len(guarded.provider.token())) * 3 // 4
    token = guarded.provider.token(groups="x" * (longest - 20))
    assert TOKEN_CHARS_MAX - 50 < len(token) <= TOKEN_CHARS_MAX
    with guarded.client(token) as client:
        assert client.jobs() == []
    with grpc.insecure_channel(guarded.server.address) as channel:
        metadata = (("authorization", f"Bearer {guarded.provider.token(groups='x' * TOKEN_CHARS_MAX)}"),)
        with pytest.raises(grpc.RpcError) as refused:
            list(channel.unary_stream("/iscp.wire.v1.Admin/ListJobs")(b"", metadata=metadata, timeout=10))
    assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_tokens_that_are_not_good_are_refused_with_what_to_do(guarded: Guarded) -> None:
    provider, now_s = guarded.provider, int(time.time())
    good = provider.token()
    for token, message in (
        (provider.token(exp=now_s - 1), "has ended"),
        (provider.token(exp=None), "`exp`"),
        (provider.token(exp=now_s + 30 * 86_400), "longer than"),
        (provider.token(nbf=now_s + 3_600), "not valid yet"),
        (provider.token(aud="another"), "another audience"),
        (provider.token(iss="https://evil"), "another issuer"),
        (provider.token(account="system", role="admin"), "cluster-wide"),
        (provider.token(role="root"), "no role"),
        (good[: good.rindex(".") + 1], "has not made"),
        ("a.b.c", "cannot be read"),
    ):
        error = refusal(guarded, token)
        assert type(error) is NotAuthenticated, message
        assert message in error.message
        assert error.remedy
        assert not any(part in str(error) for part in (token, "evil", "rsa-1") if len(part) > 10)
    assert guarded.access.audit.entries == []


def test_keys_are_rotated_while_calls_are_made(guarded: Guarded) -> None:
    """A call with a new key is repeated by the client, as any that could not be decided, until the keys are there."""
    guarded.provider.keys = ("rsa-2",)
    time.sleep(PAUSE_S)
    with guarded.client(guarded.provider.token("rsa-2")) as client:
        assert client.jobs() == []
    assert isinstance(refusal(guarded, guarded.provider.token("rsa-1")), NotAuthenticated)


def test_a_provider_that_is_away_keeps_nobody_out_whose_key_is_known(guarded: Guarded) -> None:
    guarded.provider.answer = answer_with(b"", "503 Service Unavailable")
    time.sleep(PAUSE_S)
    assert isinstance(refusal(guarded, guarded.provider.token("rsa-2"), timeout_s=0.5), Unavailable)
    with guarded.client(guarded.provider.token()) as client:
        assert client.jobs() == []


def test_a_file_with_a_token_is_read_again_when_there_is_a_new_one(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.provider.token(exp=int(time.time()) + 1))
    with guarded.client(file) as client:
        assert client.jobs() == []
        until(lambda: ended(client))
        file.write_text(guarded.provider.token())
        time.sleep(TOKEN_CHECK_S)
        assert client.jobs() == []


def ended(client: Client) -> bool:
    try:
        client.jobs()
    except NotAuthenticated:
        return True
    return False


def test_by_http_too(guarded: Guarded) -> None:
    for token, status in ((guarded.provider.token(), 200), (guarded.provider.token(aud="x"), 401), ("a.b.c", 401)):
        connection = HTTPConnection(guarded.gateway.address, timeout=30)
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        connection.request("POST", "/v1/ListJobs", b"{}", headers)
        answer = connection.getresponse()
        assert (answer.status, answer.headers.get("www-authenticate")) == (status, None if status == 200 else "Bearer")
        assert token not in answer.read().decode()
        connection.close()
