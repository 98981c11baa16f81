"""Receivers of notifications: one in memory (port Webhook), and one that speaks HTTP, badly where it is to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from iscp.model.job.job_row import Notification

ACCEPT = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"


@dataclass
class FakeWebhook:
    """`accepted` in order; `faults` are raised by the next posts."""

    name: str = "receiver"
    accepted: list[Notification] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)

    def post(self, notification: Notification) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.accepted.append(notification)

    def kinds(self) -> list[str]:
        return [each.kind.value for each in self.accepted]


@dataclass(frozen=True)
class Received:
    line: str
    headers: dict[str, str]
    body: bytes


class HttpReceiver:
    """Takes requests one after another, keeps them in `received`, and has `answer` write to the connection."""

    def __init__(self, answer: Callable[[socket.socket], None] = lambda connection: connection.sendall(ACCEPT)) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks?key=k-1"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        line = reader.readline().decode().strip()
        headers = dict(each.decode().strip().lower().split(": ", 1) for each in iter(reader.readline, b"\r\n"))
        self.received.append(Received(line, headers, reader.read(int(headers.get("content-length", 0)))))
        try:
            self.answer(connection)
        except OSError:
            return  # the other side has hung up
