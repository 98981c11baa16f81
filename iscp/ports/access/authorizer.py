"""Who calls, and whether they may: what is behind the one place where calls are decided."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from iscp.core.access.service_table import Rule
from iscp.core.values.access_roles import Credentials, Principal


class Authenticator(Protocol):
    def identify(self, credentials: Credentials) -> Principal | None:
        """Who shows these; None: nobody who is known by them, as none are shown.

        Raises NotAuthenticated where what is shown is not good (any more), Unavailable where that cannot be said.
        """


class Authorizer(Protocol):
    def rule(self, method: str) -> Rule | None:
        """What is known of a method of gRPC, by its full name; None: it is refused."""

    def authorize(self, principal: Principal | None, method: str, accounts: Collection[str], everybody: bool) -> None:
        """Return if the call may be made. `accounts`: those that it names; `everybody`: it concerns all there are.

        Raises NotAuthenticated, NotAuthorized; ForeignAccount where it names another account than the caller's.
        """
