"""Who may call what, over real gRPC: every method and role, another account's things, tokens that are not good."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import CALLER_KEY, FORWARDED_KEY, from_rpc
from iscp.model.access.service_table import RULES, Foreign, Role, Scope
from iscp.model.values.errors import ErrorCode, IscpError, JobNotFound, NotAuthenticated, NotAuthorized, TableNotFound
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.access.call_audit import METHODS
from iscp.server.admin.admin_server import AdminServer, BuildServer, OperatorServer, SearchServer, Service
from iscp.system.threads import SystemClock
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, operator_pb2
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.job_feeds import feed_server
from tests.fakes.operators import FakeOperator
from tests.fakes.searches import FakeSearches
from tests.fakes.shown_builds import FakeBuilds

REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


class Guarded:
    """A node's server whose callers have to be known."""

    def __init__(self) -> None:
        self.admin, self.access = FakeAdmin(), Access(SystemClock())
        services: list[Service] = [
            OperatorServer(FakeOperator()),
            BuildServer(FakeBuilds()),
            SearchServer(FakeSearches()),
            feed_server(self.admin),
            AccessServer(self.access.service),
        ]
        self.server = AdminServer(self.admin, "127.0.0.1:0", services=services, interceptors=[self.access.interceptor])
        self.server.start()
        self.server.ready()
        self.channel = grpc.insecure_channel(self.server.address)

    def client(self, role: Role, account: str = "acme") -> Client:
        return Client(self.server.address, token=self.access.token(role, account), timeout_s=5.0)

    def call(self, method: str, request: Message, *metadata: tuple[str, str]) -> IscpError | list[Any]:
        """What it answers, or its error as a client sees it."""
        read = GetMessageClass(METHODS[method].output_type).FromString
        begin = self.channel.unary_stream(method, type(request).SerializeToString, read)
        try:
            return list(begin(request, metadata=metadata, timeout=10))
        except grpc.RpcError as error:
            return from_rpc(error, "node", changes=False)

    def stop(self) -> None:
        self.channel.close()
        self.server.stop(0.0)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    made = Guarded()
    yield made
    made.stop()


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def request_of(method: str, account: str) -> Message:
    """One that names the account wherever it can, and a table."""
    request: Message = GetMessageClass(METHODS[method].input_type)()
    job = admin_pb2.JobName(table="/lake/t", name="j", account=account)
    match request:
        case admin_pb2.RegisterRequest():
            request.registrations.add(job=job, spec_json="{}")
        case admin_pb2.ChangeJobsRequest():
            request.changes.add(job=job, verb=admin_pb2.CHANGE_VERB_PAUSE)
        case admin_pb2.UpdateJobsRequest():
            request.updates.add(job=job, changes_json="{}")
        case admin_pb2.ListJobsRequest() | admin_pb2.CountJobsRequest():
            request.filter.account = account
        case operator_pb2.GetLogsRequest():
            request.table, request.job_name, request.account = "/lake/t", "j", account
        case access_pb2.CreateTokenRequest():
            request.account, request.role, request.ttl_s = account, access_pb2.ROLE_VIEWER, 60
        case access_pb2.RevokeTokenRequest():
            request.account, request.token_id = account, "0123456789ab"
        case _:
            fields = request.DESCRIPTOR.fields_by_name
            if "job" in fields:
                request.job.CopyFrom(job)  # type: ignore[attr-defined]
            if "account" in fields:
                request.account = account  # type: ignore[attr-defined]
            if "table" in fields and "job" not in fields and "account" not in fields:
                request.table = "/lake/t"  # type: ignore[attr-defined]
    return request


@pytest.mark.parametrize("role", Role)
def test_each_role_may_call_what_it_covers_and_nothing_else(guarded: Guarded, role: Role) -> None:
    own, everywhere = guarded.access.token(role), guarded.access.token(role, "system")
    for method in METHODS:
        rule = RULES[method]
        for token, wide in ((own, False), (everywhere, True)):
            answer = guarded.call(method, request_of(method, "acme"), bearer(token))
            refused = isinstance(answer, NotAuthorized)
            allowed = role.covers(rule.role) and (wide or rule.scope is not Scope.CLUSTER)
            assert refused is not allowed, (method, token is own, answer)


def test_who_is_not_known_may_call_nothing(guarded: Guarded) -> None:
    token = guarded.access.token(Role.ADMIN, "system")
    expired, revoked = (guarded.access.token(Role.ADMIN, "system") for _ in range(2))
    guarded.access.tokens.expire(expired[5:17])
    guarded.access.tokens.revoke(revoked[5:17], "")
    forged = token[:-4] + ("0000" if token[-4:] != "0000" else "1111")
    shown = [
        (),
        *(
            (bearer(each),)
            for each in (expired, revoked, forged, "garbage", "iscp_" + "0" * 64, "", "é".encode().hex())
        ),
        (("authorization", token),),
        (("authorization", f"Basic {token}"),),
        (bearer(token), bearer(token)),
        (("iscp-token", token),),
    ]
    for method in METHODS:
        for metadata in shown:
            answer = guarded.call(method, request_of(method, "acme"), *metadata)
            assert isinstance(answer, NotAuthenticated), (method, metadata, answer)
    assert guarded.admin.asked == {}
    assert guarded.access.audit.entries == []  # nobody fills it who is not known
    answers = {
        str(guarded.call("/iscp.wire.v1.Admin/GetCluster", admin_pb2.GetClusterRequest(), bearer(each)))
        for each in (expired, revoked, forged, "garbage")
    }
    assert len(answers) == 1  # which of them it is, is not said
    assert token not in str(answers)


def test_nothing_of_another_account_can_be_seen_or_named(guarded: Guarded) -> None:
    """The answers are the same, whether the other account has such a job or not, on a table that both have jobs on."""
    with guarded.client(Role.EDITOR, "other") as other, guarded.client(Role.EDITOR) as acme:
        other.register("/lake/t", "j", target="/x", account="other")
        acme.register("/lake/t", "k", target="/y", account="acme")
        assert [job.name for job in acme.jobs(table="/lake/t")] == ["k"]
    admin = bearer(guarded.access.token(Role.ADMIN))
    for method, rule in RULES.items():
        if rule.scope is not Scope.ACCOUNT:
            continue
        there, nowhere = (guarded.call(method, request_of(method, each), admin) for each in ("other", "nobody"))
        assert str(there) == str(nowhere), method
        match rule.foreign:
            case Foreign.REFUSED:
                assert type(there) is NotAuthorized, method
            case Foreign.MISSING:
                assert isinstance(there, TableNotFound), method
                if hasattr(request_of(method, "other"), "job"):
                    assert there.message == "/lake/t has no jobs"
            case Foreign.NO_INDEX:
                assert isinstance(there, TableNotFound), method
            case _:
                assert isinstance(there, list), method
                assert sum(each.ByteSize() for each in there) == 0, method
    with guarded.client(Role.ADMIN, "other") as other:
        assert [job.name for job in other.jobs()] == ["j"]  # nothing was changed


def test_an_account_that_is_left_out_is_the_callers_own(guarded: Guarded) -> None:
    with guarded.client(Role.EDITOR) as acme, guarded.client(Role.EDITOR, "other") as other:
        acme.register("/lake/t", "a", target="/a", account="acme")
        other.register("/lake/t", "b", target="/b", account="other")
        assert [job.name for job in acme.jobs()] == ["a"]
        assert [job.name for job in other.jobs()] == ["b"]
        assert acme.jobs(account="other") == []
        assert acme.count(account="other") == 0
        with pytest.raises(TableNotFound, match="has no jobs"):
            acme.jobs(account="other", table="/lake/t")
    token = bearer(guarded.access.token(Role.VIEWER))
    request = admin_pb2.GetJobRequest(job=admin_pb2.JobName(table="/lake/t", name="a"))
    found = guarded.call("/iscp.wire.v1.Admin/GetJob", request, token)
    assert isinstance(found, list)
    assert found[0].account == "acme"
    with guarded.client(Role.VIEWER, "system") as system:
        assert [job.name for job in system.jobs()] == ["a", "b"]


def test_one_foreign_job_among_many_refuses_all(guarded: Guarded) -> None:
    with guarded.client(Role.EDITOR) as acme:
        acme.register("/lake/t", "a", target="/a", account="acme")
    mixed = admin_pb2.ChangeJobsRequest()
    for account in ("acme", "other"):
        mixed.changes.add(
            job=admin_pb2.JobName(table="/lake/t", name="a", account=account), verb=admin_pb2.CHANGE_VERB_PAUSE
        )
    answer = guarded.call("/iscp.wire.v1.Admin/ChangeJobs", mixed, bearer(guarded.access.token(Role.EDITOR)))
    assert isinstance(answer, TableNotFound)
    assert "change" not in guarded.admin.asked


def test_whole_logs_and_everybodys_builds_are_for_the_cluster_wide_account(guarded: Guarded) -> None:
    logs = operator_pb2.GetLogsRequest(node_id="n0")
    builds = builds_pb2.AbortBuildRequest(job=admin_pb2.JobName(table="/lake/t"))
    for method, request in (("Operator/GetLogs", logs), ("Builds/AbortBuild", builds)):
        own, wide = (bearer(guarded.access.token(Role.ADMIN, each)) for each in ("acme", "system"))
        refused = guarded.call(f"/iscp.wire.v1.{method}", request, own)
        assert isinstance(refused, NotAuthorized)
        assert "'system' alone" in refused.message
        assert not isinstance(guarded.call(f"/iscp.wire.v1.{method}", request, wide), NotAuthorized)


def test_what_a_node_may_say_of_a_caller_nobody_else_can(guarded: Guarded) -> None:
    """Headers that nodes send each other mean nothing without a node's certificate."""
    said = json.dumps({"names": ["root"], "peer": "ipv4:1.2.3.4:5"})
    injected = ((CALLER_KEY, said), (FORWARDED_KEY, said), ("iscp-account", "system"), ("x-forwarded-for", "1.2.3.4"))
    request = admin_pb2.GetClusterRequest()
    assert isinstance(guarded.call("/iscp.wire.v1.Admin/GetCluster", request, *injected), NotAuthenticated)
    editor = bearer(guarded.access.token(Role.EDITOR))
    refused = guarded.call("/iscp.wire.v1.Admin/GetCluster", request, editor, *injected)
    assert type(refused) is NotAuthorized
    unregister = request_of("/iscp.wire.v1.Admin/Unregister", "acme")
    guarded.call("/iscp.wire.v1.Admin/Unregister", unregister, editor, *injected)
    (entry,) = guarded.access.audit.entries
    assert entry.peer.startswith("ipv4:127.0.0.1:")


def test_health_is_open_and_reflection_is_for_who_is_known(guarded: Guarded) -> None:
    check = guarded.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=5)
    reflect = guarded.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    listing = b"\x3a\x00"  # list_services
    assert b"iscp.wire.v1.Access" in b"".join(
        reflect(iter((listing,)), metadata=(bearer(guarded.access.token(Role.VIEWER)),), timeout=5)
    )
    with pytest.raises(grpc.RpcError) as refused:
        list(reflect(iter((listing,)), timeout=5))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_service_that_is_in_no_table_is_refused(guarded: Guarded) -> None:
    """Denied by default: whoever adds a method and forgets it has one that nobody can call."""

    class Forgotten:
        names = ("x.Forgotten",)
        calls_max = 1

        def add_to(self, server: grpc.Server) -> None:
            method = grpc.unary_unary_rpc_method_handler(
                lambda request, context: request, admin_pb2.NotifyRequest.FromString, lambda answer: b"secret"
            )
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Forgotten", {"Read": method}),))

        def close(self) -> None: ...

    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[Forgotten()], interceptors=[guarded.access.interceptor])
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        for metadata in ((), (bearer(guarded.access.token(Role.ADMIN, "system")),)):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary("/x.Forgotten/Read")(b"", metadata=metadata, timeout=5)
            assert refused.value.code() in REFUSED
    server.stop(0.0)


def test_tokens_are_made_listed_and_revoked_by_admins_of_their_account(guarded: Guarded) -> None:
    with guarded.client(Role.ADMIN) as acme:
        secret, made = acme.access.create_token("editor", ttl_s=60, note="nightly")
        assert (made.account, made.role, made.note) == ("acme", Role.EDITOR, "nightly")
        assert made.token_id == secret[5:17]
        listed = acme.access.tokens()
        assert {each.account for each in listed} == {"acme"}
        assert made.token_id in {each.token_id for each in listed}
        assert all(each.digest == "" for each in listed)
        with pytest.raises(NotAuthorized):
            acme.access.create_token("viewer", ttl_s=60, account="system")
        foreign = guarded.access.token(Role.VIEWER, "other")
        assert not acme.access.revoke_token(foreign[5:17])
        assert not acme.access.revoke_token(foreign[5:17], account="other")
    with Client(guarded.server.address, token=secret, timeout_s=5.0) as nightly:
        assert nightly.jobs() == []
        with guarded.client(Role.ADMIN) as acme:
            assert acme.access.revoke_token(made.token_id)
            assert not acme.access.revoke_token(made.token_id)
        with pytest.raises(NotAuthenticated, match="not known, has ended or was revoked"):
            nightly.jobs()


def test_the_audit_says_who_did_what_and_how_it_ended(guarded: Guarded) -> None:
    with guarded.client(Role.EDITOR) as acme:
        acme.register("s3://key:hunter2@lake/t", "j", target="/x", account="acme", where="pin = 'hunter2'")
        with pytest.raises(JobNotFound):
            acme.pause("s3://key:hunter2@lake/t", "none", account="acme")
        with pytest.raises(TableNotFound):
            acme.pause("/lake/t", "j", account="other")
    with guarded.client(Role.VIEWER) as viewer, pytest.raises(NotAuthorized):
        viewer.pause("/lake/t", "j", account="acme")
    with guarded.client(Role.ADMIN) as admin:
        admin.access.create_token("viewer", ttl_s=60)
    entries = guarded.access.audit.entries
    shown = [(each.method.rpartition("/")[2], each.caller_role, each.result, each.error_code) for each in entries]
    assert shown == [
        ("Register", "editor", "OK", 0),
        ("Pause", "editor", "NOT_FOUND", int(ErrorCode.JOB_NOT_FOUND)),
        ("Pause", "editor", "NOT_FOUND", int(ErrorCode.NOT_AUTHORIZED)),
        ("Pause", "viewer", "PERMISSION_DENIED", int(ErrorCode.NOT_AUTHORIZED)),
        ("CreateToken", "admin", "OK", 0),
    ]
    assert {each.account for each in entries} == {"acme"}
    assert "hunter2" not in str(entries)
    registered = entries[0]
    assert json.loads(registered.what)["things"][0] | {"request_id": ""} == {
        "table": "s3://…@lake/t",
        "job": "j",
        "request_id": "",
    }
    assert registered.request_id
    assert registered.known_by == "token"
    assert registered.caller in guarded.access.tokens.kept
    assert json.loads(entries[-1].what)["token_id"] in guarded.access.tokens.kept
    with guarded.client(Role.ADMIN) as admin, guarded.client(Role.ADMIN, "other") as other:
        assert len(admin.access.audit()) == len(entries)
        assert other.access.audit() == []
        assert other.access.audit(account="acme") == []


def test_a_call_of_many_accounts_is_audited_in_each(guarded: Guarded) -> None:
    with guarded.client(Role.EDITOR, "system") as system:
        jobs = admin_pb2.ChangeJobsRequest()
    del system
    for number in range(30):
        job = admin_pb2.JobName(table="/lake/t", name=f"j{number}", account="acme" if number else "")
        jobs.changes.add(job=job, verb=admin_pb2.CHANGE_VERB_PAUSE, request_id=f"r{number}")
    guarded.call("/iscp.wire.v1.Admin/ChangeJobs", jobs, bearer(guarded.access.token(Role.EDITOR, "system")))
    by_account = {each.account: each for each in guarded.access.audit.entries}
    assert set(by_account) == {"default", "acme"}
    assert (by_account["default"].request_id, by_account["acme"].request_id) == ("r0", "r1")
    said = json.loads(by_account["acme"].what)
    assert (len(said["things"]), said["count"]) == (20, 29)
    assert said["things"][0] == {"table": "/lake/t", "job": "j1", "verb": "CHANGE_VERB_PAUSE", "request_id": "r1"}


def test_who_cannot_be_checked_is_not_let_in(guarded: Guarded) -> None:
    token = guarded.access.token(Role.ADMIN)
    guarded.access.tokens.age_s = 4.1
    answer = guarded.call("/iscp.wire.v1.Admin/ListJobs", admin_pb2.ListJobsRequest(), bearer(token))
    assert "authorization cannot be checked" in str(answer)
    guarded.access.tokens.age_s = 3.9
    assert guarded.call("/iscp.wire.v1.Admin/ListJobs", admin_pb2.ListJobsRequest(), bearer(token)) == []


def test_a_wait_ends_with_the_token_of_who_waits(guarded: Guarded) -> None:
    with guarded.client(Role.EDITOR) as acme:
        acme.register("/lake/t", "j", target="/x", account="acme")
    token = guarded.access.token(Role.VIEWER)
    guarded.admin.before = lambda verb: verb == "wait" and guarded.access.tokens.revoke(token[5:17], "")
    job = admin_pb2.JobName(table="/lake/t", name="j", account="acme")
    wait = admin_pb2.WaitJobRequest(job=job, version=99, timeout_s=60.0)
    began_s = time.monotonic()
    assert isinstance(guarded.call("/iscp.wire.v1.Admin/WaitJob", wait, bearer(token)), IscpError)
    assert time.monotonic() - began_s < 5.0  # half of the call's deadline
    assert guarded.admin.waiting == 0
