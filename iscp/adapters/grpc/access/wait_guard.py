"""Bounds the calls that wait: of one caller, of one account, and of all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from iscp.adapters.grpc.access.guarded_context import principal_of
from iscp.adapters.grpc.channel.call_metadata import FORWARDED_KEY
from iscp.adapters.grpc.channel.grpc_errors import abort
from iscp.adapters.grpc.channel.method_kinds import handler_around
from iscp.core.access.service_table import methods_that
from iscp.core.settings.wait_bounds import WaitBounds
from iscp.core.values.errors import QueueFull

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
