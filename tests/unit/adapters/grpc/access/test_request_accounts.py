"""Whose accounts requests name."""

from __future__ import annotations

from iscp.adapters.grpc.access.request_accounts import (
    METHODS,
    concerns_everybody,
    fill_accounts,
    named_count,
    named_things,
)
from iscp.core.access.service_table import RULES, Scope
from iscp.wire.v1 import admin_pb2, builds_pb2, operator_pb2


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
