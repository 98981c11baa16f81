"""Writes the audit's entries for a call that changes something, once it has ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import grpc
from google.protobuf.message import Message

from iscp.adapters.grpc.access.audited_request import audited_by_account, audited_of_caller
from iscp.adapters.grpc.access.guarded_context import GuardedContext
from iscp.adapters.grpc.channel.grpc_errors import DETAIL_KEY
from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.errors import ErrorCode
from iscp.ports.access.token_ports import AuditSink
from iscp.wire.v1 import admin_pb2

log = logging.getLogger(__name__)


class CallAudit:
    """The audit of one call by somebody who is known. An unknown caller has changed nothing, and could fill the
    audit.
    """

    def __init__(self, sink: AuditSink, method: str, context: GuardedContext, request: Message | None) -> None:
        self._sink = sink
        self._method = method
        self._context = context
        self._request = request

    def end(self, now_s: float, node_id: str, error: BaseException | None) -> None:
        """Write the entries of the call; never raise, as the call has been made, and is answered.

        A request that cannot be read has an entry without its content.
        """
        status, code = "UNKNOWN" if error else grpc.StatusCode.OK.name, int(ErrorCode.INTERNAL) if error else 0
        own = self._context.principal.account
        entries_by_account: Mapping[str, tuple[str, str]] = {own: ("{}", "")}
        try:
            status, code = _outcome(self._context, error)
            entries_by_account = {
                account: (self._with_notes(what), named) for account, (what, named) in self._named_things(own).items()
            }
        except Exception:
            log.exception("audit.unreadable", extra={"method": self._method})
        caller = self._context.principal
        entries = [
            AuditEntry(
                at_s=now_s,
                node_id=node_id,
                account=account,
                caller_account=caller.account,
                caller_role=caller.role,
                caller=caller.name,
                known_by=caller.known_by,
                peer=self._context.peer_named,
                method=self._method,
                what=what,
                request_id=request_id,
                result=status,
                error_code=int(ErrorCode.NOT_AUTHORIZED) if self._context.foreign else code,
            )
            for account, (what, request_id) in entries_by_account.items()
        ]
        self._sink.add(entries)

    def _named_things(self, own: str) -> Mapping[str, tuple[str, str]]:
        """Return by account what the call named. A caller who may act in one account alone writes into the audit of no
        other.
        """
        if self._request is None:
            return {own: ("{}", "")}
        if self._context.principal.everywhere:
            return audited_by_account(self._request, own)
        return {own: audited_of_caller(self._request, own)}

    def _with_notes(self, what: str) -> str:
        noted = self._context.noted
        return json.dumps(json.loads(what) | noted, ensure_ascii=False) if noted else what


def _outcome(context: GuardedContext, error: BaseException | None) -> tuple[str, int]:
    """Return gRPC's status and the error's code, as the caller got them."""
    if error is None:
        return grpc.StatusCode.OK.name, 0
    status = context.code()
    name = status.name if isinstance(status, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name
    for key, value in context.trailing_metadata() or ():
        if key == DETAIL_KEY:
            return name, int(admin_pb2.ErrorDetail.FromString(value).code)
    return name, int(ErrorCode.INTERNAL)
