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
"""Connections from one address among these; for one more the oldest of them is closed."""

Address = tuple[Hashable, ...]
"""A peer's: the host, the port, and what else the family has."""


class PendingConnections:
    """The pending connections by the addresses of their peers, the oldest first. Several threads may use it."""

    def __init__(self) -> None:
        self._pending: dict[Address, socket.socket] = {}
        self._lock = threading.Lock()

    def enter(self, address: Address, connection: socket.socket) -> None:
        """Add a connection, without waiting or refusing it. A later socket of the same connection takes the earlier
        one's place.
        """
        with self._lock:
            if address not in self._pending:
                of_host = [each for each in self._pending if each[0] == address[0]]
                if len(of_host) >= PENDING_PER_HOST_MAX:
                    self._close(of_host[0])
                elif len(self._pending) >= PENDING_MAX:
                    self._close(next(iter(self._pending)))
            self._pending[address] = connection

    def leave(self, address: Address) -> None:
        """Its request is there, or it is about to be closed."""
        with self._lock:
            self._pending.pop(address, None)

    def _close(self, address: Address) -> None:
        log.info("gateway.gave_way", extra={"peer": str(address[0])})
        with suppress(OSError):  # its peer has gone
            # Its thread wakes and ends it. Not SSLSocket's own, which would have that thread go on without TLS.
            socket.socket.shutdown(self._pending.pop(address), socket.SHUT_RDWR)
