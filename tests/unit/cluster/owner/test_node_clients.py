"""The calls of an owner beside the stream: a node that is frozen delays no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from iscp.cluster.owner.node_clients import AWAY_S, CALLS_AT_ONCE_MAX, CALLS_OF_NODE_MAX, HINTS_MAX, SLOW_S, NodeClients
from iscp.model.api.api_requests import LogPage, LogQuery
from iscp.model.values.errors import TimedOut
from iscp.model.values.ids import NodeRecord, ShardId
from iscp.ports.cluster import NodeCalls
from tests.fakes.clock import FakeClock
from tests.fakes.node_calls import FakeNodeCalls
from tests.fakes.waiting import until

WAIT_S = 10.0
FROZEN, WELL = NodeRecord("frozen", 1, "f:1"), NodeRecord("well", 1, "w:1")


class Frozen(FakeNodeCalls):
    """A call takes until `thawed`, and then, unless `answers`, has taken too long."""

    def __init__(self) -> None:
        super().__init__()
        self.thawed, self.answers, self.calls = threading.Event(), True, threading.Semaphore(0)

    def notify(self, shard: ShardId, targets: bool) -> None:
        self.calls.release()
        assert self.thawed.wait(WAIT_S)
        if not self.answers:
            raise TimedOut("frozen")
        super().notify(shard, targets)


class Held(NodeClients):
    """Shards are held by the node that their table is named after."""

    def __init__(self, calls: dict[str, NodeCalls], clock: FakeClock) -> None:
        super().__init__(None, lambda record: calls[record.node_id], clock.monotonic_s)  # type: ignore[arg-type]

    def _holder(self, shard: ShardId) -> NodeRecord | None:
        return FROZEN if shard.table_id.startswith("f") else WELL


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    made = Frozen()
    yield made
    made.thawed.set()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def well() -> FakeNodeCalls:
    return FakeNodeCalls()


@pytest.fixture
def nodes(frozen: Frozen, well: FakeNodeCalls, clock: FakeClock) -> Iterator[NodeClients]:
    made = Held({"frozen": frozen, "well": well}, clock)
    yield made
    frozen.thawed.set()
    made.close()


def test_a_frozen_node_holds_up_no_hint_to_another_and_no_counters(
    nodes: NodeClients, frozen: Frozen, well: FakeNodeCalls
) -> None:
    for number in range(4 * CALLS_AT_ONCE_MAX):
        nodes.notify(ShardId(f"f{number}"), False)
    for _ in range(CALLS_OF_NODE_MAX):
        assert frozen.calls.acquire(timeout=WAIT_S)
    for number in range(50):
        nodes.notify(ShardId(f"w{number}"), False)
    until(lambda: len(well.notified) == 50)
    assert nodes.counters([WELL]) == {"well": well.counters()}
    assert not frozen.calls.acquire(blocking=False), "no more of its hints are on their way"
    frozen.thawed.set()
    until(lambda: len(frozen.notified) == 4 * CALLS_AT_ONCE_MAX)
    until(lambda: nodes._waiting._value == HINTS_MAX)  # every place is given back


def test_what_waits_for_a_node_that_does_not_answer_is_given_up(
    nodes: NodeClients, frozen: Frozen, clock: FakeClock
) -> None:
    frozen.answers = False
    for number in range(100):
        nodes.notify(ShardId(f"f{number}"), False)
    for _ in range(CALLS_OF_NODE_MAX):
        assert frozen.calls.acquire(timeout=WAIT_S)
    clock.advance(SLOW_S)
    frozen.thawed.set()
    until(lambda: nodes._waiting._value == HINTS_MAX)
    calls = CALLS_OF_NODE_MAX
    while frozen.calls.acquire(blocking=False):
        calls += 1
    assert calls < 2 * CALLS_OF_NODE_MAX + 1
    nodes.notify(ShardId("f"), False)
    until(lambda: nodes._waiting._value == HINTS_MAX)
    assert not frozen.calls.acquire(blocking=False), "it is left alone for a while"
    clock.advance(AWAY_S)
    nodes.notify(ShardId("f"), False)
    assert frozen.calls.acquire(timeout=WAIT_S)


def test_of_a_node_that_gives_no_lines_of_its_log_the_reason_is_given(clock: FakeClock) -> None:
    nodes = Held({"frozen": FakeNodeCalls(TimedOut("it took too long")), "well": FakeNodeCalls()}, clock)
    pages = nodes.logs([FROZEN, WELL], lambda node_id: LogQuery(tail=len(node_id)))
    assert pages == [LogPage("frozen", fault="it took too long"), LogPage("well")]
    nodes.close()
