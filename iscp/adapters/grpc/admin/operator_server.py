"""Serves an OperatorService by gRPC, beside `Admin`."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import grpc

from iscp.adapters.grpc.channel.grpc_errors import answering
from iscp.adapters.grpc.codec.cluster_messages import CONSUMER, PLACED_SHARD, event_pages
from iscp.adapters.grpc.codec.log_messages import LOG_PAGE, places_from_wire, query_of_user
from iscp.adapters.grpc.codec.message_codec import pages
from iscp.adapters.grpc.codec.request_messages import NODE_VERBS, SHARD_VERBS
from iscp.core.api.api_requests import JobName, ShardVerb
from iscp.core.api.api_views import PlacedShard
from iscp.core.values.errors import InvalidRequest, QueueFull
from iscp.core.values.ids import DEFAULT_ACCOUNT
from iscp.ports.operator import OperatorService
from iscp.wire.v1 import operator_pb2 as pb
from iscp.wire.v1 import operator_pb2_grpc as pb_grpc

V = TypeVar("V")

CALLS_MAX = 100
"""Operators' calls at a time, in addition to users'."""

EVENTS_WAIT_MAX_S = 60.0
"""How long a call may wait for events; a longer wait is refused."""

LOG_CALLS_MAX = 16
"""Requests for lines of logs that an owner answers at a time, so that many who follow logs take no more of its threads;
one more is refused with QUEUE_FULL.
"""


class OperatorServer(pb_grpc.OperatorServicer):
    """The service's methods; give it to AdminServer as one of its `services`."""

    names = (pb.DESCRIPTOR.services_by_name["Operator"].full_name,)
    calls_max = CALLS_MAX

    def __init__(self, service: OperatorService) -> None:
        self._service = service
        self._closed = False
        self._reading = threading.BoundedSemaphore(LOG_CALLS_MAX)

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_OperatorServicer_to_server(self, server)

    def close(self) -> None:
        self._closed = True

    def ChangeNode(self, request: pb.ChangeNodeRequest, context: grpc.ServicerContext) -> pb.ChangeNodeResponse:
        with answering(request, context, "change_node"):
            verb = _require_known(NODE_VERBS.known, request.verb)
            changed, shards = self._service.change_node(verb, _require_node(request.node_id))
            return pb.ChangeNodeResponse(changed=changed, shards=shards)

    def ChangeShards(self, request: pb.ChangeShardsRequest, context: grpc.ServicerContext) -> pb.ChangeShardsResponse:
        with answering(request, context, "change_shards"):
            verb = _require_known(SHARD_VERBS.known, request.verb)
            node_id = request.node_id if verb is ShardVerb.UNPIN else _require_node(request.node_id)
            changed = self._service.change_shards(verb, request.table, request.range_id, node_id)
            return pb.ChangeShardsResponse(changed=changed)

    def Reshard(self, request: pb.ReshardRequest, context: grpc.ServicerContext) -> pb.ReshardResponse:
        with answering(request, context, "reshard"):
            ranges = self._service.reshard(request.merge, request.table, request.range_id, request.request_id)
            return pb.ReshardResponse(ranges=ranges)

    def Rebalance(self, request: pb.RebalanceRequest, context: grpc.ServicerContext) -> Iterator[pb.PlacementPage]:
        with answering(request, context, "rebalance"):
            yield from _placement_pages(self._service.rebalance(request.dry_run))

    def GetPlacement(
        self, request: pb.GetPlacementRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.PlacementPage]:
        with answering(request, context, "placement"):
            yield from _placement_pages(self._service.placement(request.table, request.account))

    def GetEvents(self, request: pb.GetEventsRequest, context: grpc.ServicerContext) -> Iterator[pb.EventPage]:
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

    def GetLogs(self, request: pb.GetLogsRequest, context: grpc.ServicerContext) -> Iterator[pb.LogPage]:
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
        self, request: pb.ListConsumersRequest, context: grpc.ServicerContext
    ) -> pb.ListConsumersResponse:
        with answering(request, context, "consumers"):
            return pb.ListConsumersResponse(consumers=[CONSUMER.to_wire(each) for each in self._service.consumers()])


def _placement_pages(shards: Iterable[PlacedShard]) -> Iterator[pb.PlacementPage]:
    for page in pages(map(PLACED_SHARD.to_wire, shards)):
        yield pb.PlacementPage(shards=page)


def _require_known(verbs: Mapping[int, V], number: int) -> V:
    if number not in verbs:
        raise InvalidRequest(f"{number} is not known", about="verb", remedy="Is the client newer than the nodes?")
    return verbs[number]


def _require_node(node_id: str) -> str:
    if not node_id:
        raise InvalidRequest("is empty", field="node", remedy="Name a node; see `iscp-admin node list`")
    return node_id
