"""The embedder `openai` against a real server on this machine that answers rightly, wrongly, slowly, or elsewhere."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iscp.index.embedding.embedder_registry import EmbedderBusy, TextsRefusedError
from iscp.index.embedding.openai_embedder import (
    ANSWER_BYTES_BESIDES,
    KEY_BYTES_MAX,
    OPENAI_BATCH_DEFAULT,
    OPENAI_CHARS_MAX,
    OpenAiEmbedder,
    read_key,
)
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import ConfigurationError, ErrorCode, IscpError, PermanentError, Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.webhooks import HttpReceiver

DIMENSION = 3
SHORT_S = 0.3
NOW_S = 1_700_000_000.0


@pytest.fixture
def server() -> Iterator[HttpReceiver]:
    server = HttpReceiver()
    server.answer = lambda connection: connection.sendall(http(rightly(server)))
    yield server
    server.close()


def texts_of(server: HttpReceiver) -> list[str]:
    texts: list[str] = json.loads(server.received[-1].body)["input"]
    return texts


def rightly(server: HttpReceiver) -> bytes:
    """In another order than that of the texts."""
    vectors = [{"index": n, "embedding": [float(len(text)), 1, -0.5]} for n, text in enumerate(texts_of(server))]
    return json.dumps({"object": "list", "data": vectors[::-1]}).encode()


def http(body: bytes, status: str = "200 OK", headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in {"content-length": str(len(body)), **(headers or {})}.items()]
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


def says(server: HttpReceiver, *answer: Any, **more: Any) -> None:
    server.answer = lambda connection: connection.sendall(http(*answer, **more))


def data(*vectors: Any, first: int = 0) -> bytes:
    return json.dumps({"data": [{"index": n, "embedding": v} for n, v in enumerate(vectors, start=first)]}).encode()


def embedder(server: HttpReceiver, **options: Any) -> OpenAiEmbedder:
    config = EmbedderConfig(
        kind="openai", url=f"http://127.0.0.1:{server.port}/v1/embeddings", model="m-1", dimension=DIMENSION
    )
    return OpenAiEmbedder(replace(config, timeout_s=20.0, **options), FakeClock(NOW_S))


def failure(server: HttpReceiver, texts: Sequence[str] = ("a", "b"), **options: Any) -> IscpError:
    with pytest.raises(IscpError) as failed:
        embedder(server, **options).embed(texts)
    return failed.value


def test_texts_go_out_and_vectors_come_back_in_their_order(server: HttpReceiver, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    vectors = embedder(server, key_file=str(tmp_path / "key")).embed(["größer", "b"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[6.0, 1.0, -0.5], [1.0, 1.0, -0.5]]
    (received,) = server.received
    assert received.line == "POST /v1/embeddings HTTP/1.1"
    assert received.headers["authorization"] == "bearer sk-1"
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert json.loads(received.body) == {"model": "m-1", "input": ["größer", "b"], "encoding_format": "float"}


def test_without_a_key_none_is_sent_and_without_a_path_it_is_the_usual_one(server: HttpReceiver) -> None:
    embedder(server, url=f"http://127.0.0.1:{server.port}").embed(["a"])
    (received,) = server.received
    assert "authorization" not in received.headers
    assert received.line == "POST /v1/embeddings HTTP/1.1"


def test_a_key_that_is_replaced_counts_for_the_next_request(server: HttpReceiver, tmp_path: Path) -> None:
    file, made = tmp_path / "key", None
    for key in ("one", "two"):
        file.write_text(key)
        made = made or embedder(server, key_file=str(file))
        made.embed(["a"])
    assert [each.headers["authorization"] for each in server.received] == ["bearer one", "bearer two"]
    file.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        embedder(server, key_file=str(file)).embed(["a"])


def test_long_texts_are_cut_and_an_empty_one_is_a_blank(server: HttpReceiver) -> None:
    embedder(server).embed(["x" * (OPENAI_CHARS_MAX + 5), ""])
    assert [len(text) for text in texts_of(server)] == [OPENAI_CHARS_MAX, 1]
    embedder(server, chars_max=2).embed(["größer"])
    assert texts_of(server) == ["gr"]


@pytest.mark.parametrize("status", ["500 Oops", "502 Bad", "503 Later", "429 Slow down", "408 Late", "425 Early"])
def test_a_server_that_fails_is_to_be_tried_again(server: HttpReceiver, status: str) -> None:
    says(server, b"{}", status)
    error = failure(server)
    assert isinstance(error, EmbedderBusy)
    assert (error.retry_after_s, error.message) == (0.0, f"127.0.0.1 answers {status[:3]}")


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        (formatdate(NOW_S + 30, usegmt=True), 30.0),
        (formatdate(NOW_S - 30, usegmt=True), 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("9" * 500, 999_999_999.0),
        ("Mon, 99 Foo 2026 99:99:99 GMT", 0.0),
    ],
)
def test_a_busy_server_says_for_how_long(server: HttpReceiver, retry_after: str, seconds: float) -> None:
    says(server, b"", "429 Slow down", {"Retry-After": retry_after})
    error = failure(server)
    assert isinstance(error, EmbedderBusy)
    assert error.retry_after_s == pytest.approx(seconds)


@pytest.mark.parametrize("status", ["401 No", "403 No", "404 Not here", "405 No", "410 Gone"])
def test_a_server_that_refuses_needs_a_person(server: HttpReceiver, status: str) -> None:
    says(server, b"{}", status)
    error = failure(server)
    assert type(error) is PermanentError
    assert f"answers {status[:3]}" in error.message
    assert error.remedy


@pytest.mark.parametrize("status", ["400 Bad", "413 Large", "422 No"])
def test_texts_that_are_refused_are_reported_with_what_is_said_of_them(server: HttpReceiver, status: str) -> None:
    says(server, json.dumps({"error": {"message": "too many\x1b tokens"}}).encode(), status)
    error = failure(server)
    assert isinstance(error, TextsRefusedError)
    assert error.message == f"127.0.0.1 answers {status[:3]}: too many\\x1b tokens"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b'{"error": 3}', b'{"error": {"message": {}}}', b"[" * 50_000]
)
def test_a_refusal_may_say_nothing(server: HttpReceiver, body: bytes) -> None:
    says(server, body, "400 Bad")
    assert failure(server).message == "127.0.0.1 answers 400"


def test_the_key_is_shown_nowhere(server: HttpReceiver, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-s3cr3t")
    for status in ("400 Bad", "401 No", "404 Not here", "500 Oops"):
        says(server, json.dumps({"error": {"message": "key sk-s3cr3t is bad"}}).encode(), status)
        error = failure(server, key_file=str(tmp_path / "key"))
        assert "s3cr3t" not in f"{error!r} {error} {error.remedy}"


def test_a_redirect_is_not_followed(server: HttpReceiver) -> None:
    elsewhere = HttpReceiver()
    says(server, b"", "307 Elsewhere", {"location": elsewhere.url})
    error = failure(server)
    elsewhere.close()
    assert (type(error), elsewhere.received) == (PermanentError, [])
    assert "answers 307, and redirects are not followed" in error.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (data([1.0, 2.0, 3.0]), "answers 1 vectors for 2 texts"),
        (data(*[[1.0, 2.0, 3.0]] * 3), "answers 3 vectors for 2 texts"),
        (b'{"data": {}}', "answers no vectors"),
        (b"[]", "answers no vectors"),
        (data([1.0, 2.0], [1.0, 2.0]), "vectors of 2 numbers, and dimension is 3"),
        (data([1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]), "not finite"),
        (data([1.0, 2.0, 3.0], [1.0, float("-inf"), 3.0]), "not finite"),
        (data([1.0, 2.0, 3.0], [1.0, 1e39, 3.0]), "not finite"),
        (data([1.0, 2.0, 3.0], [1.0, 10**30, 10**400]), "not finite"),
        (data([1.0, 2.0, 3.0], ["1.0", 2.0, 3.0]), "no list of numbers"),
        (data([1.0, 2.0, 3.0], [True, 2.0, 3.0]), "no list of numbers"),
        (data([1.0, 2.0, 3.0], [[1.0], 2.0, 3.0]), "no list of numbers"),
        (data([1.0, 2.0, 3.0], None), "no list of numbers"),
        (data([1.0, 2.0, 3.0], "AACAPwAAAEAAAEBA"), "no list of numbers"),
        (data([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], first=1), "of which texts"),
        (data([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], first=-1), "of which texts"),
        (b'{"data": [1, 2]}', "of which texts"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3]}, {"index": 0, "embedding": [1, 2, 3]}]}', "of which texts"),
        (b'{"data": [{"index": "0", "embedding": [1, 2, 3]}, {"index": 1, "embedding": []}]}', "of which texts"),
    ],
)
def test_a_wrong_answer_is_refused_by_what_is_wrong(server: HttpReceiver, body: bytes, words: str) -> None:
    says(server, body)
    error = failure(server)
    assert isinstance(error, PermanentError)
    assert error.code is ErrorCode.EMBEDDER_BROKEN
    assert words in error.message


def test_vectors_without_an_index_are_in_the_order_of_the_texts(server: HttpReceiver) -> None:
    says(server, b'{"data": [{"embedding": [1, 2, 3]}, {"embedding": [4, 5, 6]}]}')
    assert embedder(server).embed(["a", "b"]).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("body", [b"", b"<html>Sign in</html>", b'{"data": [', b"[" * 20_000, b"\xff\xfe"])
def test_what_is_no_json_is_some_proxys_and_tried_again(server: HttpReceiver, body: bytes) -> None:
    says(server, body)
    error = failure(server)
    assert isinstance(error, Unavailable)
    assert "answers no JSON" in error.message


@pytest.mark.parametrize(
    "raw", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", b"x" * 200_000]
)
def test_an_answer_that_breaks_off_is_tried_again(server: HttpReceiver, raw: bytes) -> None:
    server.answer = lambda connection: connection.sendall(raw)
    assert isinstance(failure(server), Unavailable)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n"])
def test_a_huge_answer_is_not_read(server: HttpReceiver, head: bytes) -> None:
    sent = [0]

    def flood(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            sent[0] += connection.send(b" " * 65_536)

    server.answer = flood
    error = failure(server)
    assert isinstance(error, Unavailable)
    assert "too long" in error.message
    says(server, data([1.0, 2.0, 3.0]))
    embedder(server).embed(["a"])  # the server has seen the end of the first
    assert sent[0] < 100 * ANSWER_BYTES_BESIDES


def endings() -> Iterator[tuple[str, Callable[[socket.socket, threading.Event], object]]]:
    def trickle(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.wait(SHORT_S / 20):
            connection.sendall(b" ")

    yield "silent", lambda connection, over: over.wait(60)
    yield "trickle", trickle


@pytest.mark.parametrize("answer", [each for _, each in endings()], ids=[name for name, _ in endings()])
def test_a_slow_server_is_given_up_in_time(
    server: HttpReceiver, answer: Callable[[socket.socket, threading.Event], object]
) -> None:
    over = threading.Event()

    def reply(connection: socket.socket) -> None:
        answer(connection, over)

    server.answer = reply
    config = EmbedderConfig(
        kind="openai", url=f"http://127.0.0.1:{server.port}", model="m", dimension=3, timeout_s=SHORT_S
    )
    with pytest.raises(Unavailable, match="did not"):
        OpenAiEmbedder(config).embed(["a"])
    over.set()


def test_nobody_listens(server: HttpReceiver) -> None:
    gone = embedder(server)
    server.close()
    with pytest.raises(Unavailable, match="does not answer: ConnectionRefusedError"):
        gone.embed(["a"])


def test_a_server_without_tls_gets_no_key(tmp_path: Path) -> None:
    """The hello of TLS is all that is sent to it."""
    (tmp_path / "key").write_text("sk-s3cr3t")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        got = pool.submit(answer_in_clear, listener)
        config = EmbedderConfig(
            kind="openai", url=f"https://127.0.0.1:{port}", model="m", dimension=3, key_file=str(tmp_path / "key")
        )
        with pytest.raises(Unavailable, match="does not answer: SSLError"):
            OpenAiEmbedder(config).embed(["a"])
        assert b"s3cr3t" not in got.result(10)


def answer_in_clear(listener: socket.socket) -> bytes:
    connection, _ = listener.accept()
    with connection:
        hello = connection.recv(65_536)
        connection.sendall(http(data([1.0, 2.0, 3.0])))
        try:
            return hello + connection.recv(65_536)
        except ConnectionResetError:
            return hello


def test_the_fingerprint_says_by_what_vectors_come_and_holds_no_secret() -> None:
    config = EmbedderConfig(kind="openai", url="https://h.example/v1/embeddings?key=s3cr3t", model="m", dimension=3)
    changes: list[dict[str, Any]] = [
        {},
        {"url": "https://other.example/v1/embeddings"},
        {"url": "https://h.example/deployments/x/embeddings"},
        {"model": "m-2"},
        {"dimension": 4},
        {"chars_max": 9},
    ]
    found = [OpenAiEmbedder(replace(config, **each)).fingerprint for each in changes]
    assert len(set(found)) == len(changes)
    assert "s3cr3t" not in found[0]
    rotated = replace(config, url="https://h.example/v1/embeddings?key=other", key_file="/keys/other", batch=7)
    assert OpenAiEmbedder(rotated).fingerprint == found[0]


def test_texts_in_a_request_are_as_the_definition_says(server: HttpReceiver) -> None:
    assert embedder(server).batch_max == OPENAI_BATCH_DEFAULT
    assert embedder(server, batch=500).batch_max == 500


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * (KEY_BYTES_MAX + 1), b"two words", b"a\nb", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused_by_its_setting(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_key(str(file), "embedders.mine.key_file")
    assert refused.value.field == "embedders.mine.key_file"
    assert "two words" not in str(refused.value)
    assert "xxx" not in str(refused.value)
