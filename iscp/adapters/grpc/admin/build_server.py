"""Serves a BuildAdmin by gRPC, beside `Admin`."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

from collections.abc import Iterator

import grpc

from iscp.adapters.grpc.channel.grpc_errors import answering
from iscp.adapters.grpc.codec.build_messages import build_pages
from iscp.adapters.grpc.codec.request_messages import JOB_NAME
from iscp.ports.operator import BuildAdmin
from iscp.wire.v1 import builds_pb2 as pb
from iscp.wire.v1 import builds_pb2_grpc as pb_grpc

BUILD_CALLS_MAX = 50
"""Calls about builds at a time, in addition to users' and operators'."""


class BuildServer(pb_grpc.BuildsServicer):
    """The service's methods; give it to AdminServer as one of its `services`."""

    names = (pb.DESCRIPTOR.services_by_name["Builds"].full_name,)
    calls_max = BUILD_CALLS_MAX

    def __init__(self, service: BuildAdmin) -> None:
        self._service = service

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_BuildsServicer_to_server(self, server)

    def close(self) -> None:
        """Do nothing: all of its calls end by themselves."""

    def GetBuilds(self, request: pb.GetBuildsRequest, context: grpc.ServicerContext) -> Iterator[pb.BuildPage]:
        with answering(request, context, "builds"):
            yield from build_pages(self._service.builds(request.table, request.account))

    def AbortBuild(self, request: pb.AbortBuildRequest, context: grpc.ServicerContext) -> pb.AbortBuildResponse:
        with answering(request, context, "abort_build"):
            return pb.AbortBuildResponse(tasks=self._service.abort(JOB_NAME.from_wire(request.job)))

    def PrioritizeBuild(
        self, request: pb.PrioritizeBuildRequest, context: grpc.ServicerContext
    ) -> pb.PrioritizeBuildResponse:
        with answering(request, context, "prioritize_build"):
            return pb.PrioritizeBuildResponse(changed=self._service.prioritize(request.table))

    def ReshardBuild(self, request: pb.ReshardBuildRequest, context: grpc.ServicerContext) -> pb.ReshardBuildResponse:
        with answering(request, context, "reshard_build"):
            change = self._service.merge if request.merge else self._service.split
            return pb.ReshardBuildResponse(ranges=change(request.table, request.range_id))
