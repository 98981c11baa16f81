"""Free ports for servers that start a moment later: not in use, and not handed out to outgoing connections."""

from __future__ import annotations

import socket

from iscp.adapters.system.free_port import LOOPBACK, PORT_MAX, PORT_MIN, free_port, is_free


def test_a_port_lies_below_those_of_outgoing_connections() -> None:
    assert all(PORT_MIN <= free_port() < PORT_MAX for _ in range(20))
    assert len({free_port() for _ in range(20)}) > 1


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        assert not is_free(server.getsockname()[1])
