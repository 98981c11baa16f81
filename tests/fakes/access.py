"""Access control without etcd and storage: tokens and the audit in memory, behind their ports."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp.model.access.authorization import AuditEntry, AuditQuery, RoleAuthorizer, TokenBook, TokenRecord
from iscp.model.access.service_table import Role
from iscp.model.values.errors import IscpError
from iscp.ports.admin import TokenProvider
from iscp.ports.system import Clock
from iscp.server.access.access_interceptor import AccessInterceptor, AccessParts
from iscp.server.access.known_callers import CertificateCaller, KnownCallers, TokenService

SYSTEM = "system"


@dataclass
class FakeTokens:
    """The ports TokenStore and TokenView at once: what is written is known at once."""

    kept: dict[str, TokenRecord] = field(default_factory=dict)
    age_s: float = 0.0

    @property
    def book(self) -> TokenBook:
        return TokenBook(self.kept.values())

    def create(self, record: TokenRecord) -> bool:
        return self.kept.setdefault(record.token_id, record) is record

    def revoke(self, token_id: str, account: str) -> bool:
        if (record := self.kept.get(token_id)) is None or account not in ("", record.account):
            return False
        del self.kept[token_id]
        return True

    def records(self) -> list[TokenRecord]:
        return list(self.kept.values())

    def expire(self, token_id: str) -> None:
        self.kept[token_id] = replace(self.kept[token_id], expires_at_s=0.0)


@dataclass
class FakeAudit:
    """The ports AuditSink and AuditLog. `failures` are raised by the next appends, one each."""

    entries: list[AuditEntry] = field(default_factory=list)
    failures: list[IscpError] = field(default_factory=list)

    def add(self, entries: Sequence[AuditEntry]) -> None:
        self.entries.extend(entries)

    def append(self, entries: Sequence[AuditEntry]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.entries.extend(entries)

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        found = [each for each in reversed(self.entries) if query.account in ("", each.account)]
        return found[: query.limit]


class Access:
    """What a node has of access control. `token` makes one of any account and role."""

    def __init__(
        self,
        clock: Clock,
        certificates: Mapping[str, CertificateCaller] | None = None,
        node_name: str = "",
        provider: TokenProvider | None = None,
    ) -> None:
        self.tokens, self.audit = FakeTokens(), FakeAudit()
        self.callers = KnownCallers(certificates or {}, SYSTEM, node_name, self.tokens, clock, provider)
        self.service = TokenService(self.tokens, self.audit, clock, secrets.token_hex)
        still_valid, authorizer = self.callers.still_valid, RoleAuthorizer(SYSTEM)
        self.interceptor = AccessInterceptor(
            AccessParts(self.callers, authorizer, still_valid, self.audit, clock, "n0", node_name)
        )

    def token(self, role: Role, account: str = "acme") -> str:
        return self.service.create_token(account, role, 3600.0, "", None)[0]
