"""A call that has been made is in the audit, whatever of it cannot be read.

What the audit keeps of requests: nothing that may be secret, and little, whatever was sent.

What a call shows of who makes it, and that only nodes are believed what they say of others.

Whose accounts requests name.

What a node says to another one of a caller whose call it passes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from cryptography import x509

from iscp.client.channel.grpc_calls import CALLER_KEY, DETAIL_KEY, FORWARDED_KEY
from iscp.model.access.service_table import RULES, Credentials, KnownBy, Principal, Role, Scope
from iscp.model.values.errors import ErrorCode, NotAuthenticated
from iscp.server.access.call_audit import (
    ACCOUNTS_MAX,
    METHODS,
    TEXT_CHARS_MAX,
    WHAT_CHARS_MAX,
    CallAudit,
    Evidence,
    GuardedContext,
    audited_by_account,
    audited_of_caller,
    audited_text,
    audited_uri,
    concerns_everybody,
    evidence_of,
    fill_accounts,
    named_count,
    named_things,
    said_of_caller,
    statement,
)
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, operator_pb2
from tests.fakes.access import FakeAudit
from tests.fakes.certificates import certificate_of

PAUSE = "/iscp.wire.v1.Admin/Pause"


@dataclass
class Ended:
    """gRPC's context of a call that has ended with a detail that another node has sent."""

    detail: bytes

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.NOT_FOUND

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((DETAIL_KEY, self.detail),)


def ended(detail: bytes, *, everywhere: bool = False) -> tuple[GuardedContext, FakeAudit]:
    principal = Principal("acme", Role.EDITOR, "0123456789ab", KnownBy.TOKEN, everywhere)
    context: Any = Ended(detail)
    return GuardedContext(context, principal, "ipv4:1.1.1.1:1", lambda principal: True), FakeAudit()


def test_a_call_that_cannot_be_read_has_an_entry_without_it(caplog: pytest.LogCaptureFixture) -> None:
    context, audit = ended(b"\xff")
    request = admin_pb2.ChangeJobRequest(job=admin_pb2.JobName(table="/t", name="j"))
    CallAudit(audit, PAUSE, context, request).end(1.0, "n0", OSError())
    (entry,) = audit.entries
    assert (entry.account, entry.caller, entry.method) == ("acme", "0123456789ab", PAUSE)
    assert (entry.what, entry.result, entry.error_code) == ("{}", "UNKNOWN", int(ErrorCode.INTERNAL))
    assert "audit.unreadable" in caplog.messages


@pytest.mark.parametrize(("everywhere", "accounts"), [(False, ["acme"]), (True, ["a", "b"])])
def test_nobody_writes_into_the_audit_of_an_account_without_acting_for_all(
    everywhere: bool, accounts: list[str]
) -> None:
    context, audit = ended(admin_pb2.ErrorDetail(code=int(ErrorCode.NOT_AUTHORIZED)).SerializeToString())
    context.principal = Principal("acme", Role.VIEWER, "x", KnownBy.TOKEN, everywhere)
    request = admin_pb2.ChangeJobsRequest()
    for account in ("a", "b"):
        request.changes.add(job=admin_pb2.JobName(table="/t", name="j", account=account))
    CallAudit(audit, PAUSE, context, request).end(1.0, "n0", OSError())
    assert [entry.account for entry in audit.entries] == accounts
    assert {entry.error_code for entry in audit.entries} == {int(ErrorCode.NOT_AUTHORIZED)}


TOKEN = "iscp_" + "0123456789abcdef" * 4


def job(account: str = "", table: str = "/t") -> admin_pb2.JobName:
    return admin_pb2.JobName(table=table, name="j", account=account)


def changes(*accounts: str, table: str = "/t") -> admin_pb2.ChangeJobsRequest:
    request = admin_pb2.ChangeJobsRequest()
    for number, account in enumerate(accounts):
        request.changes.add(job=job(account, table), request_id=f"r{number}")
    return request


def first(said: tuple[str, str]) -> Any:
    return json.loads(said[0])["things"][0]


def test_the_audit_names_things_and_keeps_no_spec() -> None:
    request = admin_pb2.RegisterRequest()
    request.registrations.add(job=job("a", "s3://k:secret@b/t"), spec_json='{"p": "secret"}', request_id="r1")
    request.registrations.add(job=job(), spec_json="secret", request_id="r2")
    found = audited_by_account(request, "own")
    assert set(found) == {"a", "default"}
    assert "secret" not in str(found)
    what, request_id = found["a"]
    assert request_id == "r1"
    assert json.loads(what) == {"things": [{"table": "s3://…@b/t", "job": "j", "request_id": "r1"}]}


def test_what_is_done_is_named_too() -> None:
    node = operator_pb2.ChangeNodeRequest(verb=operator_pb2.NODE_VERB_DRAIN, node_id="n1")
    assert audited_by_account(node, "own") == {"": ('{"things": [{"verb": "NODE_VERB_DRAIN", "node_id": "n1"}]}', "")}
    assert audited_of_caller(node, "own") == audited_by_account(node, "own")[""]
    token = access_pb2.CreateTokenRequest(role=access_pb2.ROLE_ADMIN, ttl_s=5)
    assert audited_by_account(token, "own") == {"own": ('{"things": [{"role": "ROLE_ADMIN", "ttl_s": 5.0}]}', "")}
    resync = admin_pb2.ResyncRequest(job=job("a"), table="/to", spec_json="secret", request_id="r")
    things = {"table": "/t", "job": "j", "to_table": "/to", "request_id": "r"}
    assert audited_by_account(resync, "own") == {"a": (json.dumps({"things": [things]}), "r")}
    repair = admin_pb2.VerifyJobRequest(job=job("a"), repair=True)
    assert '"repair": true' in audited_by_account(repair, "own")["a"][0]


def test_of_one_account_all_is_in_one_entry_which_names_the_others() -> None:
    what, request_id = audited_of_caller(changes("acme", "", *(f"a{number}" for number in range(5_000))), "acme")
    said = json.loads(what)
    assert (request_id, said["count"], len(said["things"])) == ("r0", 5_002, 20)
    assert said["things"][0] == {"table": "/t", "job": "j", "request_id": "r0"}
    assert [thing.get("account") for thing in said["things"][:4]] == [None, None, "a0", "a1"]


def test_accounts_beyond_a_number_share_an_entry_of_none() -> None:
    found = audited_by_account(changes("a0", *(f"a{number}" for number in range(ACCOUNTS_MAX + 30))), "own")
    assert set(found) == {f"a{number}" for number in range(ACCOUNTS_MAX)} | {""}
    assert len(json.loads(found["a0"][0])["things"]) == 2
    others = json.loads(found[""][0])
    assert (others["accounts"], others["count"]) == (30, 30)
    assert others["things"][0]["account"] == f"a{ACCOUNTS_MAX}"


def test_texts_are_bounded_and_so_is_what_is_said_of_all_things() -> None:
    long = "x" * 1_000_000
    resync = admin_pb2.ResyncRequest(
        job=admin_pb2.JobName(table=long, name=long, account=long), table=f"//{long}", request_id=long
    )
    ((account, (what, request_id)),) = audited_by_account(resync, "own").items()
    assert len(account) == len(request_id) == TEXT_CHARS_MAX
    assert len(what) < 5 * TEXT_CHARS_MAX
    note = access_pb2.CreateTokenRequest(note=long)
    assert len(first(audited_of_caller(note, "own"))["note"]) == TEXT_CHARS_MAX
    many = json.loads(audited_of_caller(changes(*["a"] * 50, table=long), "own")[0])
    assert 1 < len(many["things"]) < 20
    assert many["count"] == 50
    assert len(json.dumps(many, ensure_ascii=False)) < WHAT_CHARS_MAX + 100


def test_of_a_whole_token_its_id_alone_is_kept() -> None:
    for given in (TOKEN, TOKEN[5:], TOKEN[5:17], TOKEN[:-1]):
        what = audited_of_caller(access_pb2.RevokeTokenRequest(token_id=given), "own")
        assert first(what) == {"token_id": "0123456789ab"}
    for given in ("0123456789a", f"{TOKEN} ", "hunter2", TOKEN.upper()):
        assert first(audited_of_caller(access_pb2.RevokeTokenRequest(token_id=given), "own")) == {}
    note = access_pb2.CreateTokenRequest(note=f"instead of {TOKEN}, {TOKEN[:30]}")
    kept = "instead of iscp_0123456789ab…, iscp_0123456789ab…"
    assert first(audited_of_caller(note, "own"))["note"] == kept
    assert audited_text(f"{TOKEN[5:]} {TOKEN}" * 100).count(TOKEN) == 0


def test_a_verb_that_is_not_known_is_kept_as_its_number() -> None:
    node = operator_pb2.ChangeNodeRequest(verb=77, node_id="n1")  # type: ignore[arg-type]
    assert first(audited_of_caller(node, "own")) == {"verb": 77, "node_id": "n1"}
    token = access_pb2.CreateTokenRequest(ttl_s=float("inf"))
    assert first(audited_of_caller(token, "own")) == {"ttl_s": "inf"}


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("/lake/t", "/lake/t"),
        ("/lake/a@b", "/lake/a@b"),
        ("s3://bucket/t", "s3://bucket/t"),
        ("s3://u:SECRET@host/x", "s3://…@host/x"),
        ("s3://u:SEC@RET@host/x", "s3://…@host/x"),
        ("s3://u:SEC/RET@host/x", "s3://…@host/x"),
        ("s3://u:SEC RET@host/x", "s3://…@host/x"),
        ("s3://u:SEC?RET@host/x", "s3://…"),
        ("s3://u:SEC#RET@host/x", "s3://…"),
        ("https://host/x?sig=SECRET", "https://host/x?…"),
        ("https://host/x#SECRET", "https://host/x#…"),
        ("https://host/x?sig=SECRET@RET", "https://…"),
        ("https://u:SECRET@host/x?sig=SECRET", "https://…@host/x?…"),
        ("https:x?to=//u:SECRET@host", "https:x?…"),
    ],
)
def test_nothing_secret_is_kept_of_a_uri(uri: str, kept: str) -> None:
    assert audited_uri(uri) == kept


def test_long_uris_take_no_longer_than_they_are() -> None:
    """Of user and password none is left where the text is cut."""
    assert "SECRET" not in audited_uri("s3://u:SECRET" + "x" * 1_000_000 + "@host/x")
    assert audited_uri("//" * 1_000_000).startswith("//")


NODE = "node.lake.iscp"
SAID = statement(["ana"], "ipv4:9.9.9.9:1")
BY_GATEWAY, BY_NODE = (CALLER_KEY, SAID), (FORWARDED_KEY, SAID)


class Call:
    """Of gRPC's context, what says who calls."""

    def __init__(
        self, metadata: tuple[tuple[str, str], ...] = (), names: tuple[str, ...] = (), common: str = ""
    ) -> None:
        self._metadata = metadata
        shown = [x509.DNSName(name) for name in names]
        self._said = {"x509_pem_cert": [certificate_of(common, *shown)]} if names or common else {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._said

    def peer(self) -> str:
        return "ipv4:1.1.1.1:1"


def read(*metadata: tuple[str, str], names: tuple[str, ...] = (), common: str = "", node_name: str = NODE) -> Evidence:
    call: Any = Call(metadata, names, common)
    return evidence_of(call, node_name)


def test_a_certificate_shows_all_of_its_names() -> None:
    assert read(names=("a", "b"), common="c").credentials.names == {"a", "b", "c"}
    assert read() == Evidence(Credentials(), "ipv4:1.1.1.1:1")


def test_a_node_is_believed_whose_call_it_passes_on() -> None:
    found = read(BY_NODE, names=(NODE,), common="n0")
    assert found == Evidence(Credentials("", frozenset({"ana"})), "ipv4:9.9.9.9:1", passed_on=True)
    by_gateway = read(BY_GATEWAY, names=(NODE,))
    assert by_gateway == replace(found, passed_on=False)  # it has come in here
    with_token = read(BY_NODE, ("authorization", "bearer t"), names=(NODE,))
    assert with_token.credentials.token == "t"


@pytest.mark.parametrize("names", [(), ("ana",), ("xnode.lake.iscp",), ("node.other.iscp",)])
def test_nobody_else_is(names: tuple[str, ...]) -> None:
    found = read(BY_GATEWAY, BY_NODE, names=names)
    assert found == Evidence(Credentials("", frozenset(names)), "ipv4:1.1.1.1:1")


def test_a_common_name_makes_nobody_a_node() -> None:
    """Nodes are known by a DNS name; who may sign any subject may not sign that. A gateway says common names too."""
    found = read(BY_GATEWAY, BY_NODE, names=("ana",), common=NODE.upper())
    assert found == Evidence(Credentials("", frozenset({"ana"})), "ipv4:1.1.1.1:1")
    by_gateway = read((CALLER_KEY, statement([NODE, "ana"], "p")), names=(NODE,))
    assert by_gateway.credentials.names == {"ana"}


def test_without_tls_nobody_is_a_node() -> None:
    assert read(BY_GATEWAY, BY_NODE, names=("", "x"), node_name="").peer == "ipv4:1.1.1.1:1"


def test_a_node_that_does_not_say_whose_call_it_passes_on_passes_on_nobodys() -> None:
    """As one of an earlier version, which would be taken for the caller otherwise, and has audited nothing."""
    found = read((FORWARDED_KEY, "1"), ("authorization", "Bearer t"), names=(NODE,), common="n0")
    assert found == Evidence(Credentials("t"), "ipv4:1.1.1.1:1", passed_on=False)
    assert read(names=(NODE,)).credentials.names == {NODE}


def test_what_a_client_says_is_not_believed_of_a_node_that_passes_it_on() -> None:
    """One of an earlier version does that with all that a client sends."""
    found = read(BY_GATEWAY, (FORWARDED_KEY, "1"), names=(NODE,))
    assert found == Evidence(Credentials(), "ipv4:1.1.1.1:1")
    assert read(BY_GATEWAY, (FORWARDED_KEY, statement(["ben"], "p")), names=(NODE,)).credentials.names == {"ben"}


@pytest.mark.parametrize(
    "said",
    ["", "x", "[]", "{}", '{"names": "x"}', '{"names": [1], "peer": ""}', json.dumps({"names": []}), "[" * 9_000],
)
def test_what_a_node_says_has_to_make_sense(said: str) -> None:
    for key in (CALLER_KEY, FORWARDED_KEY):
        with pytest.raises(NotAuthenticated):
            read((key, said), names=(NODE,))
        with pytest.raises(NotAuthenticated):
            read((key, SAID), (key, SAID), names=(NODE,))


@pytest.mark.parametrize("value", ["t", "Basic t", "", "Bearer", "bearert"])
def test_a_token_comes_as_bearer(value: str) -> None:
    with pytest.raises(NotAuthenticated, match="Bearer"):
        read(("authorization", value))


def test_an_empty_token_is_one_that_is_not_good() -> None:
    assert read(("authorization", "Bearer  ")).credentials.token == "-"


def test_all_that_name_an_account_are_found() -> None:
    request = admin_pb2.RegisterRequest()
    for account in ("a", "b", ""):
        request.registrations.add(job=job(account))
    assert [each.account for each in named_things(request)] == ["a", "b", ""]
    assert [each.account for each in named_things(admin_pb2.ListJobsRequest())] == [""]
    assert [each.table for each in named_things(admin_pb2.NotifyRequest(table="/t"))] == ["/t"]
    assert not list(named_things(operator_pb2.RebalanceRequest()))


def test_what_is_left_out_becomes_the_callers_own() -> None:
    request = admin_pb2.RegisterRequest()
    for account in ("b", ""):
        request.registrations.add(job=job(account))
    assert fill_accounts(request, "acme")
    assert [each.job.account for each in request.registrations] == ["b", "acme"]
    assert not fill_accounts(request, "acme")
    listing = admin_pb2.ListJobsRequest()
    assert fill_accounts(listing, "acme")
    assert listing.filter.account == "acme"
    assert fill_accounts(get := admin_pb2.GetJobRequest(), "acme")
    assert get.job.account == "acme"


def test_what_users_may_call_can_be_read() -> None:
    for_users = (Scope.ACCOUNT, Scope.CLUSTER, Scope.CALLER)
    ours = {name: rule for name, rule in RULES.items() if name.startswith("/iscp.")}
    assert set(METHODS) == {name for name, rule in ours.items() if rule.scope in for_users}


def test_some_calls_concern_everybody() -> None:
    assert concerns_everybody("/iscp.wire.v1.Operator/GetLogs", operator_pb2.GetLogsRequest(node_id="n"))
    assert not concerns_everybody("/iscp.wire.v1.Operator/GetLogs", operator_pb2.GetLogsRequest(table="/t"))
    assert concerns_everybody("/iscp.wire.v1.Builds/AbortBuild", builds_pb2.AbortBuildRequest())
    assert not concerns_everybody("/iscp.wire.v1.Builds/AbortBuild", builds_pb2.AbortBuildRequest(job=job()))


def test_what_lists_hold_is_counted() -> None:
    request = admin_pb2.ChangeJobsRequest()
    assert named_count(request) == 0
    for _ in range(3):
        request.changes.add(job=job())
    assert named_count(request) == 3
    assert named_count(admin_pb2.GetJobRequest(job=job())) == 0


@pytest.mark.parametrize(
    ("known_by", "names"),
    [(KnownBy.CERTIFICATE, ["root"]), (KnownBy.NODE, ["root"]), (KnownBy.TOKEN, []), (KnownBy.OIDC, [])],
)
def test_only_what_a_certificate_shows_is_said(known_by: KnownBy, names: list[str]) -> None:
    """A token goes with the call and says it itself; what it says is never passed on as a certificate's name."""
    nowhere: Any = None
    principal = Principal("acme", Role.VIEWER, "root", known_by)
    said = said_of_caller(GuardedContext(nowhere, principal, "ipv4:1.2.3.4:5", lambda _: True))
    assert json.loads(said) == {"names": names, "peer": "ipv4:1.2.3.4:5"}
