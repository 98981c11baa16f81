"""The one place where a call of a user is decided: who makes it, whether they may, how many may wait, and what the
audit says of it.

Every node decides every call that reaches it, also one that another node has passed on. The service of tokens and of
the audit is served here too.
"""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from iscp.client.channel.grpc_calls import FORWARDED_KEY, abort, answering, translate_errors
from iscp.client.channel.silent_calls import behaviour_of, handler_around
from iscp.client.codec.api_messages import AUDIT_ENTRY, TOKEN, role_from_wire
from iscp.client.codec.message_codec import pages
from iscp.model.access.authorization import AuditQuery, ForeignAccount
from iscp.model.access.service_table import Foreign, Principal, Rule, Scope, methods_that
from iscp.model.settings.config import WaitBounds
from iscp.model.values.errors import (
    InvalidRequest,
    IscpError,
    NotAuthenticated,
    NotAuthorized,
    QueueFull,
    no_index_at,
    no_jobs_on,
)
from iscp.model.values.untrusted_values import AT_S_MOST
from iscp.ports.admin import AccessService, AuditSink, Authenticator, Authorizer
from iscp.ports.system import Clock
from iscp.server.access.call_audit import (
    METHODS,
    NAMED_MAX,
    CallAudit,
    Evidence,
    GuardedContext,
    concerns_everybody,
    evidence_of,
    fill_accounts,
    named_count,
    named_things,
    note_for_audit,
    principal_of,
)
from iscp.wire.v1 import access_pb2 as pb
from iscp.wire.v1 import access_pb2_grpc as pb_grpc

# --- the decision about a call ----------------------------------------------------------------------------------------

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


# --- the number of calls that wait ------------------------------------------------------------------------------------
# The calls that wait are bounded: those of one caller, of one account, and all together.

WAITING = methods_that(lambda _, rule: rule.waits)


class _WaitPlace(NamedTuple):
    """One of `most` that `holder` has by a setting."""

    holder: tuple[str, ...]
    most: int
    setting: str


class WaitGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server after the interceptors that know callers, and that pass calls on.

    So a wait is counted where it is answered, at the owner, whichever node it came to.
    """

    def __init__(self, bounds: WaitBounds) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._waits: Counter[tuple[str, ...]] = Counter()

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or details.method not in WAITING:
            return there

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._place(context):
                return there.unary_unary(request, context)

        def answers(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._place(context):
                yield from there.unary_stream(request, context)

        return handler_around(there, answers if there.response_streaming else answer)

    @contextmanager
    def _place(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Count the wait for the time of the block, or end the call with QueueFull."""
        places = self._places_of(context)
        try:
            self._take(places)
        except QueueFull as error:
            abort(context, error)
        try:
            yield
        finally:
            with self._lock:
                self._waits.subtract(each.holder for each in places)
                self._waits = +self._waits  # callers who have gone leave no entry

    def _take(self, places: list[_WaitPlace]) -> None:
        with self._lock:
            for each in places:
                if self._waits[each.holder] >= each.most:
                    raise QueueFull(
                        f"{each.most} waits of {each.holder[-1]} are under way already",
                        remedy=f"Wait for fewer things at a time, or raise `waits.{each.setting}`",
                    )
            self._waits.update(each.holder for each in places)

    def _places_of(self, context: grpc.ServicerContext) -> list[_WaitPlace]:
        """Return the bounds that the call counts for, the narrowest first."""
        bounds = self._bounds
        places = [_WaitPlace(("all callers",), bounds.node_max, "node_max")]
        if (principal := principal_of(context)) is not None:
            account, name = ("account", principal.account), ("caller", principal.account, principal.name)
            places.insert(0, _WaitPlace(account, bounds.account_max, "account_max"))
            places.insert(0, _WaitPlace(name, bounds.caller_max, "caller_max"))
        elif all(key != FORWARDED_KEY for key, _ in context.invocation_metadata()):
            # A node that passes calls on says nothing of callers whom it does not know.
            host = context.peer().rpartition(":")[0]
            places.insert(0, _WaitPlace(("host", host), bounds.caller_max, "caller_max"))
        return places


# --- the service of tokens and of the audit ---------------------------------------------------------------------------
# The server serves an AccessService by gRPC, beside `Admin`. Any node answers: no owner is needed for it.

ACCESS_CALLS_MAX = 20
"""Calls about tokens and the audit at a time, in addition to users'."""

AUDIT_LIMIT = 1_000
"""Calls of the audit in an answer whose request gives no limit."""


class AccessServer(pb_grpc.AccessServicer):
    """The service's methods; give it to AdminServer as one of its `services`. Without a service it refuses all."""

    names = (pb.DESCRIPTOR.services_by_name["Access"].full_name,)
    calls_max = ACCESS_CALLS_MAX

    def __init__(self, service: AccessService | None) -> None:
        self._served = service

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_AccessServicer_to_server(self, server)

    def close(self) -> None:
        """Do nothing: all of its calls end by themselves."""

    def CreateToken(self, request: pb.CreateTokenRequest, context: grpc.ServicerContext) -> pb.CreateTokenResponse:
        with answering(request, context, "create_token"):
            by = principal_of(context)
            account = request.account or (by.account if by else "")
            role = role_from_wire(request.role)
            secret, record = self._service.create_token(account, role, request.ttl_s, request.note, by)
            note_for_audit(context, token_id=record.token_id)
            return pb.CreateTokenResponse(secret=secret, token=TOKEN.to_wire(record))

    def ListTokens(self, request: pb.ListTokensRequest, context: grpc.ServicerContext) -> Iterator[pb.TokenPage]:
        with answering(request, context, "list_tokens"):
            for page in pages(TOKEN.to_wire(each) for each in self._service.tokens(request.account)):
                yield pb.TokenPage(tokens=page)

    def RevokeToken(self, request: pb.RevokeTokenRequest, context: grpc.ServicerContext) -> pb.RevokeTokenResponse:
        with answering(request, context, "revoke_token"):
            return pb.RevokeTokenResponse(revoked=self._service.revoke_token(request.token_id, request.account))

    def ReadAudit(self, request: pb.ReadAuditRequest, context: grpc.ServicerContext) -> Iterator[pb.AuditPage]:
        with answering(request, context, "read_audit"):
            if not 0 <= request.since_s <= AT_S_MOST:
                raise InvalidRequest("is no time", field="since_s", remedy="Give Unix seconds; 0 is all")
            query = AuditQuery(request.account, request.since_s, request.method, request.limit or AUDIT_LIMIT)
            for page in pages(AUDIT_ENTRY.to_wire(each) for each in self._service.audit(query)):
                yield pb.AuditPage(entries=page)

    @property
    def _service(self) -> AccessService:
        if self._served is None:
            raise InvalidRequest(
                "is false, so that nobody needs a token, and nothing is audited",
                field="security.authentication",
                remedy="Set it in the nodes' configuration",
            )
        return self._served
