"""Post a body by HTTP, and read the answer within a bounded time and size. Redirects are not followed."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from iscp.adapters.system.bounded_reader import BoundedReader


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer has a status, headers by their names in lower case, and a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BoundedAnswer:
    """`http.client` reads an answer by this part of a socket, which raises OSError beyond the bounds."""

    def __init__(self, connection: socket.socket, timeout_s: float, bytes_max: int) -> None:
        self._reader = BoundedReader(connection, timeout_s, bytes_max)

    def makefile(self, mode: str) -> Any:
        return io.BufferedReader(self._reader)


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, bytes_max: int) -> Answer:
    """Post `body` to a URL that `url_fault` has nothing against, and return the answer, whatever its status.

    `timeout_s` is for all of it, connecting included, and `bytes_max` for status, headers and body. Raises OSError,
    http.client.HTTPException or ValueError where there is no answer.
    """
    until_s = time.monotonic() + timeout_s
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(host, port)
    try:
        connection.sock = opened = _connect(host, port, tls, until_s)
        connection.request("POST", target, body, {"host": parts.netloc, "connection": "close", **headers})
        bounded = BoundedAnswer(opened, _left(until_s), bytes_max)
        answer = http.client.HTTPResponse(bounded)  # type: ignore[arg-type]
        answer.begin()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def _connect(host: str, port: int, tls: bool, until_s: float) -> socket.socket:
    opened = socket.create_connection((host, port), _left(until_s))
    try:
        if tls:
            # Made for each request: files of authorities may have been replaced.
            opened.settimeout(_left(until_s))
            opened = ssl.create_default_context().wrap_socket(opened, server_hostname=host)
        opened.settimeout(_left(until_s))
    except BaseException:
        opened.close()
        raise
    return opened


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
