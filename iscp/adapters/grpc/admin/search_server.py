"""Serves searches of indexes by gRPC, beside `Admin`."""

# ruff: noqa: N802  (the methods have the wire's names)

from __future__ import annotations

import grpc

from iscp.adapters.grpc.channel.call_wait import waiting_s
from iscp.adapters.grpc.channel.grpc_errors import answering
from iscp.adapters.grpc.codec.search_messages import answer_to_wire, search_from_wire
from iscp.adapters.tls.endpoint import MESSAGE_BYTES_MAX
from iscp.core.api.search_views import WAIT_S_MAX
from iscp.core.values.errors import InvalidRequest
from iscp.ports.target_reading import Searching
from iscp.wire.v1 import search_pb2 as pb
from iscp.wire.v1 import search_pb2_grpc as pb_grpc


class SearchServer(pb_grpc.SearchServicer):
    """The service's method; give it to AdminServer as one of its `services`."""

    names = (pb.DESCRIPTOR.services_by_name["Search"].full_name,)
    calls_max = 0
    """All of its calls count as waits, which the server has threads for."""

    def __init__(self, service: Searching) -> None:
        self._service = service

    def add_to(self, server: grpc.Server) -> None:
        pb_grpc.add_SearchServicer_to_server(self, server)

    def close(self) -> None:
        self._service.close()

    def Search(self, request: pb.SearchRequest, context: grpc.ServicerContext) -> pb.SearchAnswer:
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
