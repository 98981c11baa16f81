"""Roles, and the callers who have one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import inf

_ACCOUNT = re.compile(r"\S(.{0,126}\S)?")


def is_account(name: str) -> bool:
    """Return whether it can be the name of an account: at most 128 characters, without blanks around them."""
    return _ACCOUNT.fullmatch(name) is not None


class Role(StrEnum):
    """A role in an account; each may do what those before it may."""

    VIEWER = "viewer"
    EDITOR = "editor"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Return whether who has this role may do what needs that one."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class KnownBy(StrEnum):
    """The proof by which a caller is known."""

    CERTIFICATE = "certificate"
    TOKEN = "token"
    OIDC = "oidc"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, in one account. `name` is the certificate's name, a token's id, or `oidc:` and a subject.

    With `everywhere` the account is the cluster-wide one, and may act for all others. `expires_at_s` is the time (Unix
    seconds) from which a provider's word on a caller is no longer valid; it is not set for other callers.
    """

    account: str
    role: Role
    name: str
    known_by: KnownBy
    everywhere: bool = False
    expires_at_s: float = inf

    @property
    def by_token(self) -> bool:
        """Return whether the caller is known by what a call carries in `authorization`."""
        return self.known_by in (KnownBy.TOKEN, KnownBy.OIDC)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a caller: a token, iscp's or a provider's (empty: none), and the names in a verified
    certificate.
    """

    token: str = ""
    names: frozenset[str] = frozenset()
