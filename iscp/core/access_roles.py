"""Who may do what: roles, and those who call under one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What somebody may do in an account; each may do what those before it may."""

    VIEWER = "viewer"
    EDITOR = "editor"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Whether who has this role may do what needs that one."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class KnownBy(StrEnum):
    """By what somebody is known."""

    CERTIFICATE = "certificate"
    TOKEN = "token"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who calls, in one account. `name`: the certificate's name, or a token's id.

    `everywhere`: the account is the cluster-wide one, and may act for all others.
    """

    account: str
    role: Role
    name: str
    known_by: KnownBy
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody shows: a token (empty: none), and the names in a certificate that was verified."""

    token: str = ""
    names: frozenset[str] = frozenset()
