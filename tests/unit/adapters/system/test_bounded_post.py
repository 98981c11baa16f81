"""One post: the answer is read whatever its status is, for a bounded time and up to a bounded size."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from iscp.adapters.system.bounded_post import Answer, post
from tests.fakes.webhooks import HttpReceiver

ANSWER = b"HTTP/1.1 418 Teapot\r\nX-Kind: Short\r\ncontent-length: 5\r\n\r\nshort"


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
        with pytest.raises(ValueError, match="Invalid header value"):
            post(url, b"", {"a": "b\r\nc: d"}, timeout_s=10.0, bytes_max=1_000)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1_000) == b"", "nothing was sent"
