"""The ports behind the one place where calls are authorized: who calls, and whether they may."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from iscp.core.access.service_table import Rule
from iscp.core.values.access_roles import Credentials, Principal


class Authenticator(Protocol):
    def identify(self, credentials: Credentials) -> Principal | None:
        """Return who shows these credentials; None if none are shown.

        Raises NotAuthenticated if what is shown is not good (any more), Unavailable if that cannot be known.
        """


class Authorizer(Protocol):
    def rule(self, method: str) -> Rule | None:
        """Return what is known of a method of gRPC, by its full name; None if it is refused."""

    def authorize(self, principal: Principal | None, method: str, accounts: Collection[str], everybody: bool) -> None:
        """Return if the call may be made. `accounts`: those that it names; `everybody`: it concerns all there are.

        Raises NotAuthenticated, NotAuthorized; ForeignAccount where it names another account than the caller's.
        """
