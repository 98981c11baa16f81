"""The one HTTP client of a node: an exchange and its answer are bounded, and no redirect is followed.

The time is that of the whole exchange and not that of one operation on a socket; the answer is bounded as it comes, and
nothing is unpacked. Whoever answers can neither hold up the one who sends for longer, nor fill its memory.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from iscp.adapters.system.bounded_reader import BoundedReader

PIECE_BYTES = 64 * 1024
"""Bytes of an answer that are read at once, whatever length it claims to have."""

PROXY_ANSWER_BYTES_MAX = 16 * 1024
"""Bytes of a proxy's answer to the wish for a connection; with more the exchange has failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer has a status, headers by their names in lower case, and a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def good(self) -> bool:
        """Return whether the request was carried out; a redirect has carried out nothing."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class HttpPeers:
    """The authorities that are trusted (empty: those of the machine), what this side shows, and the proxy in between.

    The files are read for each exchange, as they may have been replaced.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    proxy: str = ""


def exchange(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    bytes_max: int,
    peers: HttpPeers = HttpPeers(),
    status_alone: bool = False,
) -> Answer:
    """Send a request to a URL that `url_fault` has nothing against, and return the answer, whatever its status.

    `timeout_s` is for all of it, connecting included, and `bytes_max` for status, headers and body; if only the status
    is wanted, nothing behind it is read. Raises OSError where there is no answer.
    """
    until_s = time.monotonic() + timeout_s
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {"host": parts.netloc, "connection": "close", **headers}
    if peers.proxy and not tls:
        target, given = f"http://{parts.netloc}{target}", given | _proxy_headers(peers.proxy)
    connection = _Connection(parts.hostname or "", until_s)
    try:
        connection.sock = _connect(parts.hostname or "", parts.port or (443 if tls else 80), tls, peers, until_s)
        connection.request(method, target, body, given)
        reader = _Answering(connection.sock, _left(until_s), bytes_max)
        if status_alone:
            return Answer(_status_of(reader.makefile("rb").readline(bytes_max)), {}, b"")
        answer = http.client.HTTPResponse(reader, method=method)  # type: ignore[arg-type]
        answer.begin()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, _body_of(answer))
    except (http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"{error}" or type(error).__name__) from error
    finally:
        connection.close()


def failure_words(error: OSError) -> str:
    """Return why there is no answer."""
    return "it did not answer in time" if isinstance(error, TimeoutError) else f"{error}" or type(error).__name__


class _Connection(http.client.HTTPConnection):
    """The side that sends, which is bounded in time as a whole."""

    def __init__(self, host: str, until_s: float) -> None:
        super().__init__(host, 80)  # a port that is given: else the end of an IPv6 address is taken for one
        self._until_s = until_s

    def send(self, data: Any) -> None:
        self.sock.settimeout(_left(self._until_s))
        super().send(data)


class _Answering:
    """The part of a socket by which `http.client` reads an answer; it raises OSError beyond the bounds."""

    def __init__(self, connection: socket.socket, timeout_s: float, bytes_max: int) -> None:
        self._reader = BoundedReader(connection, timeout_s, bytes_max)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


def _body_of(answer: http.client.HTTPResponse) -> bytes:
    """Read in pieces: for a length that is claimed, memory would be taken before anything has come."""
    pieces = []
    while piece := answer.read(PIECE_BYTES):
        pieces.append(piece)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(pieces)


def _status_of(line: bytes) -> int:
    version, _, rest = line.decode("latin-1").partition(" ")
    status = rest.strip()[:3]
    if not line.endswith(b"\n") or not version.startswith("HTTP/1.") or not status.isdecimal():
        raise http.client.BadStatusLine("no status line")
    return int(status)


def _connect(host: str, port: int, tls: bool, peers: HttpPeers, until_s: float) -> socket.socket:
    via = urlsplit(peers.proxy)
    opened = _open(via.hostname, via.port or 80, until_s) if via.hostname else _open(host, port, until_s)
    try:
        if tls:
            if via.hostname:
                _pass_through(opened, host, port, peers.proxy, until_s)
            context = ssl.create_default_context(cafile=peers.ca_file or None)
            if peers.cert_file:
                context.load_cert_chain(peers.cert_file, peers.key_file or None)
            opened.settimeout(_left(until_s))
            opened = context.wrap_socket(opened, server_hostname=host)
    except BaseException:
        opened.close()
        raise
    return opened


def _open(host: str, port: int, until_s: float) -> socket.socket:
    """Connect to the first address that can be reached; all of them have one time."""
    fault: OSError = ConnectionError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(_left(until_s))
            opened.connect(address)
        except OSError as error:
            opened.close()
            fault = error
        else:
            return opened
    raise fault


def _pass_through(opened: socket.socket, host: str, port: int, proxy: str, until_s: float) -> None:
    """Have a proxy connect to the host."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}", *(f"{k}: {v}" for k, v in _proxy_headers(proxy).items())]
    opened.settimeout(_left(until_s))
    opened.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    reader = _Answering(opened, _left(until_s), PROXY_ANSWER_BYTES_MAX)
    answer = http.client.HTTPResponse(reader, method="CONNECT")  # type: ignore[arg-type]
    answer.begin()
    if answer.status != http.HTTPStatus.OK:
        raise ConnectionError(f"the proxy answers {answer.status}")


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    name = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"proxy-authorization": f"Basic {base64.b64encode(name.encode()).decode()}"}


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
