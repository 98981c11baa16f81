"""Lets any node answer users: their calls go on to the owner, as bytes, and its answers come back.

Decides where a call is answered, and when it is repeated: only where nothing can have been done, because it was
never sent, or came to a node that is not the owner. Knows nothing of what is requested.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import grpc
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_before_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from iscp.adapters.grpc.access.guarded_context import said_of_caller
from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY, FORWARDED_KEY, open_channel
from iscp.adapters.grpc.channel.grpc_errors import DETAIL_KEY, abort, from_rpc, never_sent
from iscp.adapters.grpc.channel.trace_metadata import with_trace
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.access.service_table import methods_that
from iscp.core.values.errors import IscpError, JobLogDamaged, NotOwner, Unavailable, no_owner

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
