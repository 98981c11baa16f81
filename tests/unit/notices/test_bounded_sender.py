"""Nobody waits for a receiver: what waits is bounded, attempts are, and everything that is not sent is counted.

A receiver of telemetry: which answers are worth another attempt, and files of headers, good and bad.

Events go to a URL one by one, or to a file as lines; what is too large or refused is counted, never waited for.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from iscp.model.values.errors import ConfigurationError, PermanentError, Unavailable
from iscp.notices.bounded_sender import (
    EVENT_BYTES_MAX,
    HEADERS_BYTES_MAX,
    BoundedSender,
    HttpTarget,
    SenderBounds,
    append_events,
    post_events,
    read_headers,
)
from tests.fakes.waiting import until
from tests.fakes.webhooks import HttpReceiver

BOUNDS = SenderBounds(waiting_max=100, batch_max=4, linger_s=0.02, attempts=3, pause_s=0.001)
LONG_S = 60.0


class Receiver:
    """`answers` are what the next batches are answered with: how many are refused, or an error."""

    def __init__(self, answers: Sequence[int | Exception] = ()) -> None:
        self.batches: list[list[int]] = []
        self.attempts = 0
        self._answers = list(answers)

    def send(self, batch: Sequence[int]) -> int:
        self.attempts += 1
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, Exception):
            raise answer
        self.batches.append(list(batch))
        return answer


def sender_to(send: Callable[[Sequence[int]], int], bounds: SenderBounds = BOUNDS) -> BoundedSender[int]:
    return BoundedSender("test", send, bounds)


def test_items_are_sent_in_order_and_in_bounded_batches() -> None:
    receiver = Receiver()
    sender = sender_to(receiver.send)
    for number in range(10):
        sender.put(number)
    assert sender.close(LONG_S)
    assert [each for batch in receiver.batches for each in batch] == list(range(10))
    assert max(map(len, receiver.batches)) <= BOUNDS.batch_max
    assert (sender.sent, sender.dropped) == (10, 0)


def test_a_batch_is_tried_again_and_then_dropped() -> None:
    receiver = Receiver([Unavailable("away"), Unavailable("away"), 0, *[Unavailable("away")] * BOUNDS.attempts])
    sender = sender_to(receiver.send)
    sender.put(1)
    until(lambda: sender.sent == 1)
    sender.put(2)
    until(lambda: sender.dropped == 1)
    assert receiver.attempts == 3 + BOUNDS.attempts
    assert sender.close(LONG_S)
    assert receiver.batches == [[1]]


def test_what_is_refused_for_good_is_not_tried_again() -> None:
    receiver = Receiver([PermanentError("answers 400"), RuntimeError("broken"), 1])
    sender = sender_to(receiver.send)
    for number in range(3):
        sender.put(number)
        until(lambda number=number: sender.dropped == number + 1)  # type: ignore[misc]
    assert receiver.attempts == 3
    assert sender.sent == 0
    sender.put(4)
    until(lambda: sender.sent == 1)
    assert sender.close(LONG_S)


def test_no_one_waits_for_a_receiver_that_hangs_and_the_surplus_is_dropped() -> None:
    over = threading.Event()

    def hang(batch: Sequence[int]) -> int:
        over.wait(LONG_S)
        return 0

    sender = sender_to(hang, SenderBounds(waiting_max=5, batch_max=1, linger_s=0.0, attempts=1, pause_s=0.0))
    began_s = time.monotonic()
    sender.put(0)
    until(lambda: sender.waiting == 0)
    for number in range(1, 21):
        sender.put(number)
    assert sender.dropped == 15
    assert not sender.close(0.05)
    assert sender.dropped == 20
    assert time.monotonic() - began_s < LONG_S / 2
    sender.put(21)
    assert sender.dropped == 21
    over.set()
    until(lambda: sender.sent == 1)


def test_a_close_cuts_the_pauses_between_attempts_short() -> None:
    receiver = Receiver([Unavailable("away")] * 9)
    sender = sender_to(receiver.send, SenderBounds(100, 4, 0.0, attempts=9, pause_s=LONG_S))
    sender.put(1)
    until(lambda: receiver.attempts == 1)
    began_s = time.monotonic()
    sender.put(2)
    assert sender.close(LONG_S / 2)
    assert time.monotonic() - began_s < LONG_S / 4
    assert (sender.dropped, receiver.attempts) == (2, 2)


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


EVENTS = [{"n": number, "text": "größer\n"} for number in range(3)]
LARGE = {"text": "x" * EVENT_BYTES_MAX}


def test_each_event_is_a_request_of_its_own() -> None:
    receiver = HttpReceiver()
    assert post_events(HttpTarget(receiver.url, {"x-key": "k"}, "application/json"), [*EVENTS, LARGE]) == 1
    receiver.close()
    assert [json.loads(each.body) for each in receiver.received] == EVENTS
    assert {each.headers["content-type"] for each in receiver.received} == {"application/json"}
    assert {each.headers["x-key"] for each in receiver.received} == {"k"}


def test_each_event_is_a_line_and_the_file_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "events"
    assert append_events(str(path), EVENTS[:1]) == 0
    assert append_events(str(path), [LARGE, *EVENTS[1:]]) == 1
    assert [json.loads(line) for line in path.read_text().splitlines()] == EVENTS
    assert path.stat().st_mode & 0o007 == 0


def test_lines_of_several_nodes_do_not_mix(tmp_path: Path) -> None:
    path, batch = str(tmp_path / "events"), [{"text": "x" * 1_000}] * 50
    writers = [threading.Thread(target=append_events, args=(path, batch)) for _ in range(8)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == batch * 8


def test_a_place_that_cannot_be_written_is_unavailable_and_holds_nobody_up(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "events", tmp_path):
        with pytest.raises(Unavailable, match="cannot be written"):
            append_events(str(path), EVENTS)
    os.mkfifo(tmp_path / "pipe")  # which nobody reads: to open it would wait for ever
    with pytest.raises(Unavailable):
        append_events(str(tmp_path / "pipe"), EVENTS)
