"""Interceptors and clients by which any node answers users: calls go on to the owner, are checked as messages, and are
traced.

The module also has the listener that serves health alone.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2_grpc
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_before_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from iscp.client.channel.grpc_calls import (
    CALLER_KEY,
    DETAIL_KEY,
    FORWARDED_KEY,
    abort,
    from_rpc,
    never_sent,
    open_channel,
    trace_in,
    with_trace,
)
from iscp.client.channel.silent_calls import (
    PROBE_CONNECTIONS_MAX,
    ClientWatch,
    ConnectionGuard,
    SilentCallGuard,
    SilentCalls,
    behaviour_of,
    handler_around,
    server_bounds,
)
from iscp.client.codec.api_messages import JOB
from iscp.client.codec.message_codec import to_request
from iscp.model.access.service_table import methods_that
from iscp.model.api.api_requests import JobView
from iscp.model.values.errors import (
    ConfigurationError,
    InvalidRequest,
    IscpError,
    JobLogDamaged,
    NotOwner,
    Unavailable,
    no_owner,
)
from iscp.model.values.untrusted_values import NAME_CHARS_MAX
from iscp.ports.admin import AdminService
from iscp.ports.system import Tracer
from iscp.server.access.admin_servicer import JobServicer
from iscp.server.access.call_audit import METHODS, said_of_caller
from iscp.system.tls.tls_files import TlsSource
from iscp.wire.v1 import admin_pb2 as pb

# --- calls that go on to the owner ------------------------------------------------------------------------------------
# The calls go to the owner as bytes, and the owner's answers come back. This part decides where a call is answered, and
# when it is repeated: only where nothing can have been done, because the call was never sent, or came to a node that is
# not the owner. It knows nothing of what is requested.

log = logging.getLogger(__name__)

FORWARD_FOR_S = 15.0
"""How long an owner is searched on behalf of a user's call, longer than it takes to elect another one; then the call
fails with Unavailable.
"""

RETRY_FIRST_S = 0.05
"""Pause before the first repetition of a call to the owner; it doubles up to RETRY_MAX_S."""

RETRY_MAX_S = 0.5
"""Longest pause before a call to the owner is repeated."""

OWNER_CHANNELS_MAX = 8
"""Open connections to owners for users' calls; beyond them the oldest is closed."""

_FORWARDED = methods_that(lambda service, _: service.forwarded)
# What each connection says for itself.
_OF_ONE_CONNECTION = frozenset({"user-agent", "host", "content-type", "te", CALLER_KEY, FORWARDED_KEY})
# gRPC reports a call without a deadline as one whose deadline is far away.
_NO_DEADLINE_S = 1e9


class _ForwardingError(Exception):
    """The owner's answer is an error, or there is none."""

    def __init__(self, address: str, cause: grpc.RpcError) -> None:
        super().__init__(address)
        self.address = address
        self.cause = cause

    @property
    def nothing_done(self) -> bool:
        return never_sent(self.cause) or isinstance(from_rpc(self.cause, self.address, changes=True), NotOwner)


class _Caller:
    """A user's call. The call that it led to is cancelled when nobody waits for it any more."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.gone = threading.Event()
        self._context = context
        self._call: Any = None
        if not context.add_callback(self._leave):
            self._leave()

    @property
    def remaining_s(self) -> float | None:
        remaining_s = self._context.time_remaining()
        return None if remaining_s > _NO_DEADLINE_S else remaining_s

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        given = self._context.invocation_metadata()
        passed_on = [
            (key, value) for key, value in given if key not in _OF_ONE_CONNECTION and not key.startswith("grpc-")
        ]
        return with_trace((*passed_on, (FORWARDED_KEY, said_of_caller(self._context))))

    def follow(self, call: Any) -> Any:
        # `_leave` sets `gone` and reads the call, this the other way round: whichever comes second cancels.
        self._call = call
        if self.gone.is_set():
            call.cancel()
        return call

    def _leave(self) -> None:
        self.gone.set()
        if (call := self._call) is not None:
            call.cancel()


class Forwarding(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to AdminServer as one of its `interceptors`.

    `route` returns the address of the owner if that is another node; None if it is this one, or nobody knows. Every
    call and every attempt calls it, in gRPC's own thread: it must not wait. `log_fault` returns why nobody can claim
    the job log; a call's own thread calls it where the owner does not answer: none will while the log is damaged.
    """

    def __init__(
        self,
        route: Callable[[], str | None],
        *,
        log_fault: Callable[[], IscpError | None] = lambda: None,
        tls: TlsSource | None = None,
    ) -> None:
        self._route = route
        self._log_fault = log_fault
        self._tls = tls
        self._channels: OrderedDict[str, grpc.Channel] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the channels; call it after the server has stopped."""
        with self._lock:
            channels, self._channels = self._channels, OrderedDict()
        for channel in channels.values():
            channel.close()

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        own = continuation(details)
        if own is None or details.method not in _FORWARDED or self._route() is None:
            return own
        if any(key == FORWARDED_KEY for key, _ in details.invocation_metadata or ()):
            return own
        # On the wire a single answer is a stream of one message.
        return grpc.unary_stream_rpc_method_handler(partial(self._forward, details.method, own))

    def answers(
        self, method: str, own: grpc.RpcMethodHandler, raw: bytes, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield the answers to a call that this node makes for its caller while it answers another call of them.

        `own` answers it where this node is the owner, and whatever else ends the call of `context`.
        """
        return self._forward(method, own, raw, context)

    def _forward(
        self, method: str, own: grpc.RpcMethodHandler, raw: bytes, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        caller = _Caller(context)
        remaining_s = caller.remaining_s
        retrying = Retrying(
            retry=retry_if_exception(self._may_pass),
            wait=wait_random_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S),
            stop=stop_when_event_set(caller.gone)
            | stop_before_delay(FORWARD_FOR_S if remaining_s is None else min(FORWARD_FOR_S, remaining_s)),
            sleep=sleep_using_event(caller.gone),
            reraise=True,
        )
        try:
            yield from retrying(lambda: self._begun(method, own, raw, context, caller))
        except _ForwardingError as failure:
            if not caller.gone.is_set():
                log.info("forward.failed", extra={"method": method, "owner": failure.address})
            if failure.nothing_done and (fault := self._log_fault()) is not None:
                abort(context, no_owner(fault))
            _relay(context, failure)

    def _may_pass(self, error: BaseException) -> bool:
        """Return whether another owner may answer soon."""
        nothing_done = isinstance(error, _ForwardingError) and error.nothing_done
        return nothing_done and not isinstance(self._log_fault(), JobLogDamaged)

    def _begun(
        self, method: str, own: grpc.RpcMethodHandler, raw: bytes, context: grpc.ServicerContext, caller: _Caller
    ) -> Iterator[bytes]:
        """Return the answer, of which the first message is there already: until then the call may be repeated."""
        address = self._route()
        if address is None:
            return _answer_here(own, raw, context)
        begin = self._channel(address).unary_stream(method)
        messages = _messages(address, caller.follow(begin(raw, timeout=caller.remaining_s, metadata=caller.metadata())))
        first = next(messages, None)
        return iter(()) if first is None else chain((first,), messages)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.pop(address, None) or open_channel(address, self._tls)
            self._channels[address] = channel
            oldest = self._channels.popitem(last=False)[1] if len(self._channels) > OWNER_CHANNELS_MAX else None
        # Without the lock: the calls that are still under way there end with it.
        if oldest is not None:
            oldest.close()
        return channel


def _messages(address: str, call: Any) -> Iterator[bytes]:
    try:
        yield from call
    except grpc.RpcError as error:
        raise _ForwardingError(address, error) from error


def _answer_here(own: grpc.RpcMethodHandler, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    request = own.request_deserializer(raw)
    answers = own.unary_stream(request, context) if own.response_streaming else (own.unary_unary(request, context),)
    for answer in answers:
        yield own.response_serializer(answer)


def _relay(context: grpc.ServicerContext, failure: _ForwardingError) -> NoReturn:
    """Answer the caller with the owner's own error; where nobody answered, with whether anything can have been done."""
    cause, text = failure.cause, failure.cause.details() or ""
    detail = tuple((key, value) for key, value in cause.trailing_metadata() or () if key == DETAIL_KEY)
    if not detail and never_sent(cause):
        abort(context, Unavailable(f"the owner at {failure.address} cannot be reached ({text})", remedy="Retry"))
    code = cause.code()
    if not detail and code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        # Not in gRPC's words for a call that was never sent: it may have been carried out.
        code = grpc.StatusCode.UNAVAILABLE
        text = f"the owner at {failure.address} went away before it answered ({text})"
    context.set_trailing_metadata(detail)
    context.abort(code, text)
    raise AssertionError("abort returned")


# --- jobs of the owner, for calls that any node answers by itself -----------------------------------------------------

_METHOD = f"/{pb.DESCRIPTOR.services_by_name['Admin'].full_name}/GetJob"


class OwnersJobs:
    """The jobs that callers name, as the owner knows them.

    GetJob is called in the name of whoever makes the call that needs the job: the owner decides about that call too.
    """

    def __init__(self, admin: AdminService, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._own = grpc.unary_unary_rpc_method_handler(
            JobServicer(admin).GetJob,
            request_deserializer=pb.GetJobRequest.FromString,
            response_serializer=pb.Job.SerializeToString,
        )

    def job(self, name: pb.JobName, context: grpc.ServicerContext) -> JobView:
        """Return the job; the error where there is none ends the call of `context`."""
        request = to_request(pb.GetJobRequest, job=name).SerializeToString()
        (answer,) = self._forwarding.answers(_METHOD, self._own, request, context)
        return JOB.from_wire(pb.Job.FromString(answer))


# --- the texts of requests --------------------------------------------------------------------------------------------

_JSON = "_json"
"""The end of the names of fields that a method bounds by itself."""


class RequestGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses requests that are no messages of the API, or whose texts nothing could take, before a method sees them.

    Guards the methods of the services for users; give it to a server after all other interceptors.
    """

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or there.request_streaming or details.method not in METHODS:
            return there

        def read(raw: bytes) -> Message | InvalidRequest:
            try:
                request: Message = there.request_deserializer(raw)
                _check_texts(request, "")
            except DecodeError as error:
                return InvalidRequest(
                    f"the message is none of {details.method}: {error}",
                    about="request",
                    remedy="Send texts in UTF-8, and fields of the types that the node's reflection names",
                )
            except InvalidRequest as error:
                return error
            return request

        def call(request: Message | InvalidRequest, context: grpc.ServicerContext) -> Any:
            if isinstance(request, InvalidRequest):
                abort(context, request)
            return behaviour_of(there)(request, context)

        return handler_around(there, call, request_deserializer=read)


def _check_texts(message: Message, path: str) -> None:
    """Raises InvalidRequest by the path of the first text that is too long, or holds what ends one elsewhere."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for where, one in _each(f"{path}{field.name}", value):
            if isinstance(one, Message):
                _check_texts(one, f"{where}.")
            elif not field.name.endswith(_JSON):
                _check_text(one, where)


def _each(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, Message)):
        yield path, value
    else:
        yield from ((f"{path}[{number}]", one) for number, one in enumerate(value))


def _check_text(text: str, path: str) -> None:
    if len(text) > NAME_CHARS_MAX:
        raise InvalidRequest(
            f"has {len(text)} characters, more than {NAME_CHARS_MAX}", field=path, remedy="Give a shorter one"
        )
    if "\0" in text:
        raise InvalidRequest("has a NUL character", field=path, remedy="Leave it out")


# --- traces -----------------------------------------------------------------------------------------------------------

_LASTING = methods_that(lambda _, rule: rule.lasts)


class TracedCalls(grpc.ServerInterceptor):  # type: ignore[misc]
    """Records users' calls as parts of their callers' traces.

    Give it to a server after the interceptors that know callers, and before those that pass calls on.

    Streams without an end are not recorded: their spans would never end either.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or details.method not in METHODS or details.method in _LASTING:
            return there

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._span(details.method, context):
                return behaviour_of(there)(request, context)

        def answers(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._span(details.method, context):
                yield from behaviour_of(there)(request, context)

        return handler_around(there, answers if there.response_streaming else answer)

    @contextmanager
    def _span(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        service, _, name = method.lstrip("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        parent = trace_in(context.invocation_metadata() or ())
        with self._tracer.span(f"{service}/{name}", attributes, parent=parent) as span:
            try:
                yield
            except Exception:
                code = context.code()  # an aborted call raises nothing that says why
                if isinstance(code, grpc.StatusCode):
                    span.fail(code.name, str(context.details() or b"", "utf-8", "replace"))
                raise


# --- health at an address of its own ----------------------------------------------------------------------------------
# Health is served alone, without TLS: kubelets do no TLS in their probes.

PROBES_MAX = 8
"""Health checks at a time at `health.listen`; one more is refused with RESOURCE_EXHAUSTED."""

_THREADS = 2


class HealthListener:
    """Serves the health of `servicer`, which whoever knows the node's state sets."""

    def __init__(self, servicer: health.HealthServicer, address: str) -> None:
        self._address = address
        silent = SilentCalls(_THREADS // 2)
        self._watch = ClientWatch()
        self._watch.add(silent.end_surplus)
        self._connections = ConnectionGuard(PROBE_CONNECTIONS_MAX)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="health"),
            interceptors=(SilentCallGuard(silent), self._connections),
            maximum_concurrent_rpcs=PROBES_MAX,
            options=server_bounds(PROBE_CONNECTIONS_MAX),
        )
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)

    def start(self) -> None:
        """Raises ConfigurationError if the address cannot be bound."""
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address}", field="health.listen", remedy="Is the port taken? Choose another"
            ) from error
        self._watch.add(partial(self._connections.make_room, port))
        self._watch.start()
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._watch.stop()
