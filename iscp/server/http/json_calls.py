"""Calls of the service `Admin` as JSON, which knows no HTTP, and the OpenAPI document of them.

A request is read by its descriptor, goes to this node's own gRPC port, and its answers come back. Validation,
deadlines, waits and forwarding to the owner are those of the gRPC service: there is no second path.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from iscp.client.channel.grpc_calls import Metadata, from_rpc
from iscp.model.access.service_table import RULES, SERVICE_OF
from iscp.model.values.errors import InvalidRequest, QueueFull
from iscp.server.access import call_audit

CALLS_MAX = 192
"""Calls by JSON at a time; one more is refused with QUEUE_FULL."""

LONG_CALLS_MAX = 128
"""Calls of WaitJob and VerifyJob among these, which must not take all places; one more is refused with QUEUE_FULL. They
count as waits of their callers too.
"""

CALL_TIMEOUT_S = 60.0
"""How long a call by JSON may take, beyond the `timeout_s` of its request; then it fails with TIMEOUT."""

LONG_CALL_MAX_S = 600.0
"""Longest `timeout_s` of a request by JSON, as proxies in between end connections anyway. A longer one is refused."""

NESTING_MAX = 32
"""Levels of a request's JSON; a deeper one is refused."""

METHODS: Mapping[str, MethodDescriptor] = {
    method.name: method for name, method in call_audit.METHODS.items() if SERVICE_OF[name].gateway
}


class JsonCalls:
    """Calls over `channel`, which leads to this node; `endpoint` is what errors call it."""

    def __init__(self, channel: grpc.Channel, endpoint: str) -> None:
        self._channel = channel
        self._endpoint = endpoint
        self._places = threading.BoundedSemaphore(CALLS_MAX)
        self._long_places = threading.BoundedSemaphore(LONG_CALLS_MAX)

    def answers(
        self,
        method: MethodDescriptor,
        body: bytes,
        metadata: Metadata = (),
        begun: Callable[[Callable[[], object]], object] = lambda end: None,
    ) -> Iterator[bytes]:
        """Yield one line of JSON for each message of the answer. Raises IscpError, before the first and between two.

        `metadata`: who calls. `begun` is given what ends the call, from whichever thread.
        """
        request = read_request(method, body)
        timeout_s = float(getattr(request, "timeout_s", 0.0))
        name = f"/{method.containing_service.full_name}/{method.name}"
        rule = RULES[name]
        if timeout_s > LONG_CALL_MAX_S:
            raise InvalidRequest(
                f"must be at most {LONG_CALL_MAX_S:.0f} seconds", field="timeout_s", remedy="Call again, or use gRPC"
            )
        # A timeout that is no time is refused by the service.
        wait_s = timeout_s if timeout_s >= 0 else 0.0
        with self._place(rule.waits):
            # On the wire a single answer is a stream of one message.
            call = self._channel.unary_stream(
                name,
                request_serializer=type(request).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )(request, timeout=CALL_TIMEOUT_S + wait_s, metadata=metadata)
            begun(call.cancel)
            try:
                for answer in call:
                    yield _to_json(answer)
            except grpc.RpcError as error:
                raise from_rpc(error, self._endpoint, changes=rule.changes) from error
            finally:
                call.cancel()

    @contextmanager
    def _place(self, long: bool) -> Iterator[None]:
        with _take_place(self._places, CALLS_MAX):
            if not long:
                yield
                return
            with _take_place(self._long_places, LONG_CALLS_MAX):
                yield


@contextmanager
def _take_place(places: threading.BoundedSemaphore, count: int) -> Iterator[None]:
    if not places.acquire(blocking=False):
        raise QueueFull(f"{count} calls by JSON are under way already", remedy="Retry later")
    try:
        yield
    finally:
        places.release()


def read_request(method: MethodDescriptor, body: bytes) -> Message:
    """Return the request that a JSON object stands for; an empty body is an empty one. Raises InvalidRequest."""
    request: Message = GetMessageClass(method.input_type)()
    try:
        text = body.decode() or "{}"
        if not text.lstrip().startswith("{"):  # of a list protobuf would read the names that are in it
            raise ValueError("it is not an object")
        _check_nesting(text)
        json_format.Parse(text, request, max_recursion_depth=NESTING_MAX)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        why = str(error).partition("\n")[0][:300] or type(error).__name__
        raise InvalidRequest(
            f"is no {method.input_type.name}: {why}", field="body", remedy="See GET /v1/openapi.json"
        ) from error
    return request


def _check_nesting(text: str) -> None:
    """Check the depth before a parser that recurses sees it; brackets within strings count too where they open more
    than they close.
    """
    depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            escaped, in_string = char == "\\" and not escaped, char != '"' or escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > NESTING_MAX:
                raise ValueError(f"it is nested more than {NESTING_MAX} levels deep")
        elif char in "]}":
            depth -= 1


def _to_json(answer: Message) -> bytes:
    found: dict[str, Any] = json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


_TEXT = {"type": "string"}
# --- the OpenAPI document, made of the descriptors of the service `Admin` ---------------------------------------------

_LONG = {"type": "string", "format": "int64"}
_INT = {"type": "integer", "format": "int32"}
_TYPES: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_INT32: _INT,
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0},
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_UINT64: _LONG,
}

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": _INT, "name": _TEXT, "field": _TEXT, "message": _TEXT, "remedy": _TEXT},
            "required": ["code", "name", "field", "message", "remedy"],
        }
    },
    "required": ["error"],
}


def document(methods: Iterable[MethodDescriptor], version: str) -> dict[str, Any]:
    """Return all methods as paths, and all messages that they use as schemas; 64-bit integers are strings, as in
    protobuf.
    """
    schemas: dict[str, Any] = {"Error": ERROR_SCHEMA}
    paths = {}
    for method in methods:
        for message in (method.input_type, method.output_type):
            _add_schema(message, schemas)
        paths[path_of(method)] = {"post": _operation(method)}
    return {
        "openapi": "3.0.3",
        "info": {"title": "iscp Admin", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def path_of(method: MethodDescriptor) -> str:
    return f"/v1/{method.name}"


def media_type(method: MethodDescriptor) -> str:
    """Return the media type of the method's answers: a stream has a line for each message."""
    return "application/x-ndjson" if method.server_streaming else "application/json"


def _operation(method: MethodDescriptor) -> dict[str, Any]:
    answer = {media_type(method): {"schema": _reference(method.output_type.name)}}
    return {
        "operationId": method.name,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(method.input_type.name)}},
        },
        "responses": {
            "200": {"description": method.output_type.name, "content": answer},
            "default": {"description": "An error", "content": {"application/json": {"schema": _reference("Error")}}},
        },
    }


def _add_schema(message: Descriptor, schemas: dict[str, Any]) -> None:
    if message.name in schemas:
        return
    properties: dict[str, Any] = {}
    schemas[message.name] = {"type": "object", "properties": properties, "additionalProperties": False}
    for each in message.fields:
        properties[each.name] = _field_schema(each, schemas)


def _field_schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _single(value, schemas)}
    single = _single(field, schemas)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        _add_schema(field.message_type, schemas)
        return _reference(field.message_type.name)
    if field.enum_type is not None:
        return {"type": "string", "enum": [each.name for each in field.enum_type.values]}
    return _TYPES[field.type]


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
