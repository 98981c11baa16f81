"""Messages that are too large, blown up by compression, or were said before, change nothing and cost little memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import Meant
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.server.node.node_server import FRAME_BYTES_MAX
from iscp.server.node.owner_streams import describe
from iscp.system.tls.tls_files import MESSAGE_BYTES_MAX
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from iscp.wire.v1 import node_pb2 as node_pb
from iscp.wire.v1 import node_pb2_grpc as node_grpc
from tests.fakes.attacked_node import AttackedNode

BOMB_BYTES = 8 * MESSAGE_BYTES_MAX
"""A quarter of a gigabyte of zeros, as a quarter of a megabyte."""

MORE_MIB = 100
REPLAYED_S = 2.0
REGISTER = "/iscp.wire.v1.Admin/Register"


def refusal(node: AttackedNode, method: str, message: bytes, **more: object) -> grpc.StatusCode:
    with grpc.insecure_channel(node.address) as channel:
        call = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as failure:
            call(message, timeout=30.0, **more)
    assert isinstance(failure.value, grpc.Call)
    return failure.value.code()


def test_messages_that_are_too_large_are_refused_unread(attacked: AttackedNode) -> None:
    before_mib = attacked.memory_mib
    for method in (REGISTER, "/iscp.wire.v1.Access/CreateToken", "/iscp.wire.v1.node.Node/Interrupt"):
        code = refusal(attacked, method, bytes(MESSAGE_BYTES_MAX + 1))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    attacked.assert_unharmed(before_mib, MORE_MIB)


def test_a_small_message_that_is_large_once_it_is_unpacked_is_refused(attacked: AttackedNode) -> None:
    before_mib, peak_mib = attacked.memory_mib, attacked.peak_mib
    code = refusal(attacked, REGISTER, bytes(BOMB_BYTES), compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert attacked.peak_mib <= max(peak_mib, before_mib + MORE_MIB)
    attacked.assert_unharmed(before_mib, MORE_MIB)


def test_metadata_that_is_too_large_is_refused(attacked: AttackedNode) -> None:
    before_mib = attacked.memory_mib
    code = refusal(attacked, REGISTER, b"", metadata=(("x", "y" * 1_000_000),))
    assert code is not grpc.StatusCode.OK
    attacked.assert_unharmed(before_mib, MORE_MIB)


def test_a_registration_that_is_said_again_is_answered_as_it_was(attacked: AttackedNode) -> None:
    spec = JobSpec(ConsumerSpec("replica", "/targets/replayed", ("id",))).to_json()
    job = pb.JobName(table="/lake/replayed", name="copy")
    request = pb.RegisterRequest(
        format_version=1, registrations=[pb.Registration(job=job, spec_json=spec, request_id="r-1")]
    )
    with Client(attacked.address) as client, grpc.insecure_channel(attacked.address) as channel:
        stub = pb_grpc.AdminStub(channel)
        (first,) = stub.Register(request).results
        (again,) = stub.Register(request).results
        assert (again.job_id, again.created) == (first.job_id, first.created)
        assert client.unregister("/lake/replayed", "copy")
        (late,) = stub.Register(request).results
        assert late.job_id == first.job_id, "a job that was dropped came back"
        assert not [job for job in client.jobs() if job.table == "/lake/replayed"]


class Impostor:
    """Who calls a node as its owner would, and says what one said before, or would say of a later term."""

    def __init__(self, node: AttackedNode, owner_id: str, owner_rev: int) -> None:
        self._node = node
        self._owner_id, self._owner_rev = owner_id, owner_rev

    def speak(self) -> None:
        """All shards are to be given up; then silence for a while, as long as the node listens."""
        node = self._node
        meant = Meant(node.cluster, node.node_id, node.epoch, self._owner_id).to_metadata()
        with grpc.insecure_channel(node.address) as channel:
            call = node_grpc.NodeStub(channel).Coordinate(self._frames(), timeout=REPLAYED_S, metadata=meant)
            with suppress(grpc.RpcError):
                list(call)

    def _frames(self) -> Iterator[node_pb.Frame]:
        rev, epoch = self._owner_rev, self._node.epoch
        announce = node_pb.Announce(owner_id=self._owner_id, owner_rev=rev, election_revision=1, wire_format=3)
        said = [node_pb.OwnerMessage(announce=announce)]
        said += [
            node_pb.OwnerMessage(
                dispatch=node_pb.DispatchTable(
                    owner_rev=rev,
                    epoch=epoch,
                    dispatch_rev=rev,
                    counter=1_000 + n,
                    table_id=f"table-{n}",
                    range_id=1,
                    is_delete=True,
                )
            )
            for n in range(5)
        ]
        yield node_pb.Frame(messages=[message.SerializeToString() for message in said])
        time.sleep(REPLAYED_S)


@pytest.mark.parametrize("owner_rev", [0, 1, 1_000_000])
def test_who_speaks_as_an_owner_that_is_not_takes_no_shard_away(attacked: AttackedNode, owner_rev: int) -> None:
    """Whatever its term is: an owner is whom etcd has elected."""

    def running() -> int:
        return describe(attacked.address, tls=None).counters["shards"]

    before = running()
    Impostor(attacked, "stranger", owner_rev).speak()
    assert running() == before > 0  # random calls before this may have dropped some of its jobs
    attacked.assert_unharmed(attacked.memory_mib, MORE_MIB)


def test_parts_of_a_message_without_an_end_are_dropped(attacked: AttackedNode) -> None:
    """They are bounded by what one message may have (`test_node_server_framing.py`), and go with the stream."""
    before_mib = attacked.memory_mib
    meant = Meant(attacked.cluster, attacked.node_id, attacked.epoch, "stranger").to_metadata()
    parts = (node_pb.Frame(part=bytes(FRAME_BYTES_MAX - 16)) for _ in range(64))
    with grpc.insecure_channel(attacked.address) as channel, suppress(grpc.RpcError):
        list(node_grpc.NodeStub(channel).Coordinate(parts, timeout=REPLAYED_S, metadata=meant))
    attacked.assert_unharmed(before_mib, MORE_MIB)
