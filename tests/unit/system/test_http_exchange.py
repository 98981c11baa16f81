"""One exchange: the answer is read whatever its status is, for a bounded time and up to a bounded size.

The connections to a port are found among the files of this process, and are ended without their owner's help.

Free ports for servers that start a moment later: not in use, and not handed out to outgoing connections.
"""

from __future__ import annotations

import ast
import base64
import gzip
import os
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import iscp
from iscp.system.http_exchange import (
    LOOPBACK,
    PORT_MAX,
    PORT_MIN,
    Answer,
    HttpPeers,
    connections_to,
    end_connection,
    exchange,
    files_count,
    free_port,
    is_free,
    peer_of,
)
from tests.fakes.webhooks import HttpReceiver

ANSWER = b"HTTP/1.1 418 Teapot\r\nX-Kind: Short\r\ncontent-length: 5\r\n\r\nshort"


SHORT_S = 0.5
MEMORY_MAX = 32 * 1024**2
LENGTH = 64 * 1024**3
CLIENTS = frozenset({"http.client", "urllib.request", "requests", "urllib3", "httpx", "aiohttp"})
SENDS = frozenset({"system/http_exchange.py", "notices/open_telemetry.py"})


def post(url: str, body: bytes, headers: dict[str, str], *, timeout_s: float, bytes_max: int) -> Answer:
    return exchange("POST", url, body, headers, timeout_s=timeout_s, bytes_max=bytes_max)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver(lambda connection: connection.sendall(ANSWER))
    yield receiver
    receiver.close()


def test_status_headers_and_body_come_back(receiver: HttpReceiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/a/b?c=d"
    answer = post(url, b"body", {"x-mine": "1"}, timeout_s=10.0, bytes_max=1_000)
    assert answer == Answer(418, {"x-kind": "Short", "content-length": "5"}, b"short")
    (received,) = receiver.received
    assert (received.line, received.body) == ("POST /a/b?c=d HTTP/1.1", b"body")
    assert (received.headers["x-mine"], received.headers["connection"]) == ("1", "close")


def test_the_size_is_of_the_whole_answer(receiver: HttpReceiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/"
    post(url, b"", {}, timeout_s=10.0, bytes_max=len(ANSWER))
    with pytest.raises(OSError, match="too long"):
        post(url, b"", {}, timeout_s=10.0, bytes_max=len(ANSWER) - 1)


def test_a_header_cannot_be_smuggled_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(OSError, match="Invalid header value"):
            post(url, b"", {"a": "b\r\nc: d"}, timeout_s=10.0, bytes_max=1_000)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1_000) == b"", "nothing was sent"


@pytest.mark.parametrize(
    "head",
    [
        f"content-length: {LENGTH}\r\n\r\n",
        f"transfer-encoding: chunked\r\n\r\n{LENGTH:x}\r\n",
        "transfer-encoding: chunked\r\n\r\n" + "f" * 5_000 + "\r\n",
        "transfer-encoding: chunked\r\n\r\nnone\r\n",
        "content-length: 9\r\n\r\nshort",
    ],
    ids=["length", "chunk", "digits", "no number", "short"],
)
def test_a_length_that_is_claimed_takes_no_memory(receiver: HttpReceiver, head: str) -> None:
    receiver.answer = lambda connection: connection.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode())
    tracemalloc.start()
    try:
        with pytest.raises(ConnectionError):
            post(receiver.url, b"", {}, timeout_s=10.0, bytes_max=2**40)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def test_chunks_and_a_body_up_to_the_end_come_whole(receiver: HttpReceiver) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    receiver.answer = lambda connection: connection.sendall(chunked)
    assert post(receiver.url, b"", {}, timeout_s=10.0, bytes_max=1_000).body == b"abcde"
    receiver.answer = lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000)
    assert post(receiver.url, b"", {}, timeout_s=10.0, bytes_max=300_000).body == b"x" * 200_000


def test_nothing_is_unpacked(receiver: HttpReceiver) -> None:
    packed = gzip.compress(bytes(50 * 1024**2))
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n"
    receiver.answer = lambda connection: connection.sendall(head.encode() + packed)
    assert post(receiver.url, b"", {}, timeout_s=10.0, bytes_max=10**6).body == packed
    assert receiver.received[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [200, 204, 299])
def test_what_is_good(status: int) -> None:
    assert Answer(status, {}, b"").good
    assert not Answer(status + 100, {}, b"").good


def test_one_who_takes_nothing_is_given_up_in_time() -> None:
    """The kernel takes a part of it; the time is that of the whole exchange."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            post(url, bytes(64 * 1024**2), {}, timeout_s=SHORT_S, bytes_max=1_000)


def test_a_proxy_is_given_the_whole_address(receiver: HttpReceiver) -> None:
    proxy = f"http://user:p%40ss@127.0.0.1:{receiver.port}"
    answer = exchange(
        "POST", "http://collector:4318/v1?a=b", b"x", {}, timeout_s=10.0, bytes_max=1_000, peers=HttpPeers(proxy=proxy)
    )
    assert answer.status == 418
    (received,) = receiver.received
    assert received.line == "POST http://collector:4318/v1?a=b HTTP/1.1"
    assert (received.headers["host"], received.headers["proxy-authorization"]) == (
        "collector:4318",
        f"basic {base64.b64encode(b'user:p@ss').decode().lower()}",
    )
    with pytest.raises(OSError, match="the proxy answers 418"):
        exchange("GET", "https://collector/", None, {}, timeout_s=10.0, bytes_max=1_000, peers=HttpPeers(proxy=proxy))
    assert receiver.received[1].line == "CONNECT collector:443 HTTP/1.1"


def test_nothing_else_sends_by_http() -> None:
    package = Path(iscp.__file__).parent
    found = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if CLIENTS & set(names):
                found.add(str(file.relative_to(package)))
    assert found == SENDS


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_only_connections_to_the_port_are_found_and_one_is_ended(family: socket.AddressFamily, host: str) -> None:
    with ExitStack() as opened:
        listener, elsewhere = (opened.enter_context(socket.create_server((host, 0), family=family)) for _ in range(2))
        port = listener.getsockname()[1]
        near, far = [], []
        for _ in range(3):
            near.append(opened.enter_context(socket.create_connection((host, port), 20)))
            far.append(opened.enter_context(listener.accept()[0]))
        opened.enter_context(socket.create_connection((host, elsewhere.getsockname()[1]), 20))
        found = connections_to(port)
        assert found == {(host, end.getsockname()[1]): other.fileno() for end, other in zip(near, far, strict=True)}
        before = files_count()
        peer = host, near[0].getsockname()[1]
        end_connection(found[peer], (host, 1), port)
        end_connection(far[1].fileno(), peer, port)
        with Path(os.devnull).open() as file:
            end_connection(file.fileno(), peer, port)
        end_connection(found[peer], peer, port)
        assert files_count() == before
        assert [end.recv(1) for end in near[:1]] == [b""]
        for end in near[1:]:
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(1)


def test_a_host_is_written_in_one_way() -> None:
    assert peer_of("::ffff:10.0.0.1", 1) == peer_of("10.0.0.1", 1) == ("10.0.0.1", 1)
    assert peer_of("fe80::1%eth0", 1) == peer_of("FE80:0::1", 1) == ("fe80::1", 1)


def test_a_port_lies_below_those_of_outgoing_connections() -> None:
    assert all(PORT_MIN <= free_port() < PORT_MAX for _ in range(20))


def test_a_port_that_was_drawn_is_drawn_by_nobody_else_and_a_server_can_listen_there() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))
    with socket.create_server((LOOPBACK, port)) as server:
        assert server.getsockname()[1] == port

    assert len({free_port() for _ in range(20)}) > 1


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        assert not is_free(server.getsockname()[1])
