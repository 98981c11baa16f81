"""The connections whose request has not come yet: nobody knows who they are, so they give way to each other."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Hashable
from contextlib import suppress

log = logging.getLogger(__name__)

PENDING_MAX = 256
"""Connections to the gateway whose request has not come whole, TLS included; for one more the oldest is closed."""

PENDING_PER_HOST_MAX = 64
"""Of these, connections from one address; for one more the oldest of them is closed."""

Address = tuple[Hashable, ...]
"""A peer's: the host, the port, and what else the family has."""


class PendingConnections:
    """By the addresses of their peers, the oldest first. Safe to use from several threads."""

    def __init__(self) -> None:
        self._held: dict[Address, socket.socket] = {}
        self._lock = threading.Lock()

    def enter(self, address: Address, connection: socket.socket) -> None:
        """Never waits, and refuses nobody. A later socket of the same connection takes the place of the one before."""
        with self._lock:
            if address not in self._held:
                of_host = [each for each in self._held if each[0] == address[0]]
                if len(of_host) >= PENDING_PER_HOST_MAX:
                    self._close(of_host[0])
                elif len(self._held) >= PENDING_MAX:
                    self._close(next(iter(self._held)))
            self._held[address] = connection

    def leave(self, address: Address) -> None:
        """Its request is there, or it is about to be closed."""
        with self._lock:
            self._held.pop(address, None)

    def _close(self, address: Address) -> None:
        log.info("gateway.gave_way", extra={"peer": str(address[0])})
        with suppress(OSError):  # its peer has gone
            # Its thread wakes and ends it. Not SSLSocket's own, which would have that thread go on without TLS.
            socket.socket.shutdown(self._held.pop(address), socket.SHUT_RDWR)
