"""Records users' calls as parts of their callers' traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from iscp.adapters.grpc.access.request_accounts import METHODS
from iscp.adapters.grpc.channel.method_kinds import behaviour_of, handler_around
from iscp.adapters.grpc.channel.trace_metadata import trace_in
from iscp.core.access.service_table import methods_that
from iscp.ports.tracing import Tracer

_LASTING = methods_that(lambda _, rule: rule.lasts)


class TracedCalls(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server after the interceptors that know callers, and before those that pass calls on.

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
