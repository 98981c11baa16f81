"""Sends items to a place that may be away, from a thread of its own, so that nobody waits for it.

What waits is bounded, and so is every attempt. What is not sent by then is dropped, and counted. The places are
receivers of telemetry by HTTP, and files of events.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from iscp.model.values.errors import ConfigurationError, IscpError, PermanentError, Unavailable
from iscp.system.http_exchange import exchange, failure_words
from iscp.system.small_files import read_named_file

# --- the sender -------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

T = TypeVar("T")

SAID_EVERY_S = 60.0
"""Pause between two lines of the log that say how many items were dropped, to one place."""


@dataclass(frozen=True, slots=True)
class SenderBounds:
    """`waiting_max`: items that wait; one more is dropped. `batch_max`: items that are sent at once.

    `linger_s`: how long the first item of a batch may wait for others. `attempts`: how often a batch is tried; then it
    is dropped. `pause_s`: the pause before the second attempt, which doubles with each.
    """

    waiting_max: int
    batch_max: int
    linger_s: float
    attempts: int
    pause_s: float


class BoundedSender(Generic[T]):
    """`send` sends a batch, within a bounded time, and raises IscpError; a PermanentError is not worth another attempt.

    It returns how many of the batch were not taken. `sent` and `dropped` count items since the start.
    """

    def __init__(self, name: str, send: Callable[[Sequence[T]], int], bounds: SenderBounds) -> None:
        self._name = name
        self._send = send
        self._bounds = bounds
        self._waiting: deque[T] = deque()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self.sent = self.dropped = 0
        self._said = 0
        self._said_at_s = -SAID_EVERY_S
        self._thread = threading.Thread(target=self._run, name=f"iscp-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return how many items wait."""
        return len(self._waiting)

    def put(self, item: T) -> None:
        """Have the item sent; this never blocks, and drops it where too many wait or the sender is closed."""
        with self._wake:
            if len(self._waiting) >= self._bounds.waiting_max or self._closing.is_set():
                self.dropped += 1
                return
            self._waiting.append(item)
            if len(self._waiting) in (1, self._bounds.batch_max):
                self._wake.notify()

    def close(self, wait_s: float) -> bool:
        """Send what waits, each batch once, for `wait_s` at most; the rest is dropped. Return whether all was sent."""
        with self._wake:
            self._closing.set()
            self._wake.notify()
        self._thread.join(wait_s)
        with self._wake:
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        if self.dropped > self._said:
            self._say("the node stops")
        return not left and not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._take():
            self._send_all(batch)

    def _take(self) -> list[T]:
        """Return the next batch; none: the sender was closed, and nothing waits."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing.is_set())
            self._wake.wait_for(self._is_full, self._bounds.linger_s)
            count = min(len(self._waiting), self._bounds.batch_max)
            return [self._waiting.popleft() for _ in range(count)]

    def _is_full(self) -> bool:
        return self._closing.is_set() or len(self._waiting) >= self._bounds.batch_max

    def _send_all(self, batch: list[T]) -> None:
        refused, why = len(batch), ""
        for attempt in range(self._bounds.attempts):
            try:
                refused, why = self._send(batch), "the receiver has refused some"
                break
            except IscpError as error:
                why = str(error)
                # Closed: one attempt is enough, for the node stops.
                if isinstance(error, PermanentError) or self._closing.wait(self._bounds.pause_s * 2**attempt):
                    break
            except Exception as error:
                log.exception("telemetry.broken", extra={"to": self._name})
                why = f"{type(error).__name__}: {error}"
                break
        with self._wake:
            self.dropped += refused
            self.sent += len(batch) - refused
        if self.dropped > self._said and time.monotonic() >= self._said_at_s + SAID_EVERY_S:
            self._say(why)

    def _say(self, why: str) -> None:
        count, self._said, self._said_at_s = self.dropped - self._said, self.dropped, time.monotonic()
        log.warning("telemetry.dropped", extra={"to": self._name, "count": count, "why": why})


# --- receivers of telemetry by HTTP -----------------------------------------------------------------------------------
# A request has the headers by which the receiver knows who sends.

POST_TIMEOUT_S = 10.0
"""Seconds that one request to a receiver of telemetry may take in all; then the attempt has failed."""

ANSWER_BYTES_MAX = 65_536
"""Bytes of a receiver's answer, with its headers; if it is longer the attempt has failed."""

HEADERS_BYTES_MAX = 16_384
"""Bytes of a file with headers; a larger one is refused at the node's start."""

RETRIED = frozenset({408, 425, 429})

_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\x20-\x7e]*)")
_OWN = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding"})


def read_headers(file: str, field: str) -> Mapping[str, str]:
    """Return the headers of a file, which has one a line, `NAME: VALUE`; empty lines, and those with # first, are left
    out. None are returned if no file is named. Raises ConfigurationError on `field`, without what the file holds.
    """
    if not file:
        return {}
    content = read_named_file(file, field, HEADERS_BYTES_MAX)
    if len(content) > HEADERS_BYTES_MAX:
        raise ConfigurationError(f"{file} has more than {HEADERS_BYTES_MAX} bytes", about=field, remedy="Shorten it")
    headers: dict[str, str] = {}
    for number, line in enumerate(content.decode("latin-1").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _HEADER.fullmatch(line.rstrip())
        if found is None or found["name"].lower() in _OWN:
            raise ConfigurationError(
                f"{file} has a line {number} that is no header",
                about=field,
                remedy="Write NAME: VALUE, as in authorization: Bearer TOKEN",
            )
        headers[found["name"].lower()] = found["value"]
    return headers


class HttpTarget:
    """Post to a URL that `url_fault` has nothing against. No redirect is followed."""

    def __init__(self, url: str, headers: Mapping[str, str], content_type: str) -> None:
        self._url = url
        self._host = urlsplit(url).hostname
        self._headers = {"user-agent": "iscp", **headers, "content-type": content_type}

    def post(self, body: bytes) -> bytes:
        """Return the body of the answer. Raises Unavailable, or PermanentError if another attempt would be useless."""
        try:
            answer = exchange(
                "POST", self._url, body, self._headers, timeout_s=POST_TIMEOUT_S, bytes_max=ANSWER_BYTES_MAX
            )
        except OSError as error:
            raise Unavailable(f"{self._host} cannot be reached: {failure_words(error)}") from error
        if answer.good:
            return answer.body
        message = f"{self._host} answers {answer.status}"
        if answer.status >= 500 or answer.status in RETRIED:
            raise Unavailable(message)
        raise PermanentError(message)


# --- receivers of events ----------------------------------------------------------------------------------------------
# A receiver of events is a URL, or a file with an event on each line.

_FILE_MODE = 0o640

EVENT_BYTES_MAX = 4 * 1024**2
"""Bytes of one event; a larger one, as of a table of very many columns, is dropped, and counted."""


def _encoded(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def post_events(target: HttpTarget, events: Sequence[Mapping[str, Any]]) -> int:
    """Post each event by itself; return how many were too large. Raises Unavailable and PermanentError."""
    bodies = [_encoded(event) for event in events]
    fit = [body for body in bodies if len(body) <= EVENT_BYTES_MAX]
    for body in fit:
        target.post(body)
    return len(bodies) - len(fit)


def append_events(path: str, events: Sequence[Mapping[str, Any]]) -> int:
    """Append the events to the file at `path`, which several nodes may do; return how many were too large.

    Raises Unavailable.
    """
    lines = [_encoded(event) + b"\n" for event in events]
    fit = [line for line in lines if len(line) <= EVENT_BYTES_MAX]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _FILE_MODE)
        with open(descriptor, "ab", buffering=0) as file:
            content = b"".join(fit)
            # In one call, so that no line of another process comes between.
            if file.write(content) != len(content):
                raise Unavailable(f"{path} has taken a part of the events alone")
    except OSError as error:
        raise Unavailable(f"{path} cannot be written ({error.strerror})") from error
    return len(lines) - len(fit)
