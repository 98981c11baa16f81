"""Serves an AdminService by gRPC, with health and reflection, and whatever else a node serves at the same address.

Threads: each call takes one while it runs. `max_workers` of them are for calls that answer soon. Calls that wait, for
minutes perhaps, have threads of their own, as many as may wait and some more, in which those beyond are refused.
Other services bring threads of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from iscp.adapters.grpc.access.admin_servicer import JobServicer
from iscp.adapters.grpc.access.wait_guard import WAITING, WaitGuard
from iscp.adapters.grpc.admin.health_listener import HealthListener
from iscp.adapters.grpc.admin.request_guard import RequestGuard
from iscp.adapters.grpc.channel.call_metadata import SERVER_OPTIONS
from iscp.adapters.grpc.channel.client_watch import ClientWatch
from iscp.adapters.grpc.channel.connection_guard import ConnectionGuard
from iscp.adapters.grpc.channel.server_bounds import GRPC_CONNECTIONS_MAX, server_bounds
from iscp.adapters.grpc.channel.silent_calls import SILENT_IN_POOL_MAX, SilentCallGuard, SilentCalls
from iscp.adapters.tls.endpoint import MESSAGE_BYTES_MAX, split_address
from iscp.adapters.tls.server_credentials import server_credentials
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.access.service_table import methods_that
from iscp.core.settings.wait_bounds import WaitBounds
from iscp.core.values.errors import ConfigurationError
from iscp.ports.admin import AdminService
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)

MAX_WORKERS = 400
"""Calls at a time, besides waits; more queue. A change waits for the log's next group commit, so throughput is at most
MAX_WORKERS / (time of a commit).
"""

QUEUED_MAX = 2_000
"""Calls that may queue for a thread; one more is refused with RESOURCE_EXHAUSTED."""


_REFUSING = 2 * SILENT_IN_POOL_MAX
"""Threads in which waits beyond their bound are refused, also while clients that send nothing occupy some of them."""

_SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Admin"].full_name


class Service(Protocol):
    """Something that is served beside `Admin`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its gRPC services that users may call: reflection names them."""

    @property
    def calls_max(self) -> int:
        """Return how many of its calls may be under way."""

    def add_to(self, server: grpc.Server) -> None: ...

    def close(self) -> None:
        """End the calls that would not end by themselves."""


class AdminServer:
    """The gRPC server of a node: `Admin`, health and reflection, and `services` beside them.

    `address` is HOST:PORT; port 0 takes any free one, and after `start` the property `address` says which.
    At most `max_workers` calls run at a time, and waits as `waits` says. `interceptors` see every call first. Health is
    also served at `health_address`, if there is one.
    """

    def __init__(
        self,
        service: AdminService,
        address: str,
        *,
        max_workers: int = MAX_WORKERS,
        waits: WaitBounds = WaitBounds(),  # noqa: B008  (frozen)
        tls: TlsSource | None = None,
        services: Sequence[Service] = (),
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        health_address: str = "",
    ) -> None:
        self._address = address
        self._tls = tls
        self._services = services
        self._health = health.HealthServicer()
        self._probed = HealthListener(self._health, health_address) if health_address else None
        named = (_SERVICE_NAME, *(name for each in services for name in each.names))
        waiting = waits.node_max + _REFUSING
        self._waiting = ThreadPoolExecutor(waiting, thread_name_prefix="wait")
        silent = SilentCalls(max_workers // 2)
        self.watch = ClientWatch()
        self.watch.add(silent.end_surplus)
        self._connections = ConnectionGuard(GRPC_CONNECTIONS_MAX)
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers, thread_name_prefix="admin"),
            interceptors=(
                SilentCallGuard(
                    silent, methods_that(lambda _, rule: rule.lasts), dict.fromkeys(WAITING, self._waiting)
                ),
                self._connections,
                *interceptors,
                WaitGuard(waits),
                RequestGuard(),
            ),
            maximum_concurrent_rpcs=max_workers + waiting + QUEUED_MAX + sum(each.calls_max for each in services),
            options=(
                *SERVER_OPTIONS,
                *server_bounds(GRPC_CONNECTIONS_MAX),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ),
        )
        pb_grpc.add_AdminServicer_to_server(JobServicer(service), self._server)
        for each in services:
            each.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*named, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Bind and serve other nodes; raises ConfigurationError if an address cannot be bound."""
        host, port = split_address(self._address)
        try:
            bound = self._bind()
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address}", field="address", remedy="Is the port taken? Choose another"
            ) from error
        self._address = f"{host}:{port or bound}"
        if self._probed is not None:
            self._probed.start()
        self.watch.add(partial(self._connections.make_room, port or bound))
        self.watch.start()
        self._server.start()

    def ready(self) -> None:
        """Report to health checks that users are served."""
        self._health.set(_SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        log.info("admin.serving", extra={"address": self._address})

    def _bind(self) -> int:
        if self._tls is None:
            return int(self._server.add_insecure_port(self._address))
        return int(self._server.add_secure_port(self._address, server_credentials(self._tls)))

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, give running ones `grace_s` to end, then cut them off."""
        self._health.enter_graceful_shutdown()
        stopped = self._server.stop(grace_s)
        for each in self._services:
            each.close()  # ends the streams between nodes, which would last for all of the grace
        stopped.wait()
        self._waiting.shutdown(wait=False)
        if self._probed is not None:
            self._probed.stop()
        self.watch.stop()
        log.info("admin.stopped", extra={"address": self._address})
