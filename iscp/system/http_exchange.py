"""The one HTTP client of a node, and what the system knows of connections and ports: those of this process, and ports
that are free.
"""

from __future__ import annotations

import base64
import http.client
import io
import os
import random
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

# --- bounded reads ----------------------------------------------------------------------------------------------------
# A connection to which somebody else writes is read for a bounded time and up to a bounded size.


class BoundedReader(io.RawIOBase):
    """Reads from a connection, until a time and up to a number of bytes, however slowly they come.

    Raises OSError beyond.
    """

    def __init__(self, connection: socket.socket, timeout_s: float, bytes_max: int) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + timeout_s
        self._left = bytes_max

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not come in time")
        if self._left <= 0:
            raise ConnectionAbortedError("it is too long")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


# --- exchanges --------------------------------------------------------------------------------------------------------
# An exchange and its answer are bounded, and no redirect is followed. The time is that of the whole exchange and not
# that of one operation on a socket; the answer is bounded as it comes, and nothing is unpacked. Whoever answers can
# neither hold up the one who sends for longer, nor fill its memory.

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


# --- connections to a port of this process ----------------------------------------------------------------------------
# Connections that a library has made and shows to nobody are found too.

FILES = "/dev/fd"
"""The descriptors of whoever reads it, on Linux and on macOS."""

Peer = tuple[str, int]
"""Host and port. An IPv4 host that has come to an IPv6 socket is written as IPv4."""


def peer_of(host: str, port: int) -> Peer:
    """Raises ValueError for a host that is no address."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), port


def files_count() -> int:
    return len(os.listdir(FILES))


def connections_to(port: int) -> dict[Peer, int]:
    """Return the descriptors of the connections to `port`, by their peers."""
    found = {}
    for name in os.listdir(FILES):
        with _copy(int(name)) as connection:
            if connection is not None and (peer := _peer(connection, port)) is not None:
                found[peer] = int(name)
    return found


def end_connection(descriptor: int, peer: Peer, port: int) -> None:
    """Have its owner find it closed by the peer; unless the descriptor has become another file's meanwhile."""
    with _copy(descriptor) as connection:
        if connection is not None and _peer(connection, port) == peer:
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _copy(descriptor: int) -> Iterator[socket.socket | None]:
    """Yield a copy of the descriptor; None where it is no socket, or is closed by the time of the copy."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with connection:
        yield connection


def _peer(connection: socket.socket, port: int) -> Peer | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if connection.getsockname()[1] != port:
            return None
        host, from_port = connection.getpeername()[:2]
        return peer_of(host, from_port)
    except OSError:  # it listens, or has ended
        return None


# --- free ports, for servers that are started a moment later ----------------------------------------------------------

LOOPBACK = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections: between the probe and the start of the
# server, any client on the machine might otherwise be given the port.
PORT_MIN, PORT_MAX = 15_000, 32_000
ATTEMPTS_MAX = 200
"""Ports drawn at random to find a free one; then the system's choice is taken."""

RESERVED_MAX = 256
"""Ports that a process reserves; those that it drew the longest ago are let go."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on the loopback interface there now."""
    with socket.socket() as trial:
        # As servers do it: what lingers of closed connections is no obstacle.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


_reserved: deque[socket.socket] = deque(maxlen=RESERVED_MAX)


def free_port() -> int:
    """A port that is free now, and is drawn by nobody else on this machine until its server listens.

    It is drawn at random and stays bound, without listening, by this process: that keeps others from drawing it, and
    no server from taking it that binds as servers do (SO_REUSEADDR).
    """
    for _ in range(ATTEMPTS_MAX):
        port, bound = random.randrange(PORT_MIN, PORT_MAX), socket.socket()
        try:
            bound.bind((LOOPBACK, port))
        except OSError:
            bound.close()
            continue
        if sys.platform == "linux":  # elsewhere a server could not listen there
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _reserved.append(bound)
        else:
            bound.close()
        return port
    with socket.socket() as any_port:
        any_port.bind((LOOPBACK, 0))
        return int(any_port.getsockname()[1])
