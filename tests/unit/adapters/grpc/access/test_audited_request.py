"""What the audit keeps of requests: nothing that may be secret, and little, whatever was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iscp.adapters.grpc.access.audited_request import (
    ACCOUNTS_MAX,
    TEXT_CHARS_MAX,
    WHAT_CHARS_MAX,
    audited_by_account,
    audited_of_caller,
    audited_text,
    audited_uri,
)
from iscp.wire.v1 import access_pb2, admin_pb2, operator_pb2

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
