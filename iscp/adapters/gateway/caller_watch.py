"""Notices that a caller has gone while its answer is awaited, and ends the call."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CLOSED = getattr(select, "POLLRDHUP", 0)
"""Linux says so although there may be bytes that nobody reads; elsewhere only broken connections are noticed."""


class CallerWatch:
    """All connections whose answers are awaited; a ClientWatch checks them."""

    def __init__(self) -> None:
        self._awaited: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def watching(self, connection: socket.socket, gone: Callable[[], object]) -> Iterator[None]:
        """Watch the connection for the time of the block. `gone` is called at most once, by another thread, and must
        not wait.
        """
        descriptor = connection.fileno()
        with self._lock:
            self._awaited[descriptor] = gone
        try:
            yield
        finally:
            with self._lock:  # before the connection is closed, and its descriptor another one's
                self._awaited.pop(descriptor, None)

    def end_gone(self) -> None:
        """End the calls whose clients have closed their connection."""
        with self._lock:
            found = select.poll()
            for descriptor in self._awaited:
                found.register(descriptor, _CLOSED)
            gone = [self._awaited.pop(descriptor) for descriptor, _ in found.poll(0)]
        for each in gone:
            each()
