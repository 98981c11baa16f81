"""The service `Admin` as JSON over HTTP, on a port of its own: the requests, who makes them, and the server.

Each request has a connection of its own, whose end is the end of its answer. A call waits in a thread for what gRPC
answers, and ends when its caller goes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor

from iscp.client.channel.grpc_calls import CALLER_KEY, Metadata, open_channel, status_of
from iscp.model.values.errors import ConfigurationError, IscpError, NotAuthenticated, PermanentError
from iscp.server.access.call_audit import NAMES_MAX, TOKEN_KEY, statement
from iscp.server.http.http_server import NAMES_STATE, REQUEST_S, HttpBounds, HttpServer
from iscp.server.http.json_calls import CALLS_MAX, METHODS, JsonCalls, document, media_type, path_of
from iscp.system.tls.tls_files import TlsSource, reachable

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 4 * 1024**2
"""Bytes of a request's body; a larger one is refused with 413. Many jobs are registered in several requests."""

DISCARDED_BYTES_MAX = 32 * 1024**2
"""Bytes of a refused request that are read and dropped, so that its client reads the answer; then it is cut off."""

DISCARD_S = 1.0
"""Seconds without a byte after which nothing more of a refused request is awaited."""

WRITE_TIMEOUT_S = 30.0
"""How long a client may take to receive a message of an answer; then the connection is closed."""

REFUSING_THREADS = 8
"""Threads beyond those of CALLS_MAX calls, in which calls are refused that are too many."""

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

GATEWAY_BOUNDS = HttpBounds(REQUEST_S, WRITE_TIMEOUT_S)

T = TypeVar("T")


class RefusedError(Exception):
    """The request is none of the gateway's: an HTTP status, and the error to show."""

    def __init__(self, status: HTTPStatus, error: IscpError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


def _refused(status: HTTPStatus, message: str, remedy: str) -> RefusedError:
    return RefusedError(status, PermanentError(message, remedy=remedy))


# --- who calls --------------------------------------------------------------------------------------------------------


def metadata_of(scope: Mapping[str, Any]) -> Metadata:
    """Return the evidence of who makes a request as metadata of the call that the request leads to.

    The call goes to this node's own gRPC port, where it is decided; the node is believed there by its certificate.
    Raises NotAuthenticated for what cannot be passed on.
    """
    tokens = _header(scope, TOKEN_KEY)
    if any(not (value.isascii() and value.isprintable()) for value in tokens):
        raise NotAuthenticated("must be `Bearer` and one token", field=TOKEN_KEY, remedy="Send it once, and so")
    metadata = tuple((TOKEN_KEY, value) for value in tokens)
    names: frozenset[str] | None = scope.get("state", {}).get(NAMES_STATE)
    if names is None:
        return metadata  # nobody would believe the rest of the statement
    if len(names) > NAMES_MAX:
        raise NotAuthenticated(
            f"has {len(names)} names, more than {NAMES_MAX}", field="certificate", remedy="Use gRPC, or another one"
        )
    host, port = scope["client"]
    family, shown = ("ipv6", f"[{host}]") if ":" in host else ("ipv4", host)
    return (*metadata, (CALLER_KEY, statement(names, f"{family}:{shown}:{port}")))


def _header(scope: Mapping[str, Any], name: str) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name.lower().encode()]


# --- requests ---------------------------------------------------------------------------------------------------------


class GatewayApp:
    """The application of the gateway (ASGI)."""

    def __init__(self, version: str, calls: JsonCalls) -> None:
        self._version = version
        self._calls = calls
        self._threads = ThreadPoolExecutor(CALLS_MAX + REFUSING_THREADS, thread_name_prefix="iscp-gateway-call")

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        request = _Request(scope, receive, send)
        try:
            await self._answer(request)
        except RefusedError as refused:
            await request.refuse(refused)
        except IscpError as error:
            await request.send_error(_STATUSES.get(status_of(error), HTTPStatus.INTERNAL_SERVER_ERROR), error)
        except Exception as error:
            log.exception("gateway.failed")
            unforeseen = IscpError(f"unforeseen {type(error).__name__}", remedy="See the node's log")
            await request.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, unforeseen)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, request: _Request) -> None:
        match request.method, request.path:
            case "GET", "/v1/openapi.json":
                await request.send_json(HTTPStatus.OK, document(METHODS.values(), self._version))
            case "GET", "/v1" | "/v1/":
                await request.send_json(HTTPStatus.OK, {"methods": [_listed(each) for each in METHODS.values()]})
            case "POST", path if path.startswith("/v1/") and path.removeprefix("/v1/") in METHODS:
                await self._call(request, METHODS[path.removeprefix("/v1/")])
            case _, path:
                raise _misaddressed(path)

    async def _call(self, request: _Request, method: MethodDescriptor) -> None:
        body = await request.read_body()
        call = _AwaitedCall()
        answers = self._calls.answers(method, body, metadata_of(request.scope), call.take_end)
        watch = asyncio.create_task(call.end_when_gone(request.receive))
        try:
            if method.server_streaming:
                await self._send_stream(request, answers)
            else:
                answer = await self._in_thread(partial(b"".join, answers))
                await request.send(HTTPStatus.OK, answer or b"{}\n", media_type(method))
        finally:
            watch.cancel()
            call.end()

    async def _send_stream(self, request: _Request, answers: Iterator[bytes]) -> None:
        """Send messages, whose end is the connection's; an error between two of them is a last line of its own."""
        line = await self._in_thread(partial(next, answers, None))
        await request.begin(HTTPStatus.OK, "application/x-ndjson", None)
        try:
            while line is not None:
                await request.write(line)
                line = await self._in_thread(partial(next, answers, None))
        except IscpError as error:
            await request.write(_as_json(_shown(error)))
        await request.write(b"", more=False)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


class _AwaitedCall:
    """One call of gRPC, which ends when its caller has gone, be it before the call has begun."""

    def __init__(self) -> None:
        self._end: Callable[[], object] | None = None
        self._gone = False

    def take_end(self, end: Callable[[], object]) -> None:
        self._end = end
        if self._gone:
            end()

    def end(self) -> None:
        self._gone = True
        if self._end is not None:
            self._end()

    async def end_when_gone(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end()


class _Request:
    """One request of a connection: read within bounds, answered, and the connection closed."""

    def __init__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self.method: str = scope["method"]
        query = scope["query_string"].decode("latin-1")
        self.path: str = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")

    async def read_body(self) -> bytes:
        length = self._checked_length()
        body = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _refused(HTTPStatus.BAD_REQUEST, "the request ends too early", "Send all of it")
            body += message["body"]
            if not message["more_body"]:
                assert len(body) == length  # the server has seen to it
                return bytes(body)

    def _checked_length(self) -> int:
        # A page in somebody's browser cannot leave `Origin` out, nor send this type without being allowed to.
        if _header(self.scope, "origin"):
            raise _refused(HTTPStatus.FORBIDDEN, "browsers may not call this", "Call it from a program")
        kinds = _header(self.scope, "content-type")
        if [each.partition(";")[0].strip().lower() for each in kinds] != ["application/json"]:
            raise _refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is not JSON", "Send content-type: application/json"
            )
        lengths = _header(self.scope, "content-length")
        if _header(self.scope, "transfer-encoding") or len(lengths) != 1:
            raise _refused(HTTPStatus.LENGTH_REQUIRED, "the body has no length", "Send one content-length")
        if len(lengths[0]) > len(str(BODY_BYTES_MAX)) or (length := int(lengths[0])) > BODY_BYTES_MAX:
            raise _refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has more than {BODY_BYTES_MAX} bytes",
                "Send it in several requests",
            )
        return length

    async def refuse(self, refused: RefusedError) -> None:
        """Answer, and drop what is still being sent: a connection that is closed before all was read is reset, and the
        answer may be lost.
        """
        content = _as_json(_shown(refused.error))
        await self.begin(refused.status, "application/json", len(content))
        await self.write(content)
        dropped = 0
        while dropped <= DISCARDED_BYTES_MAX:
            try:
                message = await asyncio.wait_for(self.receive(), DISCARD_S)
            except TimeoutError:
                break
            if message["type"] == "http.disconnect" or not message["more_body"]:
                break
            dropped += len(message["body"])
        await self.write(b"", more=False)

    async def send_error(self, status: HTTPStatus, error: IscpError) -> None:
        await self.send_json(status, _shown(error))

    async def send_json(self, status: HTTPStatus, content: object) -> None:
        await self.send(status, _as_json(content), "application/json")

    async def send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        await self.begin(status, kind, len(content))
        await self.write(content, more=False)

    async def begin(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        headers = {"content-type": kind, "connection": "close", "x-content-type-options": "nosniff"}
        if length is not None:
            headers["content-length"] = str(length)
        if status is HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = "GET" if self.path in _DOCUMENTS else "POST"
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status.value, "headers": encoded})

    async def write(self, content: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


def _misaddressed(path: str) -> RefusedError:
    if path in _DOCUMENTS:
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "documents are read by GET", "Send a GET")
    if path.startswith("/v1/") and path.removeprefix("/v1/") in METHODS:
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "methods are called by POST", "Send a POST")
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


# --- the server -------------------------------------------------------------------------------------------------------


class AdminEndpoint(Protocol):
    """This node's gRPC server; `address` is known once it has started."""

    @property
    def address(self) -> str: ...

    def start(self) -> None: ...

    def ready(self) -> None: ...

    def stop(self, grace_s: float = ...) -> None: ...


class GatewayServer:
    """Serves beside `admin`, with which it starts and stops. `address` is HOST:PORT, and port 0 takes any free one.

    If `tls` is given, HTTP is served by it, and clients need a certificate of its authority if there is one, as for
    gRPC.
    """

    def __init__(
        self,
        admin: AdminEndpoint,
        address: str,
        version: str,
        *,
        tls: TlsSource | None = None,
        bounds: HttpBounds = GATEWAY_BOUNDS,
    ) -> None:
        self._admin = admin
        self._address = address
        self._version = version
        self._tls = tls
        self._bounds = bounds
        self._server: HttpServer | None = None
        self._app: GatewayApp | None = None
        self._channel: grpc.Channel | None = None

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if it cannot be had."""
        self._admin.start()
        try:
            self._server = HttpServer("gateway.listen", self._address, self._tls, self._bounds)
        except ConfigurationError:
            self._admin.stop(0.0)
            raise
        self._address = self._server.address

    def ready(self) -> None:
        """Serve users."""
        self._admin.ready()
        if self._server is None:
            return
        admin = reachable(self._admin.address)
        self._channel = open_channel(admin, self._tls)
        self._app = GatewayApp(self._version, JsonCalls(self._channel, admin))
        self._server.start(self._app, "iscp-gateway")

    def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more; what is being answered may end within the gRPC server's `grace_s`."""
        if self._server is not None:
            self._server.end(grace_s)
        self._admin.stop(grace_s)
        if self._server is not None:
            self._server.stop(grace_s)
        if self._app is not None:
            self._app.close()
        if self._channel is not None:
            self._channel.close()
