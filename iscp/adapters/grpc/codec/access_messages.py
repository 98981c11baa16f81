"""Tokens and entries of the audit as messages."""

from __future__ import annotations

from iscp.adapters.grpc.codec.message_codec import Codec, EnumCodec, FieldCodec
from iscp.core.access.access_token import TokenRecord
from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import InvalidRequest
from iscp.wire.v1 import access_pb2 as pb

_ROLES = EnumCodec(Role, pb.Role, "role {}")
_ROLE_NAME = FieldCodec(lambda name: _ROLES.to_wire(Role(name)), lambda number: _ROLES.from_wire(number).value)

TOKEN = Codec(TokenRecord, pb.Token, role=_ROLES)
"""The digest does not go over the wire: it is nobody's to read."""

AUDIT_ENTRY = Codec(AuditEntry, pb.AuditEntry, caller_role=_ROLE_NAME)


def role_from_wire(number: int) -> Role:
    """Raises InvalidRequest."""
    if number not in _ROLES.known:
        raise InvalidRequest(f"must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return _ROLES.known[number]


def role_to_wire(role: str) -> pb.Role.ValueType:
    """Raises InvalidRequest."""
    if role not in list(Role):
        raise InvalidRequest(f"is {role!r}, and must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return pb.Role.ValueType(_ROLES.to_wire(Role(role)))
