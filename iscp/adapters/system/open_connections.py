"""The connections to a port of this process, also those that a library has made and shows to nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address

FILES = "/dev/fd"
"""The descriptors of whoever reads it, on Linux and on macOS."""

Peer = tuple[str, int]
"""Host and port. An IPv4 host that has come to an IPv6 socket is written as IPv4."""


def peer_of(host: str, port: int) -> Peer:
    """Raises ValueError for a host that is no address."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), port


def files_count() -> int:
    return len(os.listdir(FILES))


def connections_to(port: int) -> dict[Peer, int]:
    """Return the descriptors of the connections to `port`, by their peers."""
    found = {}
    for name in os.listdir(FILES):
        with _copy(int(name)) as connection:
            if connection is not None and (peer := _peer(connection, port)) is not None:
                found[peer] = int(name)
    return found


def end_connection(descriptor: int, peer: Peer, port: int) -> None:
    """Have its owner find it closed by the peer; unless the descriptor has become another file's meanwhile."""
    with _copy(descriptor) as connection:
        if connection is not None and _peer(connection, port) == peer:
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _copy(descriptor: int) -> Iterator[socket.socket | None]:
    """Yield a copy of the descriptor; None where it is no socket, or is closed by the time of the copy."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with connection:
        yield connection


def _peer(connection: socket.socket, port: int) -> Peer | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if connection.getsockname()[1] != port:
            return None
        host, from_port = connection.getpeername()[:2]
        return peer_of(host, from_port)
    except OSError:  # it listens, or has ended
        return None
