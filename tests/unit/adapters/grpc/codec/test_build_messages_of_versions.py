"""What is requested and counted of builds, between versions that know different parts of it."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.codec.build_messages import BUILD_REQUEST, finished_from_wire, finished_to_wire
from iscp.core.build.build_request import BuildRequest
from iscp.core.values.progress import UNCOUNTED, UNKNOWN, UNSIZED, SnapshotSize, TableSize
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import node_pb2 as node_pb

FINISHED = {"a": TableSize(10, 80), "b": TableSize(UNKNOWN, 0)}


@pytest.mark.parametrize("size", [UNSIZED, SnapshotSize(0, 0, 0), SnapshotSize(1_000, 8_000, 16)])
def test_a_request_comes_as_it_went(size: SnapshotSize) -> None:
    for pin in ("", "abcd"):
        request = BuildRequest(7, 1024, 3, size, pin)
        assert BUILD_REQUEST.from_wire(BUILD_REQUEST.to_wire(request)) == request


def test_of_an_earlier_versions_request_the_size_is_unknown() -> None:
    earlier = pb.BuildRequest(version=7, piece_bytes=1024, depth=3)
    assert BUILD_REQUEST.from_wire(earlier) == BuildRequest(7, 1024, 3, UNSIZED)


def test_what_is_finished_comes_as_it_went() -> None:
    assert finished_from_wire(finished_to_wire(FINISHED)) == FINISHED
    assert list(finished_to_wire(FINISHED).finished) == ["a", "b"], "which an earlier version reads"


def test_what_an_earlier_version_has_finished_is_uncounted() -> None:
    assert finished_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a", "b"])) == dict.fromkeys("ab", UNCOUNTED)


def test_sizes_that_cannot_be_are_refused_and_those_of_nothing_passed_over() -> None:
    sizes = [node_pb.RangeSize(rows=-2)]
    with pytest.raises(ValueError, match=r"sizes\.rows"):
        finished_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a"], sizes=sizes))
    assert finished_from_wire(node_pb.WorkOnBuildTasksResponse(sizes=[node_pb.RangeSize(rows=1)])) == {}
