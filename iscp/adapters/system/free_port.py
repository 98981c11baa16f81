"""Finds TCP ports for servers that are started a moment later."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections: between the probe and the start of the
# server, any client on the machine might otherwise be given the port.
PORT_MIN, PORT_MAX = 15_000, 32_000
ATTEMPTS_MAX = 200
"""Ports drawn at random to find a free one; then the system's choice is taken."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on the loopback interface there now."""
    with socket.socket() as trial:
        # As servers do it: what lingers of closed connections is no obstacle.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now; drawn, so that several callers at the same time find different ones."""
    for _ in range(ATTEMPTS_MAX):
        port = random.randrange(PORT_MIN, PORT_MAX)
        if is_free(port):
            return port
    with socket.socket() as any_port:
        any_port.bind((LOOPBACK, 0))
        return int(any_port.getsockname()[1])
