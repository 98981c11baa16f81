"""What a job has requested of a build, and what nodes have finished of it, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, repeat

from iscp.core.build.build_request import BuildRequest
from iscp.core.values.progress import UNCOUNTED, UNKNOWN, SnapshotSize, TableSize, count_or_unknown
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import node_pb2 as node_pb


def build_to_wire(build: BuildRequest | None) -> pb.BuildRequest | None:
    return pb.BuildRequest(**build.document()) if build else None


def build_from_wire(status: pb.JobStatus | node_pb.Status) -> BuildRequest | None:
    if not status.HasField("build"):
        return None
    found = status.build
    rows, size, pieces = (
        getattr(found, name) if found.HasField(name) else UNKNOWN for name in ("rows", "bytes", "pieces")
    )
    return BuildRequest(found.version, found.piece_bytes, found.depth, SnapshotSize(rows, size, pieces), found.pin)


def answer_to_wire(finished: Mapping[str, TableSize]) -> node_pb.WorkOnBuildTasksResponse:
    sizes = [node_pb.RangeSize(rows=size.rows, bytes=size.bytes) for size in finished.values()]
    return node_pb.WorkOnBuildTasksResponse(finished=finished, sizes=sizes)


def answer_from_wire(answer: node_pb.WorkOnBuildTasksResponse) -> dict[str, TableSize]:
    """UNCOUNTED where the node does not say; raises ValueError."""
    sizes = (
        TableSize(count_or_unknown(each.rows, "sizes.rows"), count_or_unknown(each.bytes, "sizes.bytes"))
        for each in answer.sizes
    )
    return dict(zip(answer.finished, chain(sizes, repeat(UNCOUNTED)), strict=False))
