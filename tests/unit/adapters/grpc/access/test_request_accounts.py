"""Whose accounts requests name, and that nothing of them that may be secret is kept."""

from __future__ import annotations

import json

from iscp.adapters.grpc.access.request_accounts import (
    audited_things,
    concerns_everybody,
    fill_accounts,
    named_things,
)
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, operator_pb2


def job(account: str = "", table: str = "/t") -> admin_pb2.JobName:
    return admin_pb2.JobName(table=table, name="j", account=account)


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


def test_some_calls_concern_everybody() -> None:
    assert concerns_everybody("/x/GetLogs", operator_pb2.GetLogsRequest(node_id="n"))
    assert not concerns_everybody("/x/GetLogs", operator_pb2.GetLogsRequest(table="/t"))
    assert concerns_everybody("/x/AbortBuild", builds_pb2.AbortBuildRequest())
    assert not concerns_everybody("/x/AbortBuild", builds_pb2.AbortBuildRequest(job=job()))


def test_the_audit_names_things_and_keeps_no_spec() -> None:
    request = admin_pb2.RegisterRequest()
    request.registrations.add(job=job("a", "s3://k:secret@b/t"), spec_json='{"p": "secret"}', request_id="r1")
    request.registrations.add(job=job(), spec_json="secret", request_id="r2")
    found = audited_things(request, "own")
    assert set(found) == {"a", "default"}
    assert "secret" not in str(found)
    what, request_id = found["a"]
    assert request_id == "r1"
    assert json.loads(what) == {"things": [{"table": "s3://…@b/t", "job": "j", "request_id": "r1"}]}


def test_what_is_done_is_named_too() -> None:
    node = operator_pb2.ChangeNodeRequest(verb=operator_pb2.NODE_VERB_DRAIN, node_id="n1")
    assert audited_things(node, "own") == {"": ('{"things": [{"verb": "NODE_VERB_DRAIN", "node_id": "n1"}]}', "")}
    token = access_pb2.CreateTokenRequest(role=access_pb2.ROLE_ADMIN, ttl_s=5)
    assert audited_things(token, "own") == {"own": ('{"things": [{"role": "ROLE_ADMIN", "ttl_s": 5.0}]}', "")}
    resync = admin_pb2.ResyncRequest(job=job("a"), table="/to", spec_json="secret", request_id="r")
    things = {"table": "/t", "job": "j", "to_table": "/to", "request_id": "r"}
    assert audited_things(resync, "own") == {"a": (json.dumps({"things": [things]}), "r")}
    repair = admin_pb2.VerifyJobRequest(job=job("a"), repair=True)
    assert '"repair": true' in audited_things(repair, "own")["a"][0]
