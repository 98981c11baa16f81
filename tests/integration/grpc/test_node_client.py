"""The calls beside the stream: requests to a node over a real socket, and what comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.client.admin_client import Client
from iscp.model.api.api_requests import EventView, JobOfLines, LogLine, LogPage, LogPlace, LogQuery
from iscp.model.job.iteration import NO_MAINTENANCE
from iscp.model.values import errors as core
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import WIRE_FORMAT, NodeRecord
from iscp.model.values.untrusted_values import LogLevel
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding
from iscp.server.node import node_server
from iscp.server.node.node_server import NodeServer
from iscp.server.node.owner_streams import Peers, describe
from iscp.system.tls.tls_files import Tls
from tests.fakes.admin import FakeAdmin
from tests.fakes.certificates import certified
from tests.fakes.node_calls import PROGRESS, REPORT, UPKEEP, FakeNodeCalls
from tests.fakes.streams import ANNOUNCE, CLUSTER, SHARD, WAIT_S, Heard, NodeUnderTest, OwnerUnderTest


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
    assert (calls.maintenance("job"), calls.maintenance("other")) == (UPKEEP, NO_MAINTENANCE)
    assert (calls.progress("job"), calls.progress("other")) == (PROGRESS, None)
    node.calls.kept = [EventView(rev, 1, 1.5, "dispatch", "n", "t/2", "new", "orders") for rev in range(1, 5_000)]
    assert calls.events([]) == node.calls.kept
    about = JobOfLines("id", "copy", "acme", ("t", "/lake/t"))
    queries = [LogQuery(), LogQuery(LogPlace(3, 4), 1.5, 6, LogLevel.ERROR, about)]
    node.calls.page = LogPage("n", LogPlace(3, 9), 2, True, lines=tuple(LogLine(n, 1.5, "{}") for n in range(5_000)))
    assert [calls.logs(query) for query in queries] == [node.calls.page] * 2
    assert node.calls.queries == queries
    assert calls.events([1, 3]) == [event for event in node.calls.kept if event.owner_rev not in (1, 3)]


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
        lambda: calls.maintenance("job"),
        lambda: calls.progress("job"),
        calls.counters,
        lambda: calls.events([]),
        lambda: calls.logs(LogQuery()),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.message, caught.value.field, caught.value.remedy) == ("what", "f", "do that")


def test_a_comparison_is_given_up_by_time_and_by_the_caller(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
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


def test_who_is_at_an_address_is_reported_to_anybody(node: NodeUnderTest) -> None:
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
