"""Calls of the service `Admin` as JSON over HTTP: the requests of the gateway, the calls that they lead to, and the
OpenAPI document.

Validation, deadlines, waits and forwarding to the owner are those of the gRPC service: there is no second path.
"""

from __future__ import annotations

import io
import json
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from email.message import Message as HttpHeaders
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from iscp.client.channel.grpc_calls import CALLER_KEY, Metadata, from_rpc, status_of
from iscp.model.access.service_table import RULES, SERVICE_OF
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthenticated, PermanentError, QueueFull
from iscp.server.access import call_audit
from iscp.server.access.call_audit import NAMES_MAX, TOKEN_KEY, statement
from iscp.system.http_exchange import BoundedReader
from iscp.system.tls.tls_files import shown_names

# --- calls by JSON ----------------------------------------------------------------------------------------------------
# A request is read by its descriptor and goes to this node's own gRPC port, and its answers come back. This part knows
# no HTTP.

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
        watching: Callable[[Callable[[], object]], AbstractContextManager[object]] = nullcontext,
    ) -> Iterator[bytes]:
        """Yield one line of JSON for each message of the answer. Raises IscpError, before the first and between two.

        `metadata`: who calls. `watching`: around the wait for the answer; it gets what ends the call.
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
            try:
                with watching(call.cancel):
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


# --- the OpenAPI document ---------------------------------------------------------------------------------------------
# The document is made of the descriptors of the service `Admin`.

_TEXT = {"type": "string"}
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


# --- who makes a request ----------------------------------------------------------------------------------------------
# The evidence of who makes a request by HTTP becomes metadata of the call that the request leads to. The call goes to
# this node's own gRPC port, where it is decided; the node is believed there by its certificate.


def metadata_of(headers: HttpHeaders, connection: Any, client_address: tuple[Any, ...]) -> Metadata:
    """Raises NotAuthenticated for what cannot be passed on."""
    tokens = [str(value) for value in headers.get_all(TOKEN_KEY, [])]
    if any(not (value.isascii() and value.isprintable()) for value in tokens):
        raise NotAuthenticated("must be `Bearer` and one token", field=TOKEN_KEY, remedy="Send it once, and so")
    metadata = tuple((TOKEN_KEY, value) for value in tokens)
    if not isinstance(connection, ssl.SSLSocket):
        return metadata  # nobody would believe the rest of the statement
    host, port = client_address[:2]
    family = "ipv6" if ":" in host else "ipv4"
    shown = f"[{host}]" if family == "ipv6" else host
    return (*metadata, (CALLER_KEY, statement(_names_of(connection), f"{family}:{shown}:{port}")))


def _names_of(connection: ssl.SSLSocket) -> frozenset[str]:
    shown = shown_names(connection.getpeercert(binary_form=True) or b"")
    names = shown.dns | shown.others
    if len(names) > NAMES_MAX:
        raise NotAuthenticated(
            f"has {len(names)} names, more than {NAMES_MAX}", field="certificate", remedy="Use gRPC, or another one"
        )
    return names


# --- callers that go while their answer is awaited --------------------------------------------------------------------

_CLOSED = getattr(select, "POLLRDHUP", 0)
"""Linux says so although there may be bytes that nobody reads; elsewhere only broken connections are noticed."""


class CallerWatch:
    """Notices that a caller has gone while its answer is awaited, and ends the call.

    The watch has all connections whose answers are awaited; a ClientWatch checks them.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def watching(self, connection: socket.socket, gone: Callable[[], object]) -> Iterator[None]:
        """Watch the connection for the time of the block. `gone` is called at most once, by another thread, and must
        not wait.
        """
        descriptor = connection.fileno()
        with self._lock:
            self._awaited[descriptor] = gone
        try:
            yield
        finally:
            with self._lock:  # before the connection is closed, and its descriptor another one's
                self._awaited.pop(descriptor, None)

    def end_gone(self) -> None:
        """End the calls whose clients have closed their connection."""
        with self._lock:
            found = select.poll()
            for descriptor in self._awaited:
                found.register(descriptor, _CLOSED)
            gone = [self._awaited.pop(descriptor) for descriptor, _ in found.poll(0)]
        for each in gone:
            each()


# --- requests by HTTP -------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 32 * 1024
"""Bytes of a request's line and headers; with more the connection is closed."""

BODY_BYTES_MAX = 4 * 1024**2
"""Bytes of a request's body; a larger one is refused with 413. Many jobs are registered in several requests."""

DISCARDED_BYTES_MAX = 32 * 1024**2
"""Bytes of a refused request that are read and dropped, so that its client reads the answer; then it is cut off."""

READ_TIMEOUT_S = 10.0
"""How long a request may take to come in, from the connection to its last byte; then the connection is closed."""

WRITE_TIMEOUT_S = 30.0
"""How long a client may take to receive a message of an answer; then the connection is closed."""

_DOCUMENTS = ("/v1/openapi.json", "/v1", "/v1/")

_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.CANCELLED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
}
"""HTTP statuses by codes of gRPC; all others are 500, as an outcome that is not known: the call may have been carried
out.
"""


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    read_timeout_s: float = READ_TIMEOUT_S
    write_timeout_s: float = WRITE_TIMEOUT_S


class RefusedError(Exception):
    """The request is none of the gateway's: an HTTP status, and the error to show."""

    def __init__(self, status: HTTPStatus, error: IscpError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


def _refused(status: HTTPStatus, message: str, remedy: str) -> RefusedError:
    return RefusedError(status, PermanentError(message, remedy=remedy))


class JsonRequest(BaseHTTPRequestHandler):
    """One HTTP request of the gateway: read within bounds, answered, and the connection closed.

    The server has `calls`, `callers`, `pending`, `bounds` and `version`.
    """

    protocol_version = "HTTP/1.1"
    server_version = "iscp"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._bounds: GatewayBounds = self.server.bounds  # type: ignore[attr-defined]
        self._raw = BoundedReader(self.connection, self._bounds.read_timeout_s, HEAD_BYTES_MAX)
        self.rfile = io.BufferedReader(self._raw)

    def handle(self) -> None:
        self.close_connection = True
        try:
            self.handle_one_request()
        except OSError as error:  # the client is gone, too slow, or sends too much
            log.info("gateway.cut_off", extra={"why": str(error) or type(error).__name__})

    def parse_request(self) -> bool:
        """Parse one request a connection: connections that stayed open would have to be bounded."""
        parsed = super().parse_request()
        self.close_connection = True
        return parsed

    def do_GET(self) -> None:
        self._answer(self._read_documents)

    def do_POST(self) -> None:
        self._answer(self._call)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an error of http.server itself in the form of all errors."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what it calls a verb for which there is no do_…
            self._answer(self._refuse_verb)
            return
        status = HTTPStatus(code)
        self._send_error(status, PermanentError(message or status.phrase, remedy="See docs/gateway.md"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug("gateway.request", extra={"said": format % args})

    def _answer(self, act: Any) -> None:
        try:
            act()
        except RefusedError as refused:
            self._send_error(refused.status, refused.error)
            self._discard()
        except OSError:
            raise
        except Exception as error:
            if not isinstance(error, IscpError):
                log.exception("gateway.failed")
                error = IscpError(f"unforeseen {type(error).__name__}", remedy="See the node's log")
            self._send_error(_STATUSES.get(status_of(error), HTTPStatus.INTERNAL_SERVER_ERROR), error)

    def _read_documents(self) -> None:
        match self.path:
            case "/v1/openapi.json":
                version: str = self.server.version  # type: ignore[attr-defined]
                self._send_json(HTTPStatus.OK, document(METHODS.values(), version))
            case "/v1" | "/v1/":
                self._send_json(HTTPStatus.OK, {"methods": [_listed(each) for each in METHODS.values()]})
            case _:
                self._refuse_verb()

    def _refuse_verb(self) -> None:
        if self.path in _DOCUMENTS:
            raise _refused(HTTPStatus.METHOD_NOT_ALLOWED, "documents are read by GET", "Send a GET")
        if self.path.removeprefix("/v1/") in METHODS:
            raise _refused(HTTPStatus.METHOD_NOT_ALLOWED, "methods are called by POST", "Send a POST")
        raise _unknown(self.path)

    def _call(self) -> None:
        method = METHODS.get(self.path.removeprefix("/v1/")) if self.path.startswith("/v1/") else None
        if method is None:
            raise _unknown(self.path)
        calls: JsonCalls = self.server.calls  # type: ignore[attr-defined]
        body = self._read_body()
        self.server.pending.leave(self.client_address)  # type: ignore[attr-defined]
        metadata = metadata_of(self.headers, self.connection, self.client_address)
        callers: CallerWatch = self.server.callers  # type: ignore[attr-defined]
        answers = calls.answers(method, body, metadata, partial(callers.watching, self.connection))
        try:
            first = next(answers, None)
            if method.server_streaming:
                self._send_stream(first, answers)
            else:
                self._send(HTTPStatus.OK, first or b"{}\n", media_type(method))
        finally:
            answers.close()  # type: ignore[attr-defined]

    def _read_body(self) -> bytes:
        # A page in somebody's browser cannot leave `Origin` out, nor send this type without being allowed to.
        if "origin" in self.headers:
            raise _refused(HTTPStatus.FORBIDDEN, "browsers may not call this", "Call it from a program")
        if self.headers.get_content_type() != "application/json" or "content-type" not in self.headers:
            raise _refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is not JSON", "Send content-type: application/json"
            )
        lengths = self.headers.get_all("content-length", [])
        if "transfer-encoding" in self.headers or len(lengths) != 1:
            raise _refused(HTTPStatus.LENGTH_REQUIRED, "the body has no length", "Send one content-length")
        if not (lengths[0].isascii() and lengths[0].isdecimal()) or len(lengths[0]) > 12:
            raise _refused(HTTPStatus.BAD_REQUEST, "content-length is not a number", "Send how many bytes follow")
        if (length := int(lengths[0])) > BODY_BYTES_MAX:
            raise _refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {length} bytes, more than {BODY_BYTES_MAX}",
                "Send it in several requests",
            )
        self._raw.allow(length)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the request ends too early")
        return body

    def _send_stream(self, first: bytes | None, more: Iterator[bytes]) -> None:
        """Send messages, whose end is the connection's; an error between two of them is a last line of its own."""
        self._begin(HTTPStatus.OK, "application/x-ndjson", None)
        try:
            for line in filter(None, (first,)):
                self._write(line)
            for line in more:
                self._write(line)
        except IscpError as error:
            self._write(_as_json(_shown(error)))

    def _send_error(self, status: HTTPStatus, error: IscpError) -> None:
        self._send_json(status, _shown(error))

    def _discard(self) -> None:
        """A connection that is closed before all was read is reset, and the answer may be lost."""
        self.connection.shutdown(socket.SHUT_WR)
        self._raw.allow(DISCARDED_BYTES_MAX)
        while self.rfile.read1(64 * 1024):
            pass

    def _send_json(self, status: HTTPStatus, content: object) -> None:
        self._send(status, _as_json(content), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self._begin(status, kind, len(content))
        self._write(content)

    def _begin(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.connection.settimeout(self._bounds.write_timeout_s)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.send_header("x-content-type-options", "nosniff")
        if length is not None:
            self.send_header("content-length", str(length))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("www-authenticate", "Bearer")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("allow", "GET" if self.path in _DOCUMENTS else "POST")
        self.end_headers()

    def _write(self, content: bytes) -> None:
        self.connection.settimeout(self._bounds.write_timeout_s)
        self.wfile.write(content)


def _unknown(path: str) -> RefusedError:
    return _refused(HTTPStatus.NOT_FOUND, f"there is no {path[:200]}", "GET /v1 lists what there is")


def _listed(method: MethodDescriptor) -> dict[str, object]:
    return {
        "method": method.name,
        "path": path_of(method),
        "request": method.input_type.name,
        "answer": method.output_type.name,
        "stream": method.server_streaming,
    }


def _shown(error: IscpError) -> dict[str, object]:
    detail = {"code": int(error.code), "name": error.code.name, "field": error.field}
    return {"error": {**detail, "message": error.message, "remedy": error.remedy}}


def _as_json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
