"""A call's context with who makes it, as the methods of services get it where callers are authenticated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from iscp.adapters.grpc.access.caller_evidence import UNSAID, statement
from iscp.core.values.access_roles import Principal


class GuardedContext:
    """All else is gRPC's. A call whose caller is not let in any more counts as one for which nobody waits."""

    def __init__(
        self, context: grpc.ServicerContext, principal: Principal, peer: str, still_valid: Callable[[Principal], bool]
    ) -> None:
        self._context = context
        self._still_valid = still_valid
        self.principal = principal
        self.peer_named = peer
        self.noted: dict[str, object] = {}
        self.foreign = False
        """True if the call names another account than the caller's."""

    def is_active(self) -> bool:
        return bool(self._context.is_active()) and self._still_valid(self.principal)

    def note_foreign(self) -> None:
        self.foreign = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def principal_of(context: grpc.ServicerContext | GuardedContext) -> Principal | None:
    """Return the caller; None: callers are not authenticated."""
    return context.principal if isinstance(context, GuardedContext) else None


def note_for_audit(context: grpc.ServicerContext | GuardedContext, **noted: object) -> None:
    """Note something for this call's audit besides what its request names; nothing secret."""
    if isinstance(context, GuardedContext):
        context.noted.update(noted)


def said_of_caller(context: grpc.ServicerContext | GuardedContext) -> str:
    """Return the statement about the caller for the node that a call is passed on to; a token goes with it, and names
    him.
    """
    if not isinstance(context, GuardedContext):
        return UNSAID
    return statement([] if context.principal.by_token else [context.principal.name], context.peer_named)
