"""Who may do what: roles, and those who call under one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import inf

_ACCOUNT = re.compile(r"\S(.{0,126}\S)?")


def is_account(name: str) -> bool:
    """Whether it can be the name of an account: at most 128 characters, without blanks around them."""
    return _ACCOUNT.fullmatch(name) is not None


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
    OIDC = "oidc"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who calls, in one account. `name`: the certificate's name, a token's id, or `oidc:` and a subject.

    `everywhere`: the account is the cluster-wide one, and may act for all others. `expires_at_s`: Unix seconds from
    which what a provider has said of them is not good any more; of others it is not said here.
    """

    account: str
    role: Role
    name: str
    known_by: KnownBy
    everywhere: bool = False
    expires_at_s: float = inf

    @property
    def by_token(self) -> bool:
        """Whether what a call carries in `authorization` says who they are."""
        return self.known_by in (KnownBy.TOKEN, KnownBy.OIDC)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody shows: a token, iscp's or a provider's (empty: none), and the names in a verified certificate."""

    token: str = ""
    names: frozenset[str] = frozenset()
