"""The ports to what access control stores outside the nodes: tokens, and who changed what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from iscp.core.access.access_token import TokenBook, TokenRecord
from iscp.core.access.audit_entry import AuditEntry, AuditQuery
from iscp.core.values.access_roles import Principal, Role


class TokenStore(Protocol):
    """Raises Unavailable, OutcomeUnknown."""

    def create(self, record: TokenRecord) -> bool:
        """False: there is one of this id. Raises InvalidRequest where there are as many as there may be."""

    def revoke(self, token_id: str, account: str) -> bool:
        """False: there is no such token, or it is another account's; an empty account is any."""

    def records(self) -> list[TokenRecord]:
        """Return all that can be read, also those that have ended."""


class TokenView(Protocol):
    """One node's knowledge of the tokens, at any time."""

    @property
    def book(self) -> TokenBook: ...

    @property
    def age_s(self) -> float:
        """Return the seconds since which a change may not be known here; infinite before anything is."""


class AuditLog(Protocol):
    def append(self, entries: Sequence[AuditEntry]) -> None:
        """Raises StorageError, and InvalidRequest for what it cannot hold."""

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the entries, newest first. Raises StorageError."""


class AuditSink(Protocol):
    """Takes entries in, to be written soon."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries; this never waits, and never raises."""


class AccessService(Protocol):
    """The port behind the gRPC service `Access`. Raises InvalidRequest, Unavailable, OutcomeUnknown, StorageError."""

    def create_token(
        self, account: str, role: Role, ttl_s: float, note: str, by: Principal | None
    ) -> tuple[str, TokenRecord]:
        """Create a token, and return it, which nobody can have again, and what is stored of it."""

    def tokens(self, account: str) -> list[TokenRecord]:
        """Return the tokens of an account, or (empty) of all; the newest first."""

    def revoke_token(self, token_id: str, account: str) -> bool:
        """Revoke a token as TokenStore does."""

    def audit(self, query: AuditQuery) -> list[AuditEntry]: ...


RandomHex = Callable[[int], str]
"""Gives so many random bytes in hexadecimal digits; nobody can foresee them."""
