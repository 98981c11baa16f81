"""Serves pages of jobs' feeds by gRPC, beside `Admin`, at whichever node is called."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

from collections.abc import Callable

import grpc

from iscp.adapters.grpc.channel.call_wait import waiting_s
from iscp.adapters.grpc.channel.grpc_errors import answering
from iscp.adapters.grpc.codec.feed_messages import feed_request_from_wire, page_to_wire
from iscp.core.api.api_views import JobView
from iscp.core.api.feed_views import FEED_WAIT_S_MAX
from iscp.ports.target_reading import FeedReading
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import feeds_pb2 as pb
from iscp.wire.v1 import feeds_pb2_grpc as pb_grpc

JobOf = Callable[[admin_pb2.JobName, grpc.ServicerContext], JobView]
"""Return the job that a call names, as the owner answers that caller; or end the call with the owner's error."""


class FeedServer(pb_grpc.FeedsServicer):
    """The service's method; give it to AdminServer as one of its `services`."""

    names = (pb.DESCRIPTOR.services_by_name["Feeds"].full_name,)
    calls_max = 0
    """All of its calls count as waits, which the server has threads for."""

    def __init__(self, service: FeedReading, job_of: JobOf) -> None:
        self._service = service
        self._job_of = job_of

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_FeedsServicer_to_server(self, server)

    def close(self) -> None:
        self._service.close()

    def ReadFeed(self, request: pb.ReadFeedRequest, context: grpc.ServicerContext) -> pb.ChangePage:
        with answering(request, context, "read_feed"):
            wanted = feed_request_from_wire(
                request, waiting_s(request.timeout_s, FEED_WAIT_S_MAX, "Read again when it is over", context)
            )
        job = self._job_of(request.job, context)
        with answering(request, context, "read_feed"):
            return page_to_wire(self._service.read(job, wanted, context.is_active))
