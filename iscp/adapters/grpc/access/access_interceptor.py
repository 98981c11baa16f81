"""The one place where a call is decided: who makes it, whether they may, and what the audit says of it.

Every node decides every call that reaches it, also one that another node has passed on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from iscp.adapters.grpc.access.call_audit import CallAudit
from iscp.adapters.grpc.access.caller_evidence import Evidence, evidence_of
from iscp.adapters.grpc.access.guarded_context import GuardedContext
from iscp.adapters.grpc.access.request_accounts import (
    METHODS,
    NAMED_MAX,
    concerns_everybody,
    fill_accounts,
    named_count,
    named_things,
)
from iscp.adapters.grpc.channel.grpc_errors import abort, translate_errors
from iscp.adapters.grpc.channel.method_kinds import behaviour_of, handler_around
from iscp.core.access.role_authorizer import ForeignAccount
from iscp.core.access.service_table import Foreign, Rule, Scope
from iscp.core.values.access_roles import Principal
from iscp.core.values.errors import InvalidRequest, IscpError, NotAuthenticated, NotAuthorized, no_index_at, no_jobs_on
from iscp.ports.access.authorizer import Authenticator, Authorizer
from iscp.ports.access.token_ports import AuditSink
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

_UNKNOWN = Rule(Scope.CALLER)


@dataclass(frozen=True, slots=True)
class AccessParts:
    """The parts that decide about calls, and that are notified. `node_name`: what nodes are known by (empty: by
    nothing).
    """

    authenticator: Authenticator
    authorizer: Authorizer
    still_valid: Callable[[Principal], bool]
    audit: AuditSink
    clock: Clock
    node_id: str
    node_name: str


class AccessInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to AdminServer as the first of its `interceptors`: what it does not let through reaches no other."""

    def __init__(self, parts: AccessParts) -> None:
        self._parts = parts

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None:
            return None
        rule = self._parts.authorizer.rule(details.method)
        if rule is not None and rule.scope in (Scope.OPEN, Scope.NODES):  # nodes are known at the method itself
            return there
        call = _GuardedCall(self._parts, details.method, rule or _UNKNOWN, there)
        return handler_around(there, call.answers if there.response_streaming else call.answer)


class _GuardedCall:
    """A method behind the decision."""

    def __init__(self, parts: AccessParts, method: str, rule: Rule, there: grpc.RpcMethodHandler) -> None:
        self._parts = parts
        self._method = method
        self._rule = rule
        self._there = there

    def answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._decide(request, context) as (decided, guarded, instead):
            return behaviour_of(self._there)(decided, guarded) if instead is None else instead[0]

    def answers(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with self._decide(request, context) as (decided, guarded, instead):
            yield from behaviour_of(self._there)(decided, guarded) if instead is None else instead

    @contextmanager
    def _decide(self, given: Any, context: grpc.ServicerContext) -> Iterator[tuple[Any, Any, list[Any] | None]]:
        """Yield what the method gets, with the caller, or the answer instead of a call of the method."""
        with translate_errors(context, self._method, "access"):
            evidence, principal = self._identify(context)
        request = self._read(given)
        guarded = GuardedContext(context, principal, evidence.peer, self._parts.still_valid)
        audited = self._rule.audited and not evidence.passed_on  # else it is where the call came in
        audit = CallAudit(self._parts.audit, self._method, guarded, request) if audited else None
        error: BaseException | None = None
        try:
            yield self._authorize(principal, given, request, guarded)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if audit is not None:
                audit.end(self._parts.clock.now_s(), self._parts.node_id, error)

    def _identify(self, context: grpc.ServicerContext) -> tuple[Evidence, Principal]:
        """Return who calls, and the evidence of it. Raises NotAuthenticated, Unavailable."""
        try:
            evidence = evidence_of(context, self._parts.node_name)
            principal = self._parts.authenticator.identify(evidence.credentials)
            if principal is None:
                self._parts.authorizer.authorize(None, self._method, (), everybody=False)
                raise NotAuthenticated("the call does not say who calls", about="authorization")
        except NotAuthorized as error:
            log.info("access.unknown_caller", extra={"peer": context.peer(), "why": error.message})
            raise
        return evidence, principal

    def _authorize(
        self, principal: Principal, given: Any, request: Message | None, context: GuardedContext
    ) -> tuple[Any, Any, list[Any] | None]:
        if request is None:
            self._check(principal, (), False, context)
            return given, context, None
        if (count := named_count(request)) > NAMED_MAX:
            many = InvalidRequest(f"names {count} things, more than {NAMED_MAX}", field="request", remedy="Send fewer")
            abort(context, many)
        filled = not principal.everywhere and fill_accounts(request, principal.account)
        accounts = {thing.account for thing in named_things(request)}
        if (foreign := self._check(principal, accounts, concerns_everybody(self._method, request), context)) is None:
            return (request.SerializeToString() if filled and self._raw else given), context, None
        log.info("access.foreign", extra={"verb": self._method, "caller": principal.name, "peer": context.peer_named})
        context.note_foreign()
        return given, context, self._answer_foreign(principal, request, context, foreign)

    def _check(
        self, principal: Principal, accounts: Collection[str], everybody: bool, context: GuardedContext
    ) -> ForeignAccount | None:
        """Return the error if the call names another account; end the call for any other fault."""
        try:
            self._parts.authorizer.authorize(principal, self._method, accounts, everybody)
        except ForeignAccount as error:
            return error
        except IscpError as error:
            refused = {
                "verb": self._method,
                "code": int(error.code),
                "caller": principal.name,
                "peer": context.peer_named,
            }
            log.info("access.refused", extra=refused)
            abort(context, error)
        return None

    @property
    def _raw(self) -> bool:
        """Return whether the call goes on to another node, as bytes."""
        return self._there.request_deserializer is None

    def _read(self, given: Any) -> Message | None:
        """Return the message; None: it is no message of the method, which is reported by who answers it, or a stream of
        them.
        """
        if isinstance(given, Message):
            return given
        if not isinstance(given, bytes) or self._method not in METHODS:
            return None
        try:
            request: Message = GetMessageClass(METHODS[self._method].input_type).FromString(given)
        except DecodeError:
            return None
        return request

    def _answer_foreign(
        self, principal: Principal, request: Message, context: GuardedContext, error: ForeignAccount
    ) -> list[Any]:
        """Answer a call that names another account as if there were nothing, whether there is or not."""
        tables = (thing.table for thing in named_things(request) if thing.account != principal.account)
        table, descriptor = next(tables, ""), METHODS[self._method]
        match self._rule.foreign:
            case Foreign.REFUSED:
                abort(context, error)
            case Foreign.NOTHING if not table:
                pass
            case Foreign.NOTHING | Foreign.MISSING:
                abort(context, no_jobs_on(table))
            case Foreign.NO_INDEX:
                abort(context, no_index_at(table))
            case Foreign.UNCHANGED:
                pass
        if descriptor.server_streaming:
            return []
        nothing = GetMessageClass(descriptor.output_type)()
        return [nothing.SerializeToString() if self._there.response_serializer is None else nothing]
