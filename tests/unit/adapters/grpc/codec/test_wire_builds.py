"""What is requested and counted of builds, between versions that know different parts of it."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.codec.wire_builds import answer_from_wire, answer_to_wire, build_from_wire, build_to_wire
from iscp.core.build.build_request import BuildRequest
from iscp.core.values.progress import UNCOUNTED, UNKNOWN, UNSIZED, SnapshotSize, TableSize
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import node_pb2 as node_pb

FINISHED = {"a": TableSize(10, 80), "b": TableSize(UNKNOWN, 0)}


@pytest.mark.parametrize("size", [UNSIZED, SnapshotSize(0, 0, 0), SnapshotSize(1_000, 8_000, 16)])
def test_a_request_comes_as_it_went(size: SnapshotSize) -> None:
    for pin in ("", "abcd"):
        request = BuildRequest(7, 1024, 3, size, pin)
        assert build_from_wire(pb.JobStatus(build=build_to_wire(request))) == request
    assert build_from_wire(pb.JobStatus(build=build_to_wire(None))) is None


def test_of_an_earlier_versions_request_the_size_is_unknown() -> None:
    earlier = pb.BuildRequest(version=7, piece_bytes=1024, depth=3)
    assert build_from_wire(pb.JobStatus(build=earlier)) == BuildRequest(7, 1024, 3, UNSIZED)


def test_what_is_finished_comes_as_it_went() -> None:
    assert answer_from_wire(answer_to_wire(FINISHED)) == FINISHED
    assert list(answer_to_wire(FINISHED).finished) == ["a", "b"], "which an earlier version reads"


def test_what_an_earlier_version_has_finished_is_uncounted() -> None:
    assert answer_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a", "b"])) == dict.fromkeys("ab", UNCOUNTED)


def test_sizes_that_cannot_be_are_refused_and_those_of_nothing_passed_over() -> None:
    sizes = [node_pb.RangeSize(rows=-2)]
    with pytest.raises(ValueError, match=r"sizes\.rows"):
        answer_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a"], sizes=sizes))
    assert answer_from_wire(node_pb.WorkOnBuildTasksResponse(sizes=[node_pb.RangeSize(rows=1)])) == {}
