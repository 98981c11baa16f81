"""Serves health alone, without TLS, at an address of its own: kubelets do no TLS in their probes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from iscp.adapters.grpc.channel.client_watch import ClientWatch
from iscp.adapters.grpc.channel.connection_guard import ConnectionGuard
from iscp.adapters.grpc.channel.server_bounds import PROBE_CONNECTIONS_MAX, server_bounds
from iscp.adapters.grpc.channel.silent_calls import SilentCallGuard, SilentCalls
from iscp.core.values.errors import ConfigurationError

PROBES_MAX = 8
"""Health checks at a time at `health.listen`; one more is refused with RESOURCE_EXHAUSTED."""

_THREADS = 2


class HealthListener:
    """Serves the health of `servicer`, which whoever knows the node's state sets."""

    def __init__(self, servicer: health.HealthServicer, address: str) -> None:
        self._address = address
        silent = SilentCalls(_THREADS // 2)
        self._watch = ClientWatch()
        self._watch.add(silent.end_surplus)
        self._connections = ConnectionGuard(PROBE_CONNECTIONS_MAX)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="health"),
            interceptors=(SilentCallGuard(silent), self._connections),
            maximum_concurrent_rpcs=PROBES_MAX,
            options=server_bounds(PROBE_CONNECTIONS_MAX),
        )
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)

    def start(self) -> None:
        """Raises ConfigurationError if the address cannot be bound."""
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address}", field="health.listen", remedy="Is the port taken? Choose another"
            ) from error
        self._watch.add(partial(self._connections.make_room, port))
        self._watch.start()
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._watch.stop()
