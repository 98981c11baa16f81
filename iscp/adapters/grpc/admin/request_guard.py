"""Refuses requests that are no messages of the API, or whose texts nothing could take, before a method sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from iscp.adapters.grpc.access.request_accounts import METHODS
from iscp.adapters.grpc.channel.grpc_errors import abort
from iscp.adapters.grpc.channel.method_kinds import behaviour_of, handler_around
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import NAME_CHARS_MAX

_JSON = "_json"
"""The end of the names of fields that a method bounds by itself."""


class RequestGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Guards the methods of the services for users; give it to a server after all other interceptors."""

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
