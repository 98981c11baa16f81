"""Makes and lists tokens, and reads who changed what (port AccessService)."""

from __future__ import annotations

from iscp.core.access.access_token import TokenRecord, check_wanted, digest_of, draw_token, id_of
from iscp.core.access.audit_entry import AuditEntry, AuditQuery
from iscp.core.values.access_roles import Principal, Role
from iscp.core.values.errors import Conflict, InvalidRequest
from iscp.ports.access.token_ports import AuditLog, RandomHex, TokenStore
from iscp.ports.system import Clock

DRAWS_MAX = 5
"""Tokens that are drawn until one has an id of its own; then the request fails with a Conflict."""

AUDIT_LIMIT_MAX = 10_000
"""Calls of the audit in one answer; a request for more is refused."""


def create_token(
    store: TokenStore,
    account: str,
    role: Role,
    ttl_s: float,
    note: str,
    created_by: str,
    clock: Clock,
    random_hex: RandomHex,
) -> tuple[str, TokenRecord]:
    """Create a token as AccessService does. Raises what the store does, and InvalidRequest."""
    check_wanted(account, ttl_s, note)
    now_s = clock.now_s()
    for _ in range(DRAWS_MAX):
        token = draw_token(random_hex)
        fields = id_of(token) or "", digest_of(token), account, role, now_s, now_s + ttl_s, created_by, note
        if store.create(record := TokenRecord(*fields)):
            return token, record
    raise Conflict(f"{DRAWS_MAX} tokens were drawn whose ids there are already", remedy="Retry")


class TokenService:
    def __init__(self, store: TokenStore, audit: AuditLog, clock: Clock, random_hex: RandomHex) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock
        self._random_hex = random_hex

    def create_token(
        self, account: str, role: Role, ttl_s: float, note: str, by: Principal | None
    ) -> tuple[str, TokenRecord]:
        created_by = f"{by.account}/{by.name}" if by else ""
        return create_token(self._store, account, role, ttl_s, note, created_by, self._clock, self._random_hex)

    def tokens(self, account: str) -> list[TokenRecord]:
        found = [record for record in self._store.records() if not account or record.account == account]
        return sorted(found, key=lambda record: record.created_at_s, reverse=True)

    def revoke_token(self, token_id: str, account: str) -> bool:
        if not token_id.isalnum():
            raise InvalidRequest("is no id of a token", field="token_id", remedy="See `iscp-admin token list`")
        return self._store.revoke(token_id, account)

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        if query.limit > AUDIT_LIMIT_MAX:
            raise InvalidRequest(
                f"must be at most {AUDIT_LIMIT_MAX}", field="limit", remedy="Read the table iscp_audit beside the log"
            )
        return self._audit.read(query)
