"""Two real nodes and etcd with TLS and authentication: who may do what, at either node, until a token is revoked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.message import Message

from benchmarks.bare_cluster import BareCluster, BareNode, until
from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import CALLER_KEY, FORWARDED_KEY
from iscp.delta.joblog.delta_job_log import AuditTable
from iscp.model.access.authorization import TOKEN_CHARS_MAX, AuditEntry, AuditQuery
from iscp.model.access.security_config import AccountConfig
from iscp.model.access.service_table import Role
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    NotAuthenticated,
    NotAuthorized,
    TableNotFound,
)
from iscp.server.access.known_callers import TOKENS_STALE_MAX_S
from iscp.wire.v1 import admin_pb2
from tests.fakes.provider import OidcProvider

SHARDS = 4
ACCOUNTS = {
    "system": AccountConfig(certificates={"root": Role.ADMIN}),
    "acme": AccountConfig(
        certificates={"ana": Role.EDITOR, "eve": Role.VIEWER, "oz": Role.OPERATOR}, roots=("/lake", "/kept")
    ),
    "default": AccountConfig(roots=("/",)),
    "other": AccountConfig(roots=("/",)),
}
REVOKED_WITHIN_S = 5.0
GET_CLUSTER = admin_pb2.GetClusterRequest()


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    made = OidcProvider("p256-1")
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, provider: OidcProvider) -> Iterator[BareCluster]:
    root, oidc = tmp_path_factory.mktemp("cluster"), provider.config()
    made = BareCluster(root, 2, SHARDS, tls=True, accounts=ACCOUNTS, oidc=oidc)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def nodes(cluster: BareCluster) -> tuple[BareNode, BareNode]:
    """The owner, and the other one, which passes calls on to it."""
    owner = cluster.owner()
    (other,) = (node for node in cluster.members if node is not owner)
    return owner, other


def connect(cluster: BareCluster, node: BareNode, name: str, token: str | None = None) -> Client:
    return Client(node.config.address, tls=cluster.files(name), token=token, timeout_s=10.0)


def audited(cluster: BareCluster, **fields: str) -> list[AuditEntry]:
    entries = AuditTable(cluster.members[0].config.log.uri).read(AuditQuery())
    return [each for each in entries if all(getattr(each, name) == value for name, value in fields.items())]


KNOWN = ("/lake/known0", "/lake/known1")


@pytest.fixture(scope="module")
def known_jobs(cluster: BareCluster, nodes: tuple[BareNode, BareNode]) -> None:
    """A job of acme on each of two tables; whichever tests a worker runs, they have it."""
    with connect(cluster, nodes[0], "ana") as editor:
        for number, table in enumerate(KNOWN):
            editor.register(table, "j", target=f"/kept/known{number}", key=["id"], account="acme")


@pytest.mark.usefixtures("known_jobs")
def test_roles_hold_at_every_node(cluster: BareCluster, nodes: tuple[BareNode, BareNode]) -> None:
    for number, node in enumerate(nodes):
        with connect(cluster, node, "ana") as editor, connect(cluster, node, "eve") as viewer:
            with pytest.raises(NotAuthorized, match="needs the role editor"):
                viewer.register(f"/lake/new{number}", "j", target=f"/kept/x{number}", key=["id"], account="acme")
            assert editor.register(
                f"/lake/new{number}", "j", target=f"/kept/x{number}", key=["id"], account="acme"
            ).created
            assert f"/lake/new{number}" in {job.table for job in viewer.jobs()}
            assert {job.account for job in viewer.jobs()} == {"acme"}  # those of others are there, and not seen
            with pytest.raises(TableNotFound):
                viewer.status("/lake/0", "copy", account="default")
            with pytest.raises(NotAuthorized, match="'system' alone"):
                editor.cluster()
        with connect(cluster, node, "root") as root:
            assert len(root.jobs()) == SHARDS + len(KNOWN) + number + 1
            assert len(root.cluster().nodes) == 2


def test_an_account_has_jobs_below_its_roots_alone_whoever_registers_them(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode]
) -> None:
    for node in nodes:
        for name in ("ana", "root"):
            for table, target in (
                ("/lakeb/t", "/kept/z"),
                ("/lake/../etc/t", "/kept/z"),
                ("/lake/z", "/keptb/z"),
            ):
                with connect(cluster, node, name) as client, pytest.raises(InvalidRequest) as refused:
                    client.register(table, "z", target=target, key=["id"], account="acme")
                assert refused.value.code is ErrorCode.OUTSIDE_ROOTS
                assert refused.value.remedy == "Choose a place below /lake or /kept"
    with connect(cluster, nodes[0], "ana") as ana:
        assert [job.name for job in ana.jobs() if job.name == "z"] == []


def test_who_is_not_known_may_call_nothing(cluster: BareCluster, nodes: tuple[BareNode, BareNode]) -> None:
    """A certificate of the authority lets in, and says nothing else; nor does what it says of others."""
    said = json.dumps({"names": ["root"], "peer": "ipv4:9.9.9.9:1"})
    for node in nodes:
        with connect(cluster, node, "client") as stranger, pytest.raises(NotAuthenticated):
            stranger.jobs()
        for metadata in (((CALLER_KEY, said),), ((FORWARDED_KEY, said),), ((CALLER_KEY, said), (FORWARDED_KEY, "1"))):
            assert (
                call(cluster, node, "client", "GetCluster", GET_CLUSTER, *metadata) is grpc.StatusCode.UNAUTHENTICATED
            )


def call(
    cluster: BareCluster, node: BareNode, name: str, method: str, request: Message, *metadata: tuple[str, str]
) -> grpc.StatusCode:
    """How a call of `Admin` ends that comes with this certificate and says this."""
    files = cluster.files(name).read()
    credentials = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
    with grpc.secure_channel(node.config.address, credentials) as channel:
        begin = channel.unary_stream(f"/iscp.wire.v1.Admin/{method}")
        try:
            list(begin(request.SerializeToString(), metadata=metadata, timeout=10))
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_revoked_token_is_refused_at_every_node_within_seconds(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode]
) -> None:
    owner, other = nodes
    with connect(cluster, other, "root") as root:
        secret, record = root.access.create_token("editor", ttl_s=60, account="acme", note="to be revoked")
    clients = [connect(cluster, node, "client", secret) for node in nodes]
    for client in clients:
        until("the token is known", lambda client=client: answers(client))  # type: ignore[misc]
    with connect(cluster, owner, "root") as root:
        assert root.access.revoke_token(record.token_id, account="acme")
    revoked_s = time.monotonic()
    for client in clients:
        until("the token is refused", lambda client=client: not answers(client), look_s=0.05)  # type: ignore[misc]
        assert time.monotonic() - revoked_s <= min(REVOKED_WITHIN_S, TOKENS_STALE_MAX_S)
        client.close()
    (made,) = audited_soon(cluster, 1, method="/iscp.wire.v1.Access/CreateToken")
    assert (made.caller_account, made.caller, made.account, made.node_id) == ("system", "root", "acme", other.name)
    assert secret not in str(made)
    assert json.loads(made.what)["token_id"] == record.token_id


def answers(client: Client) -> bool:
    try:
        client.jobs()
    except NotAuthenticated:
        return False
    return True


def audited_soon(cluster: BareCluster, count: int, **fields: str) -> list[AuditEntry]:
    until("it is audited", lambda: len(audited(cluster, **fields)) >= count, timeout_s=20.0)
    found = audited(cluster, **fields)
    assert len(found) == count
    return found


@pytest.mark.usefixtures("known_jobs")
@pytest.mark.slow
def test_the_audit_says_once_who_did_what_and_where_it_came_in(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode]
) -> None:
    for table, node in zip(KNOWN, nodes, strict=True):
        with connect(cluster, node, "ana") as ana:
            ana.pause(table, "j", account="acme")
    with connect(cluster, nodes[1], "eve") as eve, pytest.raises(IscpError):
        eve.pause(KNOWN[0], "j", account="acme")
    entries = audited_soon(cluster, 3, method="/iscp.wire.v1.Admin/Pause")
    assert [(each.caller, each.node_id, each.result) for each in reversed(entries)] == [
        ("ana", nodes[0].name, "OK"),
        ("ana", nodes[1].name, "OK"),
        ("eve", nodes[1].name, "PERMISSION_DENIED"),
    ]
    assert all(each.peer.startswith("ipv4:127.0.0.1:") and each.known_by == "certificate" for each in entries)
    with connect(cluster, nodes[1], "root") as root:
        assert len(root.access.audit(account="acme", method="Pause")) == 3
        assert root.access.audit(account="nobody") == []


def test_by_a_token_of_a_provider_somebody_is_known_at_every_node(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode], provider: OidcProvider
) -> None:
    """The node that passes a call on and the owner decide it alike, and neither by the certificate besides it."""
    groups = "x" * (TOKEN_CHARS_MAX * 3 // 5)  # as long as those are that name many groups
    for number, node in enumerate(nodes):
        with connect(cluster, node, "root", provider.token(sub="li", groups=groups)) as editor:
            assert editor.register(
                f"/lake/li{number}", "j", target=f"/kept/li{number}", key=["id"], account="acme"
            ).created
            assert {job.account for job in editor.jobs()} == {"acme"}
            with pytest.raises(NotAuthorized, match="'system' alone"):
                editor.cluster()
        for refused in (provider.token(aud="x"), provider.token(account="system")):
            with connect(cluster, node, "root", refused) as nobody, pytest.raises(NotAuthenticated):
                nobody.jobs()
    entries = audited_soon(cluster, 2, caller="oidc:li")
    assert {(each.node_id, each.known_by, each.account, each.result) for each in entries} == {
        (node.name, "oidc", "acme", "OK") for node in nodes
    }
    assert all(each.peer.startswith("ipv4:127.0.0.1:") for each in entries)


@pytest.mark.usefixtures("known_jobs")
def test_what_a_node_of_an_earlier_version_passes_on_says_nothing_of_the_caller(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode]
) -> None:
    """It passes on whatever a client sends. By a token it is known who calls, and nobody has audited it."""
    owner, other = nodes
    passed_on = (FORWARDED_KEY, "1")
    forged = CALLER_KEY, json.dumps({"names": ["root"], "peer": "ipv4:9.9.9.9:1"})
    assert (
        call(cluster, owner, other.name, "GetCluster", GET_CLUSTER, forged, passed_on)
        is grpc.StatusCode.UNAUTHENTICATED
    )
    assert call(cluster, owner, other.name, "GetCluster", GET_CLUSTER, passed_on) is grpc.StatusCode.UNAUTHENTICATED
    with connect(cluster, owner, "root") as root:
        secret, record = root.access.create_token("editor", ttl_s=60, account="acme")
    with connect(cluster, owner, "client", secret) as client:
        until("the token is known", lambda: answers(client))
    token = "authorization", f"Bearer {secret}"
    job = admin_pb2.JobName(table=KNOWN[0], name="j", account="acme")
    resume = admin_pb2.ChangeJobRequest(job=job)
    assert call(cluster, owner, other.name, "Resume", resume, token, forged, passed_on) is grpc.StatusCode.OK
    (entry,) = audited_soon(cluster, 1, method="/iscp.wire.v1.Admin/Resume")
    assert (entry.caller, entry.known_by, entry.node_id) == (record.token_id, "token", owner.name)
    assert entry.peer.startswith("ipv4:127.0.0.1:")


def test_of_a_table_that_accounts_share_each_sees_its_own(
    cluster: BareCluster, nodes: tuple[BareNode, BareNode]
) -> None:
    shared, theirs = "/lake/shared", "/lake/theirs"
    with connect(cluster, nodes[0], "root") as root:
        for table in (shared, theirs):
            root.register(table, "x", target=f"/x{table}", key=["id"], account="other")
    with connect(cluster, nodes[0], "ana") as ana:
        ana.register(shared, "y", target="/kept/y", key=["id"], account="acme")
    for node in nodes:
        with connect(cluster, node, "oz") as oz:
            assert [job.name for job in oz.jobs(table=shared)] == ["y"]
            assert {each.table for each in oz.operator.placement(shared)} == {shared}
            until("it is placed", lambda oz=oz: shared in {each.table for each in oz.operator.events()})  # type: ignore[misc]
            seen = {each.table for each in oz.operator.placement()}
            seen |= {each.table for each in oz.operator.events()}
            assert shared in seen
            assert not seen & {theirs, *(f"/lake/{number}" for number in range(SHARDS))}
            assert oz.operator.job_logs(shared, "y", account="acme")
            for read in (oz.operator.job_logs, oz.status):
                with pytest.raises(TableNotFound, match="/lake/shared has no jobs"):
                    read(shared, "x", account="other")
            with pytest.raises(TableNotFound, match="/lake/theirs has no jobs"):
                oz.operator.placement(theirs)
            with pytest.raises(TableNotFound, match="/lake/theirs has no jobs"):
                oz.operator.events(table=theirs)
