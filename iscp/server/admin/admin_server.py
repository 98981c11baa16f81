"""The gRPC server of a node: `Admin` with health and reflection, and the services that are served at the same address.

The services beside `Admin` that are defined here are those of builds, operators, feeds and searches.
"""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from iscp.client.channel.attempts import waiting_s
from iscp.client.channel.grpc_calls import SERVER_OPTIONS, answering
from iscp.client.channel.silent_calls import (
    GRPC_CONNECTIONS_MAX,
    SILENT_IN_POOL_MAX,
    ClientWatch,
    ConnectionGuard,
    SilentCallGuard,
    SilentCalls,
    server_bounds,
)
from iscp.client.codec.api_messages import (
    CONSUMER,
    JOB_NAME,
    LOG_PAGE,
    NODE_VERBS,
    PLACED_SHARD,
    SHARD_VERBS,
    answer_to_wire,
    build_pages,
    event_pages,
    feed_request_from_wire,
    page_to_wire,
    places_from_wire,
    query_of_user,
    search_from_wire,
)
from iscp.client.codec.message_codec import pages
from iscp.model.access.service_table import methods_that
from iscp.model.api.api_requests import FEED_WAIT_S_MAX, WAIT_S_MAX, JobName, JobView, PlacedShard, ShardVerb
from iscp.model.settings.config import WaitBounds
from iscp.model.values.errors import ConfigurationError, InvalidRequest, QueueFull
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.ports.admin import AdminService, BuildAdmin, FeedReading, OperatorService, Searching
from iscp.server.access.access_interceptor import WAITING, WaitGuard
from iscp.server.access.admin_servicer import JobServicer
from iscp.server.admin.forwarding import HealthListener, RequestGuard
from iscp.system.tls.renewing_channel import server_credentials
from iscp.system.tls.tls_files import MESSAGE_BYTES_MAX, TlsSource, split_address
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from iscp.wire.v1 import builds_pb2 as builds_pb
from iscp.wire.v1 import builds_pb2_grpc as builds_pb_grpc
from iscp.wire.v1 import feeds_pb2 as feeds_pb
from iscp.wire.v1 import feeds_pb2_grpc as feeds_pb_grpc
from iscp.wire.v1 import operator_pb2 as operator_pb
from iscp.wire.v1 import operator_pb2_grpc as operator_pb_grpc
from iscp.wire.v1 import search_pb2 as search_pb
from iscp.wire.v1 import search_pb2_grpc as search_pb_grpc

# --- the server -------------------------------------------------------------------------------------------------------

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

    `address` is HOST:PORT; port 0 takes any free one, and after `start` the property `address` says which. At most
    `max_workers` calls run at a time, and waits as `waits` says. `interceptors` see every call first. Health is also
    served at `health_address`, if there is one.

    Threads: each call takes one while it runs. `max_workers` of them are for calls that answer soon. Calls that wait,
    for minutes perhaps, have threads of their own, as many as may wait and some more, in which those beyond are
    refused. Other services bring threads of their own.
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
        self._watch = ClientWatch()
        self._watch.add(silent.end_surplus)
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
        self._watch.add(partial(self._connections.make_room, port or bound))
        self._watch.start()
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
        self._watch.stop()
        log.info("admin.stopped", extra={"address": self._address})


# --- builds -----------------------------------------------------------------------------------------------------------
# The server serves a BuildAdmin.

BUILD_CALLS_MAX = 50
"""Calls about builds at a time, in addition to users' and operators'."""


class BuildServer(builds_pb_grpc.BuildsServicer):
    """The service's methods; give it to AdminServer as one of its `services`."""

    names = (builds_pb.DESCRIPTOR.services_by_name["Builds"].full_name,)
    calls_max = BUILD_CALLS_MAX

    def __init__(self, service: BuildAdmin) -> None:
        self._service = service

    def add_to(self, server: grpc.Server) -> None:
        builds_pb_grpc.add_BuildsServicer_to_server(self, server)

    def close(self) -> None:
        """Do nothing: all of its calls end by themselves."""

    def GetBuilds(
        self, request: builds_pb.GetBuildsRequest, context: grpc.ServicerContext
    ) -> Iterator[builds_pb.BuildPage]:
        with answering(request, context, "builds"):
            yield from build_pages(self._service.builds(request.table, request.account))

    def AbortBuild(
        self, request: builds_pb.AbortBuildRequest, context: grpc.ServicerContext
    ) -> builds_pb.AbortBuildResponse:
        with answering(request, context, "abort_build"):
            return builds_pb.AbortBuildResponse(tasks=self._service.abort(JOB_NAME.from_wire(request.job)))

    def PrioritizeBuild(
        self, request: builds_pb.PrioritizeBuildRequest, context: grpc.ServicerContext
    ) -> builds_pb.PrioritizeBuildResponse:
        with answering(request, context, "prioritize_build"):
            return builds_pb.PrioritizeBuildResponse(changed=self._service.prioritize(request.table))

    def ReshardBuild(
        self, request: builds_pb.ReshardBuildRequest, context: grpc.ServicerContext
    ) -> builds_pb.ReshardBuildResponse:
        with answering(request, context, "reshard_build"):
            change = self._service.merge if request.merge else self._service.split
            return builds_pb.ReshardBuildResponse(ranges=change(request.table, request.range_id))


# --- operators --------------------------------------------------------------------------------------------------------
# The server serves an OperatorService.

V = TypeVar("V")

CALLS_MAX = 100
"""Operators' calls at a time, in addition to users'."""

EVENTS_WAIT_MAX_S = 60.0
"""How long a call may wait for events; a longer wait is refused."""

LOG_CALLS_MAX = 16
"""Requests for lines of logs that an owner answers at a time, so that many who follow logs take no more of its threads;
one more is refused with QUEUE_FULL.
"""


class OperatorServer(operator_pb_grpc.OperatorServicer):
    """The service's methods; give it to AdminServer as one of its `services`."""

    names = (operator_pb.DESCRIPTOR.services_by_name["Operator"].full_name,)
    calls_max = CALLS_MAX

    def __init__(self, service: OperatorService) -> None:
        self._service = service
        self._closed = False
        self._reading = threading.BoundedSemaphore(LOG_CALLS_MAX)

    def add_to(self, server: grpc.Server) -> None:
        operator_pb_grpc.add_OperatorServicer_to_server(self, server)

    def close(self) -> None:
        self._closed = True

    def ChangeNode(
        self, request: operator_pb.ChangeNodeRequest, context: grpc.ServicerContext
    ) -> operator_pb.ChangeNodeResponse:
        with answering(request, context, "change_node"):
            verb = _require_known(NODE_VERBS.known, request.verb)
            changed, shards = self._service.change_node(verb, _require_node(request.node_id))
            return operator_pb.ChangeNodeResponse(changed=changed, shards=shards)

    def ChangeShards(
        self, request: operator_pb.ChangeShardsRequest, context: grpc.ServicerContext
    ) -> operator_pb.ChangeShardsResponse:
        with answering(request, context, "change_shards"):
            verb = _require_known(SHARD_VERBS.known, request.verb)
            node_id = request.node_id if verb is ShardVerb.UNPIN else _require_node(request.node_id)
            changed = self._service.change_shards(verb, request.table, request.range_id, node_id)
            return operator_pb.ChangeShardsResponse(changed=changed)

    def Reshard(
        self, request: operator_pb.ReshardRequest, context: grpc.ServicerContext
    ) -> operator_pb.ReshardResponse:
        with answering(request, context, "reshard"):
            ranges = self._service.reshard(request.merge, request.table, request.range_id, request.request_id)
            return operator_pb.ReshardResponse(ranges=ranges)

    def Rebalance(
        self, request: operator_pb.RebalanceRequest, context: grpc.ServicerContext
    ) -> Iterator[operator_pb.PlacementPage]:
        with answering(request, context, "rebalance"):
            yield from _placement_pages(self._service.rebalance(request.dry_run))

    def GetPlacement(
        self, request: operator_pb.GetPlacementRequest, context: grpc.ServicerContext
    ) -> Iterator[operator_pb.PlacementPage]:
        with answering(request, context, "placement"):
            yield from _placement_pages(self._service.placement(request.table, request.account))

    def GetEvents(
        self, request: operator_pb.GetEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[operator_pb.EventPage]:
        with answering(request, context, "events"):
            if not 0 <= request.wait_s <= EVENTS_WAIT_MAX_S:
                raise InvalidRequest(
                    f"must be 0 to {EVENTS_WAIT_MAX_S:.0f} seconds", field="wait_s", remedy="Call again when it is over"
                )
            events = self._service.events(
                request.after_owner_rev,
                request.after_number,
                request.wait_s,
                lambda: context.is_active() and not self._closed,
                request.table,
                request.account,
            )
            yield from event_pages(events)

    def GetLogs(
        self, request: operator_pb.GetLogsRequest, context: grpc.ServicerContext
    ) -> Iterator[operator_pb.LogPage]:
        with answering(request, context, "logs"):
            query, after = query_of_user(request), places_from_wire(request.after)
            if not self._reading.acquire(blocking=False):
                raise QueueFull(f"{LOG_CALLS_MAX} requests for logs are answered already", remedy="Retry in a moment")
            try:
                if request.node_id:
                    found = self._service.node_logs(request.node_id, query, after)
                else:
                    job = JobName(request.table, request.job_name, request.account or DEFAULT_ACCOUNT)
                    found = self._service.job_logs(job, query, after)
            finally:
                self._reading.release()
            for page in found:
                yield LOG_PAGE.to_wire(page)

    def ListConsumers(
        self, request: operator_pb.ListConsumersRequest, context: grpc.ServicerContext
    ) -> operator_pb.ListConsumersResponse:
        with answering(request, context, "consumers"):
            return operator_pb.ListConsumersResponse(
                consumers=[CONSUMER.to_wire(each) for each in self._service.consumers()]
            )


def _placement_pages(shards: Iterable[PlacedShard]) -> Iterator[operator_pb.PlacementPage]:
    for page in pages(map(PLACED_SHARD.to_wire, shards)):
        yield operator_pb.PlacementPage(shards=page)


def _require_known(verbs: Mapping[int, V], number: int) -> V:
    if number not in verbs:
        raise InvalidRequest(f"{number} is not known", about="verb", remedy="Is the client newer than the nodes?")
    return verbs[number]


def _require_node(node_id: str) -> str:
    if not node_id:
        raise InvalidRequest("is empty", field="node", remedy="Name a node; see `iscp-admin node list`")
    return node_id


# --- pages of jobs' feeds ---------------------------------------------------------------------------------------------
# The pages are served at whichever node is called.

JobOf = Callable[[admin_pb2.JobName, grpc.ServicerContext], JobView]
"""Return the job that a call names, as the owner answers that caller; or end the call with the owner's error."""


class FeedServer(feeds_pb_grpc.FeedsServicer):
    """The service's method; give it to AdminServer as one of its `services`."""

    names = (feeds_pb.DESCRIPTOR.services_by_name["Feeds"].full_name,)
    calls_max = 0
    """All of its calls count as waits, which the server has threads for."""

    def __init__(self, service: FeedReading, job_of: JobOf) -> None:
        self._service = service
        self._job_of = job_of

    def add_to(self, server: grpc.Server) -> None:
        feeds_pb_grpc.add_FeedsServicer_to_server(self, server)

    def close(self) -> None:
        self._service.close()

    def ReadFeed(self, request: feeds_pb.ReadFeedRequest, context: grpc.ServicerContext) -> feeds_pb.ChangePage:
        with answering(request, context, "read_feed"):
            wanted = feed_request_from_wire(
                request, waiting_s(request.timeout_s, FEED_WAIT_S_MAX, "Read again when it is over", context)
            )
        job = self._job_of(request.job, context)
        with answering(request, context, "read_feed"):
            return page_to_wire(self._service.read(job, wanted, context.is_active))


# --- searches of indexes ----------------------------------------------------------------------------------------------


class SearchServer(search_pb_grpc.SearchServicer):
    """The service's method; give it to AdminServer as one of its `services`."""

    names = (search_pb.DESCRIPTOR.services_by_name["Search"].full_name,)
    calls_max = 0
    """All of its calls count as waits, which the server has threads for."""

    def __init__(self, service: Searching) -> None:
        self._service = service

    def add_to(self, server: grpc.Server) -> None:
        search_pb_grpc.add_SearchServicer_to_server(self, server)

    def close(self) -> None:
        self._service.close()

    def Search(self, request: search_pb.SearchRequest, context: grpc.ServicerContext) -> search_pb.SearchAnswer:
        with answering(request, context, "search"):
            wanted = search_from_wire(
                request, waiting_s(request.timeout_s, WAIT_S_MAX, "Search again when it is over", context)
            )
            answer = answer_to_wire(self._service.search(wanted, request.account, context.is_active))
            if (size := answer.ByteSize()) > MESSAGE_BYTES_MAX:
                raise InvalidRequest(
                    f"the hits have {size} bytes, more than the {MESSAGE_BYTES_MAX} of an answer",
                    about="columns",
                    remedy="Name fewer columns, or give a smaller k",
                )
            return answer
