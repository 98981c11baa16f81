"""Finds the jobs that callers name at the owner, for calls that any node answers by itself."""

from __future__ import annotations

import grpc

from iscp.adapters.grpc.access.admin_servicer import JobServicer
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.codec.job_messages import JOB
from iscp.adapters.grpc.codec.message_codec import to_request
from iscp.core.api.api_views import JobView
from iscp.ports.admin import AdminService
from iscp.wire.v1 import admin_pb2 as pb

_METHOD = f"/{pb.DESCRIPTOR.services_by_name['Admin'].full_name}/GetJob"


class OwnersJobs:
    """Calls GetJob in the name of whoever makes the call that needs the job: the owner decides about that call too."""

    def __init__(self, admin: AdminService, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._own = grpc.unary_unary_rpc_method_handler(
            JobServicer(admin).GetJob,
            request_deserializer=pb.GetJobRequest.FromString,
            response_serializer=pb.Job.SerializeToString,
        )

    def job(self, name: pb.JobName, context: grpc.ServicerContext) -> JobView:
        """Return the job; the error where there is none ends the call of `context`."""
        request = to_request(pb.GetJobRequest, job=name).SerializeToString()
        (answer,) = self._forwarding.answers(_METHOD, self._own, request, context)
        return JOB.from_wire(pb.Job.FromString(answer))
