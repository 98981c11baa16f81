"""Tokens and entries of the audit as messages, and back."""

from __future__ import annotations

from collections.abc import Iterable

from iscp.adapters.grpc.codec.convert import fields_of, to_message
from iscp.core.access.access_token import TokenRecord
from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import InvalidRequest, Unavailable
from iscp.wire.v1 import access_pb2 as pb

_ROLES: dict[int, Role] = {pb.Role.Value(f"ROLE_{role.name}"): role for role in Role}
_WIRE_ROLES = {role: number for number, role in _ROLES.items()}
_ENTRY_FIELDS = tuple(field.name for field in pb.AuditEntry.DESCRIPTOR.fields)
_TOKEN_FIELDS = tuple(field.name for field in pb.Token.DESCRIPTOR.fields)


def role_from_wire(number: int) -> Role:
    """Raises InvalidRequest."""
    if number not in _ROLES:
        raise InvalidRequest(f"must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return _ROLES[number]


def role_to_wire(role: str) -> pb.Role.ValueType:
    """Raises InvalidRequest."""
    if role not in _WIRE_ROLES:
        raise InvalidRequest(f"is {role!r}, and must be one of {', '.join(Role)}", field="role", remedy="Name one")
    return pb.Role.ValueType(_WIRE_ROLES[Role(role)])


def token_to_wire(record: TokenRecord) -> pb.Token:
    named = {name: getattr(record, name) for name in _TOKEN_FIELDS if name != "role"}
    message: pb.Token = to_message(pb.Token, **named, role=role_to_wire(record.role))
    return message


def token_from_wire(token: pb.Token) -> TokenRecord:
    """Without its digest, which is nobody's to read. Raises Unavailable where a newer node says what is not known."""
    return TokenRecord(**{**fields_of(token, _TOKEN_FIELDS), "role": _known_role(token.role), "digest": ""})


def entry_to_wire(entry: AuditEntry) -> pb.AuditEntry:
    named = {name: getattr(entry, name) for name in _ENTRY_FIELDS if name != "caller_role"}
    message: pb.AuditEntry = to_message(pb.AuditEntry, **named, caller_role=role_to_wire(entry.caller_role))
    return message


def entries_from_wire(entries: Iterable[pb.AuditEntry]) -> list[AuditEntry]:
    return [
        AuditEntry(**{**fields_of(each, _ENTRY_FIELDS), "caller_role": _known_role(each.caller_role).value})
        for each in entries
    ]


def _known_role(number: int) -> Role:
    if number not in _ROLES:
        raise Unavailable(f"the answer has a role {number}, which is not known", remedy="Is the node newer?")
    return _ROLES[number]
