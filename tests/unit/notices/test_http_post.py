"""Posting to a real receiver on this machine that accepts, refuses, is slow, hangs up, or never ends its answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.model.job.notification import Notification, NotificationKind
from iscp.model.values.errors import ConfigurationError, PermanentError, Unavailable
from iscp.notices.http_post import (
    ID_HEADER,
    SECRET_BYTES_MAX,
    SIGNATURE_HEADER,
    HttpWebhook,
    read_secret,
    webhooks_of,
)
from tests.fakes.clock import FakeClock
from tests.fakes.webhooks import ACCEPT, HttpReceiver

SECRET = b"s3cr3t"
NOTIFICATION = Notification(
    kind=NotificationKind.FAILED, id="i-1", at_s=7.0, cluster="c", owner="n-1", owner_rev=3, error_message="größer"
)
SHORT_S = 0.2


def waits(over: threading.Event) -> None:
    over.wait(60)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


def webhook(receiver: HttpReceiver, secret: bytes = SECRET, timeout_s: float = 20.0) -> HttpWebhook:
    return HttpWebhook("notify.webhooks.0", receiver.url, secret, FakeClock(1_700_000_000.9), timeout_s)


def test_the_body_is_sent_whole_and_the_signature_is_of_time_and_body(receiver: HttpReceiver) -> None:
    webhook(receiver).post(NOTIFICATION)
    (received,) = receiver.received
    assert received.line == "POST /hooks?key=k-1 HTTP/1.1"
    assert received.headers["content-type"] == "application/json"
    assert received.headers[ID_HEADER] == "i-1"
    assert json.loads(received.body)["error_message"] == "größer"
    expected = hmac.new(SECRET, b"1700000000." + received.body, hashlib.sha256).hexdigest()
    assert received.headers[SIGNATURE_HEADER] == f"t=1700000000,v1={expected}"


def test_without_a_secret_nothing_is_signed(receiver: HttpReceiver) -> None:
    webhook(receiver, secret=b"").post(NOTIFICATION)
    assert SIGNATURE_HEADER not in receiver.received[0].headers


@pytest.mark.parametrize("status", [b"500 Oops", b"503 Later", b"429 Too many", b"408 Timeout"])
def test_a_receiver_that_fails_is_to_be_tried_again(receiver: HttpReceiver, status: bytes) -> None:
    receiver.answer = lambda connection: connection.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
    with pytest.raises(Unavailable, match=status[:3].decode()):
        webhook(receiver).post(NOTIFICATION)


def test_a_redirect_is_not_followed(receiver: HttpReceiver) -> None:
    elsewhere = HttpReceiver()
    location = b"HTTP/1.1 307 Elsewhere\r\nlocation: " + elsewhere.url.encode() + b"\r\n\r\n"
    receiver.answer = lambda connection: connection.sendall(location)
    with pytest.raises(PermanentError, match="answers 307"):
        webhook(receiver).post(NOTIFICATION)
    elsewhere.close()
    assert elsewhere.received == []


def test_a_receiver_that_refuses_is_reported_without_its_url(receiver: HttpReceiver) -> None:
    receiver.answer = lambda connection: connection.sendall(b"HTTP/1.0 404\r\n\r\n")
    with pytest.raises(PermanentError) as refused:
        webhook(receiver).post(NOTIFICATION)
    assert str(refused.value) == "notify.webhooks.0 (127.0.0.1) answers 404"


def test_nobody_listens(receiver: HttpReceiver) -> None:
    gone = webhook(receiver)
    receiver.close()
    with pytest.raises(Unavailable, match="does not accept notifications"):
        gone.post(NOTIFICATION)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n", b"x" * 100_000])
def test_what_is_no_answer_is_none(receiver: HttpReceiver, answer: bytes) -> None:
    receiver.answer = lambda connection: connection.sendall(answer)
    with pytest.raises(Unavailable):
        webhook(receiver).post(NOTIFICATION)


def test_a_receiver_that_does_not_answer_is_given_up(receiver: HttpReceiver) -> None:
    over = threading.Event()
    receiver.answer = lambda connection: waits(over)
    with pytest.raises(Unavailable, match="did not answer in time"):
        webhook(receiver, timeout_s=SHORT_S).post(NOTIFICATION)
    over.set()


def test_a_trickle_of_bytes_does_not_put_off_the_end(receiver: HttpReceiver) -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        while not over.wait(SHORT_S / 20):
            connection.sendall(b"H")

    receiver.answer = trickle
    with pytest.raises(Unavailable):
        webhook(receiver, timeout_s=SHORT_S).post(NOTIFICATION)
    over.set()


def test_an_endless_body_is_not_read(receiver: HttpReceiver) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)

    receiver.answer = flood
    webhook(receiver).post(NOTIFICATION)
    receiver.answer = lambda connection: connection.sendall(ACCEPT)
    webhook(receiver).post(NOTIFICATION)  # the receiver has seen the end of the first
    assert len(receiver.received) == 2


def test_the_secret_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" s3cr3t\n")
    assert read_secret(str(file)) == b"s3cr3t"
    assert read_secret("") == b""
    (made,) = webhooks_of(("https://u.example/t0ken",), str(file), FakeClock())
    assert made.name == "notify.webhooks.0 (u.example)"
    assert "s3cr3t" not in repr(made)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * (SECRET_BYTES_MAX + 1)])
def test_a_secret_that_cannot_be_one_is_refused_by_its_setting(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_secret(str(file))
    assert refused.value.field == "notify.secret_file"
    assert "xxx" not in str(refused.value)


@pytest.mark.parametrize("host", ["[2001:db8::abcd]", "[::1]"])
def test_the_end_of_an_ipv6_address_is_no_port(host: str) -> None:
    """The post goes to the port of the scheme, where nobody listens."""
    refused = HttpWebhook("notify.webhooks.0", f"https://{host}/hook", SECRET, FakeClock(), SHORT_S)
    with pytest.raises(Unavailable, match="does not accept notifications"):
        refused.post(NOTIFICATION)
