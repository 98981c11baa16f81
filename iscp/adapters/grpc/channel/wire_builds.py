"""What a job has requested of a build, as a message."""

from __future__ import annotations

from iscp.core.build_request import BuildRequest
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import node_pb2 as node_pb


def build_to_wire(build: BuildRequest | None) -> pb.BuildRequest | None:
    return pb.BuildRequest(**build.document()) if build else None


def build_from_wire(status: pb.JobStatus | node_pb.Status) -> BuildRequest | None:
    if not status.HasField("build"):
        return None
    found = status.build
    return BuildRequest(found.version, found.piece_bytes, found.depth)
