"""Handlers of gRPC's methods: those of a service by its descriptor, and another one around a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

_KINDS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return what the handler calls, whichever of the four kinds it is."""
    kinds = handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream
    found: Callable[..., Any] = next(each for each in kinds if each is not None)
    return found


def handler_around(
    handler: grpc.RpcMethodHandler,
    behaviour: Callable[..., Any],
    *,
    request_streaming: bool | None = None,
    request_deserializer: Callable[[bytes], Any] | None = None,
) -> grpc.RpcMethodHandler:
    """Return a handler like another one, with another behaviour; what is None stays as it is."""
    streaming = handler.request_streaming if request_streaming is None else request_streaming
    return _KINDS[streaming, handler.response_streaming](
        behaviour,
        request_deserializer=request_deserializer or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def handlers_of(
    service: ServiceDescriptor, behaviours: Mapping[str, Callable[..., Any]]
) -> Mapping[str, grpc.RpcMethodHandler]:
    """Return a handler for each method of the service. Raises KeyError where `behaviours` has none."""
    return {
        method.name: _KINDS[method.client_streaming, method.server_streaming](
            behaviours[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
