"""Serves an AccessService by gRPC, beside `Admin`. Any node answers: no owner is needed for it."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

from collections.abc import Iterator

import grpc

from iscp.adapters.grpc.access.guarded_context import note_for_audit, principal_of
from iscp.adapters.grpc.channel.grpc_errors import answering
from iscp.adapters.grpc.codec.access_messages import AUDIT_ENTRY, TOKEN, role_from_wire
from iscp.adapters.grpc.codec.message_codec import pages
from iscp.core.access.audit_entry import AuditQuery
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import AT_S_MOST
from iscp.ports.access.token_ports import AccessService
from iscp.wire.v1 import access_pb2 as pb
from iscp.wire.v1 import access_pb2_grpc as pb_grpc

ACCESS_CALLS_MAX = 20
"""Calls about tokens and the audit at a time, in addition to users'."""

AUDIT_LIMIT = 1_000
"""Calls of the audit in an answer whose request gives no limit."""


class AccessServer(pb_grpc.AccessServicer):
    """The service's methods; give it to AdminServer as one of its `services`. Without a service it refuses all."""

    names = (pb.DESCRIPTOR.services_by_name["Access"].full_name,)
    calls_max = ACCESS_CALLS_MAX

    def __init__(self, service: AccessService | None) -> None:
        self._served = service

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_AccessServicer_to_server(self, server)

    def close(self) -> None:
        """Do nothing: all of its calls end by themselves."""

    def CreateToken(self, request: pb.CreateTokenRequest, context: grpc.ServicerContext) -> pb.CreateTokenResponse:
        with answering(request, context, "create_token"):
            by = principal_of(context)
            account = request.account or (by.account if by else "")
            role = role_from_wire(request.role)
            secret, record = self._service.create_token(account, role, request.ttl_s, request.note, by)
            note_for_audit(context, token_id=record.token_id)
            return pb.CreateTokenResponse(secret=secret, token=TOKEN.to_wire(record))

    def ListTokens(self, request: pb.ListTokensRequest, context: grpc.ServicerContext) -> Iterator[pb.TokenPage]:
        with answering(request, context, "list_tokens"):
            for page in pages(TOKEN.to_wire(each) for each in self._service.tokens(request.account)):
                yield pb.TokenPage(tokens=page)

    def RevokeToken(self, request: pb.RevokeTokenRequest, context: grpc.ServicerContext) -> pb.RevokeTokenResponse:
        with answering(request, context, "revoke_token"):
            return pb.RevokeTokenResponse(revoked=self._service.revoke_token(request.token_id, request.account))

    def ReadAudit(self, request: pb.ReadAuditRequest, context: grpc.ServicerContext) -> Iterator[pb.AuditPage]:
        with answering(request, context, "read_audit"):
            if not 0 <= request.since_s <= AT_S_MOST:
                raise InvalidRequest("is no time", field="since_s", remedy="Give Unix seconds; 0 is all")
            query = AuditQuery(request.account, request.since_s, request.method, request.limit or AUDIT_LIMIT)
            for page in pages(AUDIT_ENTRY.to_wire(each) for each in self._service.audit(query)):
                yield pb.AuditPage(entries=page)

    @property
    def _service(self) -> AccessService:
        if self._served is None:
            raise InvalidRequest(
                "is false, so that nobody needs a token, and nothing is audited",
                field="security.authentication",
                remedy="Set it in the nodes' configuration",
            )
        return self._served
