"""One HTTP request of the gateway: read within bounds, answered, and the connection closed."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from iscp.adapters.gateway.caller_headers import metadata_of
from iscp.adapters.gateway.caller_watch import CallerWatch
from iscp.adapters.gateway.json_calls import METHODS, JsonCalls
from iscp.adapters.gateway.openapi import document, media_type, path_of
from iscp.adapters.grpc.channel.grpc_errors import status_of
from iscp.adapters.system.bounded_reader import BoundedReader
from iscp.core.values.errors import IscpError, PermanentError

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
