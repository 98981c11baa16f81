"""What the audit says of a call that changes something, once it has ended."""

from __future__ import annotations

import json

import grpc
from google.protobuf.message import Message

from iscp.adapters.grpc.access.guarded_context import GuardedContext
from iscp.adapters.grpc.access.request_accounts import audited_things
from iscp.adapters.grpc.channel.grpc_errors import DETAIL_KEY
from iscp.core.audit_entry import AuditEntry
from iscp.core.errors import ErrorCode
from iscp.ports.access.token_ports import AuditSink
from iscp.wire.v1 import admin_pb2


class CallAudit:
    """Of one call by somebody who is known. Who is not has changed nothing, and could fill the audit."""

    def __init__(self, sink: AuditSink, method: str, context: GuardedContext, request: Message | None) -> None:
        self._sink = sink
        self._method = method
        self._context = context
        self._request = request

    def end(self, now_s: float, node_id: str, error: BaseException | None) -> None:
        """An entry for each account that the call concerned."""
        caller, foreign = self._context.principal, self._context.foreign
        result, code = _outcome(self._context, error)
        own = caller.account
        things = audited_things(self._request, own) if self._request is not None else {own: ("{}", "")}
        self._sink.add(
            [
                AuditEntry(
                    at_s=now_s,
                    node_id=node_id,
                    # An account reads what was done in it, not what others were kept from doing.
                    account=own if foreign else account,
                    caller_account=caller.account,
                    caller_role=caller.role,
                    caller=caller.name,
                    known_by=caller.known_by,
                    peer=self._context.peer_named,
                    method=self._method,
                    what=self._with_notes(what),
                    request_id=request_id,
                    result=result,
                    error_code=int(ErrorCode.NOT_AUTHORIZED) if foreign else code,
                )
                for account, (what, request_id) in things.items()
            ]
        )

    def _with_notes(self, what: str) -> str:
        noted = self._context.noted
        return json.dumps(json.loads(what) | noted, ensure_ascii=False) if noted else what


def _outcome(context: GuardedContext, error: BaseException | None) -> tuple[str, int]:
    """gRPC's status and the error's code, as the caller got them."""
    if error is None:
        return grpc.StatusCode.OK.name, 0
    status = context.code()
    name = status.name if isinstance(status, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name
    for key, value in context.trailing_metadata() or ():
        if key == DETAIL_KEY:
            return name, int(admin_pb2.ErrorDetail.FromString(value).code)
    return name, int(ErrorCode.INTERNAL)
