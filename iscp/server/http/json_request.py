"""One HTTP request of the gateway: read within bounds, answered, and the connection closed.

Turns the evidence of who makes a request by HTTP into metadata of the call that it leads to.

The call goes to this node's own gRPC port, where it is decided; the node is believed there by its certificate.

Notices that a caller has gone while its answer is awaited, and ends the call.
"""

from __future__ import annotations

import io
import json
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from iscp.client.channel.call_metadata import CALLER_KEY, Metadata
from iscp.client.channel.grpc_errors import status_of
from iscp.model.values.errors import IscpError, NotAuthenticated, PermanentError
from iscp.server.access.call_audit import NAMES_MAX, TOKEN_KEY, statement
from iscp.server.http.json_calls import METHODS, JsonCalls, document, media_type, path_of
from iscp.system.http_exchange import BoundedReader
from iscp.system.tls.tls_files import shown_names


def metadata_of(headers: Message, connection: Any, client_address: tuple[Any, ...]) -> Metadata:
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


_CLOSED = getattr(select, "POLLRDHUP", 0)
"""Linux says so although there may be bytes that nobody reads; elsewhere only broken connections are noticed."""


class CallerWatch:
    """All connections whose answers are awaited; a ClientWatch checks them."""

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
    """Answers one request of a connection; the server has `calls`, `callers`, `pending`, `bounds` and `version`."""

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
