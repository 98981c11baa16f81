"""Owner and nodes over real sockets: order, restarts, refusals, bounds, and the calls beside the stream."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.channel import call_metadata
from iscp.adapters.grpc.channel.call_metadata import Meant
from iscp.adapters.grpc.channel.endpoint import Tls
from iscp.adapters.grpc.node import framing, node_server
from iscp.adapters.grpc.node.node_client import describe
from iscp.adapters.grpc.node.node_server import NodeServer
from iscp.adapters.grpc.node.owner_streams import Peers
from iscp.adapters.system.free_port import free_port
from iscp.client.admin_client import Client
from iscp.coordination.protocol.messages import (
    Acknowledge,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
)
from iscp.core import errors as core
from iscp.core.errors import IscpError
from iscp.core.ids import JobKey, ShardId, TableEpoch
from iscp.core.job_row import JobRow
from iscp.core.maintenance_figures import NO_UPKEEP
from iscp.core.members import NODES_MAX, WIRE_FORMAT, NodeRecord
from iscp.wire.v1 import node_pb2 as pb
from iscp.wire.v1 import node_pb2_grpc as pb_grpc
from tests.fakes.admin import FakeAdmin
from tests.fakes.certificates import certified
from tests.fakes.etcd_proxy import AnswerLosingProxy
from tests.fakes.node_calls import REPORT, UPKEEP, FakeNodeCalls

CLUSTER = "/iscp/lake"
WAIT_S = 20.0
ANNOUNCE = Announce("o", 1, 2, "1")
SHARD = ShardId("t", 2)


class Heard:
    """What came in, and a way to wait for it; while `hold` is taken, whoever brings more is kept waiting."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.hold = threading.Lock()
        self._came = threading.Condition()

    def take(self, messages: Sequence[Any]) -> None:
        with self.hold, self._came:
            self.messages += messages
            self._came.notify_all()

    def until(self, holds: Callable[[list[Any]], object]) -> list[Any]:
        with self._came:
            assert self._came.wait_for(lambda: holds(self.messages), WAIT_S), self.messages[-3:]
            return self.messages

    def has(self, message: object) -> list[Any]:
        return self.until(lambda messages: message in messages)


@dataclass
class NodeUnderTest:
    """A node's server, and what it has heard of owners."""

    node_id: str = "n"
    epoch: int = 1
    cluster: str = CLUSTER
    address: str = "127.0.0.1:0"
    heard: Heard = field(default_factory=Heard)
    calls: FakeNodeCalls = field(default_factory=FakeNodeCalls)

    def start(self) -> None:
        self.node = NodeServer(self.node_id, lambda: self.epoch, self.cluster, "1.2", self.calls, self.heard.take)
        self.server = AdminServer(FakeAdmin(), self.address, max_workers=2, waits_max=1, services=[self.node])
        self.server.start()
        self.address = self.server.address

    def stop(self) -> None:
        self.server.stop(grace_s=0)

    @property
    def record(self) -> NodeRecord:
        return NodeRecord(self.node_id, self.epoch, self.address)


@dataclass
class OwnerUnderTest:
    owner_id: str = "o"
    cluster: str = CLUSTER
    heard: Heard = field(default_factory=Heard)
    refused: Heard = field(default_factory=Heard)

    def __post_init__(self) -> None:
        def refuse(record: NodeRecord, error: IscpError) -> None:
            self.refused.take([error])

        def hear(node_id: str, messages: Sequence[NodeMessage]) -> None:
            self.heard.take(messages)

        self.peers = Peers(self.cluster, self.owner_id, hear, on_refused=refuse)


@pytest.fixture
def node() -> Iterator[NodeUnderTest]:
    node = NodeUnderTest()
    node.start()
    yield node
    node.stop()


@pytest.fixture
def owner() -> Iterator[OwnerUnderTest]:
    owner = OwnerUnderTest()
    yield owner
    owner.peers.close()


@contextmanager
def other_owner(**changed: Any) -> Iterator[OwnerUnderTest]:
    owner = OwnerUnderTest(**changed)
    try:
        yield owner
    finally:
        owner.peers.close()


MET = 1_000_000
"""The number of what is said first."""


def dispatch(number: int, *, bytes_each: int = 2, jobs: int = 1) -> DispatchTable:
    rows = tuple(
        JobRow(JobKey("default", str(number), f"j{job}"), f"{job:012x}", f"{number:0{bytes_each}}", "t", "/t")
        for job in range(jobs)
    )
    return DispatchTable(1, 1, TableEpoch(1, number), ShardId(str(number)), is_delete=False, jobs=rows)


def response(number: int, state: NodeShardState = NodeShardState.RUNNING) -> DispatchTableResponse:
    return DispatchTableResponse(1, 1, TableEpoch(1, number), ShardId(str(number)), state)


def said_until_heard(say: Callable[[], None], heard: Heard, message: object) -> None:
    """As the machines do: again and again."""
    begun_s = time.monotonic()
    while message not in heard.messages:
        assert time.monotonic() - begun_s < WAIT_S
        say()
        time.sleep(0.05)


def meet(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    """Both have heard each other."""
    announce = replace(ANNOUNCE, owner_id=owner.owner_id)
    owner.peers.send(node.record, announce)
    node.heard.has(announce)
    node.node.send(owner.owner_id, response(MET))
    owner.heard.has(response(MET))


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


def test_a_node_that_starts_anew_is_met_under_its_new_epoch(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
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
def test_strangers_are_refused_with_words_and_told_again(
    node: NodeUnderTest, owner_is: dict[str, str], node_is: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
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
    raw = pb.OwnerMessage(announce={"owner_id": "o", "owner_rev": 1}).SerializeToString()
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
    busy = FakeAdmin(before=lambda verb: bool(release.wait(WAIT_S)) and None)
    server = AdminServer(busy, "127.0.0.1:0", max_workers=1, waits_max=1, services=[node.node])
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


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_node_that_does_not_read_neither_holds_up_the_owner_nor_fills_its_memory(
    owner: OwnerUnderTest, node: NodeUnderTest
) -> None:
    meet(owner, node)
    sent = 3 * framing.QUEUE_MESSAGES_MAX
    with node.heard.hold:
        slowest_s = 0.0
        for number in range(sent):
            begun_s = time.monotonic()
            owner.peers.send(node.record, dispatch(number, bytes_each=1_000))
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
        assert slowest_s < 1.0
        # One batch on its way and one that waits; a frame or two have gone through.
        assert alive(DispatchTable) < 2.5 * framing.QUEUE_MESSAGES_MAX
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
    sent = 30 * framing.QUEUE_MESSAGES_MAX
    with owner.heard.hold:
        begun_s = time.monotonic()
        for number in range(sent):
            node.node.send("o", response(number))
        assert time.monotonic() - begun_s < WAIT_S
        assert alive(DispatchTableResponse) < 5 * framing.QUEUE_MESSAGES_MAX
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
    """One way only: what the node says is lost, what it is told arrives."""
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
        assert (
            time.monotonic() - begun_s < (call_metadata.KEEPALIVE_MS + call_metadata.KEEPALIVE_TIMEOUT_MS) / 1000 + 2.0
        )
        proxy.pass_answers()
        said_until_heard(lambda: node.node.send("o", response(2)), owner.heard, response(2))


@pytest.mark.full
def test_an_idle_stream_stays(owner: OwnerUnderTest, node: NodeUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    """Longer than a server that minds the pings would bear them."""
    caplog.set_level("INFO")
    meet(owner, node)
    time.sleep(10 * call_metadata.KEEPALIVE_MS / 1000)
    node.node.send("o", response(2))
    owner.heard.has(response(2))
    assert [record.message for record in caplog.records if record.message.startswith("peer.")] == ["peer.connected"]


def test_the_calls_reach_the_node_with_all_they_say(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    calls = owner.peers.call(node.record)
    calls.notify(SHARD, True)
    calls.notify(SHARD, False)
    calls.interrupt(SHARD, "job", '{"a": 1}')
    node.calls.released.set()
    assert calls.verify(SHARD, "job", True, 10.0, lambda: True) == REPORT
    assert node.calls.notified == [(SHARD, True), (SHARD, False)]
    assert node.calls.interrupted == [(SHARD, "job", '{"a": 1}')]
    assert node.calls.verified == [(SHARD, "job", True)]
    assert calls.counters() == {"submitted": 3, "failed": 1}
    assert (calls.upkeep("job"), calls.upkeep("other")) == (UPKEEP, NO_UPKEEP)


@pytest.mark.parametrize("kind", [core.JobFailed, core.QueueFull, core.Canceled, core.InvariantBroken])
def test_what_a_node_raises_comes_back_as_it_was(
    owner: OwnerUnderTest, node: NodeUnderTest, kind: type[IscpError]
) -> None:
    node.calls.failure = kind("what", field="f", remedy="do that")
    calls = owner.peers.call(node.record)
    for call in (
        lambda: calls.notify(SHARD, True),
        lambda: calls.interrupt(SHARD, "job", "{}"),
        lambda: calls.verify(SHARD, "job", False, 1.0, lambda: True),
        lambda: calls.upkeep("job"),
        calls.counters,
    ):
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.message, caught.value.field, caught.value.remedy) == ("what", "f", "do that")


def test_a_comparison_is_given_up_by_time_and_by_whoever_asked(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    calls = owner.peers.call(node.record)
    with pytest.raises(core.TimedOut, match=r"not done within 0\.2"):
        calls.verify(SHARD, "job", False, 0.2, lambda: True)
    node.calls.given_up.clear()
    with pytest.raises(core.Unavailable, match="the caller is gone"):
        calls.verify(SHARD, "job", False, 600.0, lambda: False)
    assert node.calls.given_up.wait(WAIT_S)


def test_comparisons_at_a_node_that_is_gone_have_an_unknown_outcome_only_where_they_repair(
    owner: OwnerUnderTest, node: NodeUnderTest
) -> None:
    calls = owner.peers.call(node.record)
    with ThreadPoolExecutor() as pool:
        asked = {
            repair: pool.submit(calls.verify, SHARD, "job", repair, 600.0, lambda: True) for repair in (True, False)
        }
        for _ in asked:
            assert node.calls.verifying.acquire(timeout=WAIT_S)
        node.stop()
        assert isinstance(asked[True].exception(WAIT_S), core.OutcomeUnknown)
        assert isinstance(asked[False].exception(WAIT_S), core.Unavailable)
    with pytest.raises(core.Unavailable):
        calls.notify(SHARD, True)
    node.start()


def test_calls_at_a_node_that_is_no_member_any_more_say_so(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    calls = owner.peers.call(node.record)
    owner.peers.keep([])
    for call in (
        lambda: calls.notify(SHARD, True),
        lambda: calls.verify(SHARD, "job", False, 1.0, lambda: True),
        calls.counters,
    ):
        with pytest.raises(core.Unavailable, match="no longer a member"):
            call()
    owner.peers.close()
    owner.peers.send(node.record, ANNOUNCE)
    with pytest.raises(core.Unavailable, match="are closed"):
        owner.peers.call(node.record)


def test_comparisons_at_a_node_are_bounded(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    calls = owner.peers.call(node.record)
    with ThreadPoolExecutor(node_server.VERIFIES_MAX) as pool:
        asked = [
            pool.submit(calls.verify, SHARD, str(number), False, 60.0, lambda: True)
            for number in range(node_server.VERIFIES_MAX)
        ]
        for _ in asked:
            assert node.calls.verifying.acquire(timeout=WAIT_S)
        with pytest.raises(core.QueueFull, match="comparisons wait at n"):
            calls.verify(SHARD, "job", False, 60.0, lambda: True)
        calls.notify(SHARD, True)
        node.calls.released.set()
        assert {each.result(WAIT_S) for each in asked} == {REPORT}


def test_who_is_at_an_address_is_told_to_anybody(node: NodeUnderTest) -> None:
    told = describe(node.address)
    assert (told.node_id, told.epoch, told.cluster, told.version) == ("n", 1, CLUSTER, "1.2")
    assert (told.wire_format, told.counters) == (WIRE_FORMAT, {"submitted": 3, "failed": 1})
    with pytest.raises(core.Unavailable):
        describe("127.0.0.1:1", timeout_s=2.0)
    plain = AdminServer(FakeAdmin(), "127.0.0.1:0")
    plain.start()
    with pytest.raises(core.PermanentError, match="Is it a node of iscp"):
        describe(plain.address)
    plain.stop(grace_s=0)


def test_a_server_with_streams_stops_at_once(owner: OwnerUnderTest) -> None:
    node = NodeUnderTest()
    node.start()
    meet(owner, node)
    begun_s = time.monotonic()
    node.server.stop(grace_s=10.0)
    assert time.monotonic() - begun_s < 5.0


def test_tls_on_both_sides_of_streams_calls_and_forwarded_calls() -> None:
    tls = certified()
    heard = Heard()
    node = NodeServer("n", lambda: 1, CLUSTER, "1", FakeNodeCalls(), heard.take)
    server = AdminServer(FakeAdmin(), "localhost:0", tls=tls, services=[node])
    server.start()
    record = NodeRecord("n", 1, server.address)
    peers = Peers(CLUSTER, "o", lambda node_id, messages: None, tls=tls)
    peers.send(record, ANNOUNCE)
    heard.has(ANNOUNCE)
    assert peers.call(record).counters() == describe(server.address, tls=tls).counters
    with pytest.raises(core.Unavailable):
        describe(server.address, tls=Tls(authority=tls.authority))
    forwarding = Forwarding(lambda: server.address, tls=tls)
    entry = AdminServer(FakeAdmin(), "127.0.0.1:0", interceptors=[forwarding])
    entry.start()
    with Client(entry.address, timeout_s=WAIT_S) as client:
        assert client.count() == 0
    peers.close()
    entry.stop(grace_s=0)
    server.stop(grace_s=0)
    forwarding.close()
