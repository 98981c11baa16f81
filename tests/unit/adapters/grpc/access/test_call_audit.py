"""A call that has been made is in the audit, whatever of it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from iscp.adapters.grpc.access.call_audit import CallAudit
from iscp.adapters.grpc.access.guarded_context import GuardedContext
from iscp.adapters.grpc.channel.grpc_errors import DETAIL_KEY
from iscp.core.values.access_roles import KnownBy, Principal, Role
from iscp.core.values.errors import ErrorCode
from iscp.wire.v1 import admin_pb2
from tests.fakes.access import FakeAudit

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
