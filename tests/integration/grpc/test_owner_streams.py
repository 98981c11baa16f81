"""Owner and nodes over real sockets: order, restarts, refusals, and bounds."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest

from iscp.client.channel import grpc_calls as grpc_errors
from iscp.client.channel.grpc_calls import Meant
from iscp.model.protocol.messages import (
    Acknowledge,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
)
from iscp.model.settings.config import WaitBounds
from iscp.model.values import errors as core
from iscp.model.values.ids import NODES_MAX, WIRE_FORMAT, NodeRecord
from iscp.server.admin.admin_server import AdminServer
from iscp.server.node import node_server
from iscp.server.node.owner_streams import Peers
from iscp.system.http_exchange import free_port
from iscp.wire.v1 import node_pb2 as pb
from iscp.wire.v1 import node_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin
from tests.fakes.etcd_proxy import AnswerLosingProxy
from tests.fakes.streams import (
    ANNOUNCE,
    CLUSTER,
    MET,
    SHARD,
    WAIT_S,
    Heard,
    NodeUnderTest,
    OwnerUnderTest,
    dispatch,
    meet,
    other_owner,
    response,
    said_until_heard,
)


def test_messages_arrive_in_order_both_ways(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    meet(owner, node)
    numbers = range(5_000)
    for number in numbers:
        owner.peers.send(node.record, dispatch(number))
        node.node.send("o", response(number))
    owner.peers.send(node.record, Acknowledge(1, 1, 1, 1))
    node.node.send("o", Checkpoint(1, 1, 1, ()))
    assert node.heard.has(Acknowledge(1, 1, 1, 1))[1:-1] == [dispatch(number) for number in numbers]
    assert owner.heard.has(Checkpoint(1, 1, 1, ()))[1:-1] == [response(number) for number in numbers]


def test_what_a_node_says_to_an_owner_without_a_stream_is_lost(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    node.node.send("o", response(1))
    node.node.send("nobody", response(2))
    meet(owner, node)
    assert owner.heard.messages == [response(MET)]


def test_a_large_dispatch_arrives_in_parts_and_in_its_place(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    large = dispatch(1, bytes_each=300, jobs=20_000)
    for message in (dispatch(0), large, dispatch(2)):
        owner.peers.send(node.record, message)
    assert node.heard.has(dispatch(2)) == [dispatch(0), large, dispatch(2)]


def test_a_node_that_starts_again_is_met_under_its_new_epoch(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    meet(owner, node)
    before = node.record
    node.stop()
    node.epoch, node.heard = 2, Heard()
    node.start()
    owner.peers.send(before, dispatch(1))  # it may be heard by nobody
    owner.peers.send(node.record, dispatch(2))
    node.heard.has(dispatch(2))
    owner.peers.keep([node.record])
    node.node.send("o", response(2))
    owner.heard.has(response(2))
    assert node.heard.messages == [dispatch(2)]
    assert owner.refused.messages == []


def test_a_stream_is_opened_again_when_the_node_comes_back(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    meet(owner, node)
    node.stop()
    for number in range(3):
        owner.peers.send(node.record, dispatch(number))
    node.heard = Heard()
    node.start()
    owner.peers.send(node.record, dispatch(3))
    node.heard.has(dispatch(3))
    node.node.send("o", response(3))
    owner.heard.has(response(3))


def test_a_node_that_is_not_there_yet_is_met_once_it_is(owner: OwnerUnderTest) -> None:
    node = NodeUnderTest(address=f"127.0.0.1:{free_port()}")
    owner.peers.send(node.record, dispatch(1))
    time.sleep(0.3)  # a few attempts fail
    node.start()
    try:
        node.heard.has(dispatch(1))
    finally:
        node.stop()


@pytest.mark.parametrize(
    ("owner_is", "node_is", "words"),
    [
        ({"cluster": "/iscp/sea"}, {}, "a node of the cluster '/iscp/lake', not of '/iscp/sea'"),
        ({}, {"node_id": "m"}, "this is the node 'n', not 'm'"),
    ],
    ids=["cluster", "node"],
)
def test_strangers_are_refused_with_words_and_reported_again(
    node: NodeUnderTest, owner_is: dict[str, str], node_is: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with other_owner(**owner_is) as owner:
        owner.peers.send(replace(node.record, **node_is), ANNOUNCE)
        errors = owner.refused.until(lambda told: len(told) >= 2)
        assert all(isinstance(error, core.ConfigurationError) and words in error.message for error in errors)
        assert all(error.remedy and error.field == "advertise" for error in errors)
        with pytest.raises(core.ConfigurationError, match=words):
            owner.peers.call(replace(node.record, **node_is)).notify(SHARD, True)
    assert node.heard.messages == []
    assert node.calls.notified == []
    assert len([record for record in caplog.records if record.message == "peer.refused"]) == 1


def test_another_epoch_is_refused_as_if_nobody_were_there(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    later = replace(node.record, epoch=2)
    owner.peers.send(later, ANNOUNCE)
    with pytest.raises(core.Unavailable, match="in epoch 1, not 2"):
        owner.peers.call(later).notify(SHARD, True)
    with pytest.raises(core.Unavailable, match="in epoch 1 now"):
        owner.peers.call(later).counters()
    node.epoch = 2
    node.heard.has(ANNOUNCE)
    assert owner.refused.messages == []


def test_wire_formats_that_do_not_go_together_are_refused(node: NodeUnderTest) -> None:
    meant = Meant(CLUSTER, "n", 1, "o", WIRE_FORMAT + 2)
    with grpc.insecure_channel(node.address) as channel:
        stub = pb_grpc.NodeStub(channel)
        for call in (
            lambda metadata: list(stub.Coordinate(iter(()), metadata=metadata, timeout=WAIT_S)),
            lambda metadata: stub.Notify(
                pb.NotifyRequest(shard=pb.ShardId(table_id="t", range_id=1)), metadata=metadata, timeout=WAIT_S
            ),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(meant.to_metadata())
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "Upgrade the nodes" in caught.value.details()
            with pytest.raises(grpc.RpcError, match="whom it means"):
                call(())
        next_format = replace(meant, wire_format=WIRE_FORMAT + 1).to_metadata()
        stub.Notify(pb.NotifyRequest(shard=pb.ShardId(table_id="t", range_id=1)), metadata=next_format, timeout=WAIT_S)


def test_messages_of_a_newer_kind_are_passed_over(node: NodeUnderTest) -> None:
    raw = pb.OwnerMessage(announce=pb.Announce(owner_id="o", owner_rev=1)).SerializeToString()
    frame = pb.Frame(messages=[b"\x7a\x00", raw])
    open_end = threading.Event()

    def said() -> Iterator[pb.Frame]:
        yield frame
        open_end.wait(WAIT_S)

    with grpc.insecure_channel(node.address) as channel:
        call = pb_grpc.NodeStub(channel).Coordinate(said(), metadata=Meant(CLUSTER, "n", 1, "o").to_metadata())
        node.heard.until(lambda messages: [message.owner_id for message in messages] == ["o"])
        call.cancel()
        open_end.set()


def test_a_later_stream_of_the_same_owner_takes_the_place_of_the_one_before(node: NodeUnderTest) -> None:
    with other_owner() as former, other_owner() as later:
        meet(former, node)
        later.peers.send(node.record, dispatch(1))
        node.heard.has(dispatch(1))
        former.peers.keep([])  # else it would take the place back
        said_until_heard(lambda: node.node.send("o", response(1)), later.heard, response(1))
        assert former.heard.messages == [response(MET)]


def test_two_owners_are_heard_and_answered_side_by_side(node: NodeUnderTest) -> None:
    with other_owner(owner_id="a") as a, other_owner(owner_id="b") as b:
        meet(a, node)
        meet(b, node)
        node.node.send("a", response(1))
        node.node.send("b", response(2))
        assert a.heard.has(response(1)) == [response(MET), response(1)]
        assert b.heard.has(response(2)) == [response(MET), response(2)]


def test_of_too_many_owners_the_oldest_gives_way_and_users_are_served(node: NodeUnderTest) -> None:
    ids = [f"o{number}" for number in range(node_server.OWNERS_MAX + 1)]
    owners = [OwnerUnderTest(owner_id) for owner_id in ids]
    try:
        for owner in owners:
            meet(owner, node)
        with grpc.insecure_channel(node.address) as channel:
            count = channel.unary_unary("/iscp.wire.v1.Admin/CountJobs")
            assert count(b"", timeout=WAIT_S) == b""
    finally:
        for owner in owners:
            owner.peers.close()


def test_users_do_not_keep_an_owner_out(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    release = threading.Event()
    busy = FakeAdmin(before=lambda verb: release.wait(WAIT_S))
    server = AdminServer(busy, "127.0.0.1:0", max_workers=1, waits=WaitBounds(node_max=1), services=[node.node])
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        count = channel.unary_unary("/iscp.wire.v1.Admin/CountJobs")
        waiting = [count.future(b"", timeout=WAIT_S) for _ in range(10)]
        record = replace(node.record, address=server.address)
        owner.peers.send(record, ANNOUNCE)
        node.heard.has(ANNOUNCE)
        owner.peers.call(record).notify(SHARD, True)
        release.set()
        assert [each.result(WAIT_S) for each in waiting] == [b""] * 10
    server.stop(grace_s=0)


HELD_UP_S = 5.0
"""A message that waits for its reader takes longer; others take milliseconds, and more on a busy machine."""


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_node_that_does_not_read_neither_holds_up_the_owner_nor_fills_its_memory(
    owner: OwnerUnderTest, node: NodeUnderTest
) -> None:
    meet(owner, node)
    sent = 3 * node_server.QUEUE_MESSAGES_MAX
    with node.heard.hold:
        slowest_s = 0.0
        for number in range(sent):
            begun_s = time.monotonic()
            owner.peers.send(node.record, dispatch(number, bytes_each=1_000))
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
        assert slowest_s < HELD_UP_S
        # One batch on its way and one that waits; a frame or two have gone through.
        assert alive(DispatchTable) < 2.5 * node_server.QUEUE_MESSAGES_MAX
    numbers = [
        message.table_epoch.counter
        for message in node.heard.has(dispatch(sent - 1, bytes_each=1_000))
        if isinstance(message, DispatchTable)
    ]
    assert numbers == sorted(numbers)
    assert len(numbers) < sent


def test_an_owner_that_does_not_read_neither_holds_up_the_node_nor_fills_its_memory(
    owner: OwnerUnderTest, node: NodeUnderTest
) -> None:
    meet(owner, node)
    sent = 10 * node_server.QUEUE_MESSAGES_MAX
    with owner.heard.hold:
        slowest_s = 0.0
        for number in range(sent):
            begun_s = time.monotonic()
            node.node.send("o", response(number))
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
        assert slowest_s < HELD_UP_S
        assert alive(DispatchTableResponse) < 5 * node_server.QUEUE_MESSAGES_MAX
        begun_s = time.monotonic()
        node.stop()
        assert time.monotonic() - begun_s < 5.0
    node.start()


def test_a_peer_that_cannot_be_reached_holds_nobody_up(owner: OwnerUnderTest) -> None:
    begun_s = time.monotonic()
    for number in range(20_000):
        owner.peers.send(NodeRecord("n", 1, "127.0.0.1:1"), dispatch(number))
    owner.peers.keep([])
    assert time.monotonic() - begun_s < 5.0


def test_nodes_are_bounded_and_places_are_given_back(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    strangers = [NodeRecord(f"x{number}", 1, "127.0.0.1:1") for number in range(NODES_MAX)]
    for record in strangers:
        owner.peers.call(record)
    owner.peers.send(node.record, dispatch(1))
    with pytest.raises(core.Unavailable, match="nodes already"):
        owner.peers.call(node.record)
    owner.peers.keep([node.record, *strangers[1:]])
    owner.peers.send(node.record, dispatch(2))
    assert node.heard.has(dispatch(2)) == [dispatch(2)]


def test_what_fails_while_it_hears_loses_one_batch_and_not_the_stream(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def hear(node_id: str, messages: Sequence[NodeMessage]) -> None:
        heard.take(messages)
        if response(1) in messages:
            raise core.QueueFull("the inbox does not keep up")

    peers = Peers(CLUSTER, "o", hear)
    peers.send(node.record, ANNOUNCE)
    node.heard.has(ANNOUNCE)
    for number in (1, 2):
        node.node.send("o", response(number))
        heard.has(response(number))
    peers.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["peer.not_heard"]


def test_a_cut_off_node_is_noticed_within_seconds(
    owner: OwnerUnderTest, node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """One way only: what the node says is lost, what it is sent arrives."""
    caplog.set_level("INFO")
    with AnswerLosingProxy(int(node.address.rpartition(":")[2])) as proxy:
        record = replace(node.record, address=proxy.endpoint)
        owner.peers.send(record, ANNOUNCE)
        node.heard.has(ANNOUNCE)
        node.node.send("o", response(1))
        owner.heard.has(response(1))
        proxy.lose_answers()
        begun_s = time.monotonic()
        while all(record.message != "peer.away" for record in caplog.records):
            assert time.monotonic() - begun_s < WAIT_S
            time.sleep(0.05)
        assert time.monotonic() - begun_s < (grpc_errors.KEEPALIVE_MS + grpc_errors.KEEPALIVE_TIMEOUT_MS) / 1000 + 2.0
        proxy.pass_answers()
        said_until_heard(lambda: node.node.send("o", response(2)), owner.heard, response(2))


@pytest.mark.full
def test_an_idle_stream_stays(owner: OwnerUnderTest, node: NodeUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    """For longer than a server that limits the rate of pings would accept them."""
    caplog.set_level("INFO")
    meet(owner, node)
    time.sleep(10 * grpc_errors.KEEPALIVE_MS / 1000)
    node.node.send("o", response(2))
    owner.heard.has(response(2))
    assert [record.message for record in caplog.records if record.message.startswith("peer.")] == ["peer.connected"]


def test_a_server_with_streams_stops_at_once(owner: OwnerUnderTest) -> None:
    node = NodeUnderTest()
    node.start()
    meet(owner, node)
    begun_s = time.monotonic()
    node.server.stop(grace_s=10.0)
    assert time.monotonic() - begun_s < 5.0
