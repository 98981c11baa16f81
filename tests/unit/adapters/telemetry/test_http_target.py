"""A receiver of telemetry: which answers are worth another attempt, and files of headers, good and bad."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.adapters.telemetry.http_target import HEADERS_BYTES_MAX, HttpTarget, read_headers
from iscp.core.values.errors import ConfigurationError, PermanentError, Unavailable
from tests.fakes.webhooks import HttpReceiver


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


def answering(receiver: HttpReceiver, line: str, body: bytes = b"") -> None:
    head = f"HTTP/1.1 {line}\r\ncontent-length: {len(body)}\r\nlocation: http://127.0.0.1:1/\r\n\r\n".encode()
    receiver.answer = lambda connection: connection.sendall(head + body)


def test_a_body_is_posted_with_the_headers_and_the_answer_is_returned(receiver: HttpReceiver) -> None:
    answering(receiver, "200 OK", b"taken")
    assert HttpTarget(receiver.url, {"authorization": "Bearer t"}, "text/plain").post(b"body") == b"taken"
    (got,) = receiver.received
    assert (got.line, got.body) == ("POST /hooks?key=k-1 HTTP/1.1", b"body")
    assert (got.headers["authorization"], got.headers["content-type"]) == ("bearer t", "text/plain")


@pytest.mark.parametrize("line", ["500 Broken", "503 Away", "429 Slow down", "408 Late"])
def test_an_answer_that_may_change_is_worth_another_attempt(receiver: HttpReceiver, line: str) -> None:
    answering(receiver, line)
    with pytest.raises(Unavailable, match=line[:3]):
        HttpTarget(receiver.url, {}, "text/plain").post(b"")


@pytest.mark.parametrize("line", ["400 Bad", "401 Who", "404 Where", "301 Elsewhere", "307 Elsewhere"])
def test_a_refusal_is_final_and_no_redirect_is_followed(receiver: HttpReceiver, line: str) -> None:
    answering(receiver, line)
    with pytest.raises(PermanentError, match=line[:3]):
        HttpTarget(receiver.url, {}, "text/plain").post(b"")
    assert len(receiver.received) == 1


def hang_up(connection: socket.socket) -> None:
    connection.close()


def speak_nonsense(connection: socket.socket) -> None:
    connection.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")


def never_end(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000)


@pytest.mark.parametrize("answer", [hang_up, speak_nonsense, never_end])
def test_an_answer_that_is_none_fails_within_bounds(receiver: HttpReceiver, answer: object) -> None:
    receiver.answer = answer  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        HttpTarget(receiver.url, {}, "text/plain").post(b"")


def test_a_receiver_that_is_not_there_is_unavailable(receiver: HttpReceiver) -> None:
    receiver.close()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        HttpTarget(receiver.url, {}, "text/plain").post(b"")


def headers_of(directory: Path, content: bytes) -> dict[str, str]:
    file = directory / "headers"
    file.write_bytes(content)
    return dict(read_headers(str(file), "tracing.headers_file"))


def test_headers_are_read_a_line_each(tmp_path: Path) -> None:
    content = b"# who sends\nAuthorization: Bearer a:b c\n\nX-Scope-OrgID:  7 \r\n"
    assert headers_of(tmp_path, content) == {"authorization": "Bearer a:b c", "x-scope-orgid": "7"}
    assert read_headers("", "f") == {}


@pytest.mark.parametrize(
    "content",
    [b"secret-token", b"a b: c", b": c", b"a: \x00", b"a: \xff", b"Host: x", b"content-length: 0", b"a: b\x0bc"],
)
def test_what_is_no_header_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"has a line 1 that is no header") as error:
        headers_of(tmp_path, content)
    assert error.value.field == "tracing.headers_file"
    assert "secret-token" not in str(error.value)


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="more than"):
        headers_of(tmp_path, b"a: b\n" * HEADERS_BYTES_MAX)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_headers(str(tmp_path / "nowhere"), "tracing.headers_file")
