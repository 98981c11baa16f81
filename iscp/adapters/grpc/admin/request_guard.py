"""Refuses requests that are no messages of the API, or whose texts nothing could take, before a method sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from iscp.adapters.grpc.channel.grpc_errors import abort
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import NAME_CHARS_MAX

_JSON = "_json"
"""What a method bounds by itself: a field whose name ends so."""


class RequestGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server after all other interceptors; it looks at the methods of the services `prefixes` begin."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or there.request_streaming or not details.method.startswith(self._prefixes):
            return there
        wrap = grpc.unary_stream_rpc_method_handler if there.response_streaming else grpc.unary_unary_rpc_method_handler
        method = there.unary_stream if there.response_streaming else there.unary_unary

        def read(raw: bytes) -> Message | InvalidRequest:
            try:
                request: Message = there.request_deserializer(raw)
                _check_texts(request, "")
            except DecodeError as error:
                return InvalidRequest(
                    f"the message is none of {details.method}: {error}",
                    field="request",
                    remedy="Send texts in UTF-8, and fields of the types that the node's reflection names",
                )
            except InvalidRequest as error:
                return error
            return request

        def call(request: Message | InvalidRequest, context: grpc.ServicerContext) -> Any:
            if isinstance(request, InvalidRequest):
                abort(context, request)
            return method(request, context)

        return wrap(call, request_deserializer=read, response_serializer=there.response_serializer)


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
