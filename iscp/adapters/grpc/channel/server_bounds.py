"""The bounds of a gRPC server: its connections, and the time for which nothing may happen on one."""

from __future__ import annotations

from iscp.adapters.system.open_files import open_files_limit

GRPC_CONNECTIONS_MAX = 4_096
"""Connections to a node's gRPC port, at most half of the files that the process may have open; one more is closed at
once, until another one ends. Open ones, of the nodes of a cluster and of users, go on.
"""

PROBE_CONNECTIONS_MAX = 256
"""Connections to `health.listen`; one more is closed at once."""

HANDSHAKE_MAX_MS = 5_000
"""How long a connection may take to begin with TLS and HTTP/2; then it is closed, and its place is free."""

IDLE_CONNECTION_MAX_MS = 600_000
"""How long a connection may be without a call; then it is closed, and a client opens another one with its next call."""

STREAMS_MAX = 1_000
"""Calls at a time of one connection, answers that are not read yet among them; a client holds further ones back."""

Options = tuple[tuple[str, int], ...]


def connections_most(connections_max: int) -> int:
    """Return `connections_max`, or as many as the open files allow."""
    return min(connections_max, open_files_limit() // 2)


def server_bounds(connections_max: int) -> Options:
    """Return the options of a server with up to `connections_max` connections."""
    return (
        ("grpc.max_allowed_incoming_connections", connections_most(connections_max)),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MAX_MS),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MAX_MS),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        # Two servers on one port would otherwise share it without a word.
        ("grpc.so_reuseport", 0),
    )
