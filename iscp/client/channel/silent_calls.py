"""Ends calls that occupy a thread while their client neither sends its request nor reads the answer.

gRPC gives a call a thread as soon as it begins, and so a few hundred calls without a request, on one connection, would
leave none for anybody else. Decides which are ended: those that take too long, and, where many wait, the oldest.

One thread of a server that ends, again and again, what its clients leave behind or take away from others.

Calls to one node, each repeated within its time where that is safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from iscp.client.channel.attempts import CallerBase, GivenToken, Notice
from iscp.client.channel.connection_guard import behaviour_of, handler_around
from iscp.client.channel.grpc_errors import abort
from iscp.model.values.errors import InvalidRequest
from iscp.ports.system import Clock
from iscp.system.tls.tls_files import GivenTls

log = logging.getLogger(__name__)

SILENT_MAX_S = 30.0
"""How long a call may wait for its request to come whole, or for a page of its answer to be read, and how long a stream
of reflection may last; then it is cancelled.
"""

SILENT_GIVE_WAY_S = 1.0
"""How long the oldest of the calls that so wait may do it where they are too many; then they are cancelled."""

SILENT_IN_POOL_MAX = 32
"""Calls that may so wait for longer than SILENT_GIVE_WAY_S in threads that only some methods use, as those of nodes."""


class SilentCalls:
    """The calls that wait for their clients, by the threads that they occupy. A ClientWatch ends those beyond the
    bound.

    `waiting_max`: how many may wait for longer than SILENT_GIVE_WAY_S in the server's own threads.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[ThreadPoolExecutor | None, OrderedDict[object, tuple[float, grpc.ServicerContext]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, pool: ThreadPoolExecutor | None, context: grpc.ServicerContext) -> Iterator[None]:
        """Count the call for the time of the block, which depends on the client alone."""
        call = object()
        with self._lock:
            self._waiting.setdefault(pool, OrderedDict())[call] = time.monotonic(), context
        try:
            yield
        finally:
            with self._lock:
                self._waiting[pool].pop(call, None)

    def end_surplus(self) -> None:
        if over := self._take_over(time.monotonic()):
            log.warning("grpc.silent_calls", extra={"ended": len(over)})
        for context in over:
            context.cancel()

    def _take_over(self, now_s: float) -> list[grpc.ServicerContext]:
        found = []
        with self._lock:
            for pool, calls in self._waiting.items():
                too_many = len(calls) - (self._waiting_max if pool is None else SILENT_IN_POOL_MAX)
                for call, (since_s, context) in list(calls.items()):
                    if now_s < since_s + (SILENT_GIVE_WAY_S if too_many > 0 else SILENT_MAX_S):
                        break
                    del calls[call]
                    found.append(context)
                    too_many -= 1
        return found


class SilentCallGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server before all other interceptors. Streams of `unbounded` methods may last; methods that are in
    `pools` run in threads of their own.

    On the wire a single request is a stream of one, and who waits for that knows the call, to end it.
    """

    def __init__(
        self, calls: SilentCalls, unbounded: Iterable[str] = (), pools: Mapping[str, ThreadPoolExecutor] | None = None
    ) -> None:
        self._calls = calls
        self._unbounded = frozenset(unbounded)
        self._pools = pools or {}

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or details.method in self._unbounded:
            return there
        method, kind = behaviour_of(there), _GuardedMethod
        if there.response_streaming:
            kind = _SentMethod if getattr(method, "experimental_non_blocking", False) else _PagedMethod
        guarded = kind(self._calls, method, there.request_streaming, self._pools.get(details.method))
        return handler_around(there, guarded, request_streaming=True)


class _GuardedMethod:
    """A method that answers once; gRPC reads its attributes."""

    def __init__(
        self,
        calls: SilentCalls,
        method: Callable[..., Any],
        request_streaming: bool,
        own: ThreadPoolExecutor | None = None,
    ) -> None:
        self._calls = calls
        self._method = method
        self._request_streaming = request_streaming
        pool = own or getattr(method, "experimental_thread_pool", None)
        self.experimental_thread_pool = pool if isinstance(pool, ThreadPoolExecutor) else None

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return self._method(self._request(requests, context), context)

    def _request(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        if self._request_streaming:
            return requests
        with self._waiting(context):
            if (request := next(requests, None)) is not None:
                return request
        return abort(context, InvalidRequest("the call has no request", about="request", remedy="Send one message"))

    def _waiting(self, context: grpc.ServicerContext) -> Any:
        return self._calls.waiting(self.experimental_thread_pool, context)


class _SentMethod(_GuardedMethod):
    """One that holds no thread once it has its request, and sends by a callback."""

    experimental_non_blocking = True

    def __call__(
        self,
        requests: Iterator[Any],
        context: grpc.ServicerContext,
        send_response_callback: Callable[[Any], None] | None = None,
    ) -> Any:
        return self._method(self._request(requests, context), context, send_response_callback)


class _PagedMethod(_GuardedMethod):
    """One that answers by pages, each of which is to be read."""

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        if self._request_streaming:
            with self._waiting(context):
                yield from self._method(requests, context)
            return
        for page in self._method(self._request(requests, context), context):
            with self._waiting(context):
                yield page


CLIENTS_CHECK_S = 0.5
"""How often a server counts calls that wait for their clients and connections without a call, and checks whether
clients of the gateway have closed theirs.
"""


class ClientWatch:
    """Runs all its checks, one after the other, between `start` and `stop`; a check must not wait."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iscp-clients", daemon=True)

    def add(self, check: Callable[[], None]) -> None:
        self._checks.append(check)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(CLIENTS_CHECK_S):
            for check in tuple(self._checks):
                try:
                    check()
                except Exception:  # the other checks go on
                    log.exception("grpc.check_failed")


R = TypeVar("R")


class Caller(CallerBase):
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: GivenTls = None,
        token: GivenToken = None,
        notice: Notice = lambda error, left_s: None,
        wait_for_ready: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(endpoint, timeout_s, tls, token, notice, wait_for_ready, clock)
        self._sleep = sleep
        self.channel = self._open_channels(grpc)

    def close(self) -> None:
        self._closed = True
        for each in self.channel.drain():
            each.close()

    def call(
        self,
        method: Callable[..., R],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over; `once`: as in Attempts."""
        self._refuse_closed()
        attempts = self._attempts(changes, once, timeout_s)
        while True:
            try:
                return method(request, **attempts.begin(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except ValueError:  # gRPC's own: another thread has closed the channel
                self._refuse_closed()
                raise
            self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return the method with its streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, **how: Any) -> list[Any]:
        return list(method(request, **how))

    return call
