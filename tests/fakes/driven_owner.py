"""An owner in its first term, with a clock in the test's hand."""

from __future__ import annotations

from iscp.cluster.invariants import check_owner
from iscp.cluster.membership.assignments import ShardState
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import (
    CoordinationTimes,
    Elected,
    FromNode,
    OwnerEffect,
    OwnerEvent,
    SendTo,
    Tick,
)
from iscp.model.protocol.messages import DispatchTable, DispatchTableResponse, NodeShard, NodeShardState, Sync
from iscp.model.values.ids import NodeRecord, ShardId, TableEpoch
from tests.fakes.loopback import TIMES, job
from tests.fakes.rings import step_with_rings

A = ShardId("a")
ROW = job("a")
N1 = NodeRecord("n1", 1, "x:1")
N2 = NodeRecord("n2", 1, "y:1")
N3 = NodeRecord("n3", 1, "z:1")


class Driver:
    """An owner in its first term, with a clock; checks its invariants after every step."""

    def __init__(self, *members: NodeRecord, wanted: tuple[str, ...] = (), times: CoordinationTimes = TIMES) -> None:
        self.owner = OwnerMachine("n1", "1", times)
        self.now_s = 10.0
        rows = {ShardId(name): (job(name),) for name in wanted}
        self.first = self.step(Elected(1, 101, members, rows))

    def step(self, event: OwnerEvent, later_s: float = 0.0) -> list[OwnerEffect]:
        self.now_s += later_s
        effects = step_with_rings(self.owner, event, self.now_s)
        check_owner(self.owner)
        return effects

    def sync(self, record: NodeRecord, *shards: NodeShard, number: int = 1) -> list[OwnerEffect]:
        message = Sync(1, record.epoch, "1", number, 0, 1, 0, shards)
        return self.step(FromNode(record.node_id, message))

    def respond(self, record: NodeRecord, dispatch: DispatchTable, state: NodeShardState) -> list[OwnerEffect]:
        message = DispatchTableResponse(1, record.epoch, dispatch.table_epoch, dispatch.shard, state)
        return self.step(FromNode(record.node_id, message))

    def settle(self) -> list[OwnerEffect]:
        return self.step(Tick(), TIMES.settle_s)

    def wait(self, for_s: float) -> list[OwnerEffect]:
        """As an owner that is on time for whatever is due meanwhile; the effects of all."""
        until_s, effects = self.now_s + for_s, list[OwnerEffect]()
        while (due_s := self.owner.next_due_s()) is not None and due_s <= until_s:
            effects += self.step(Tick(), due_s - self.now_s)
        self.now_s = until_s
        return effects

    def state(self, shard: ShardId = A) -> ShardState:
        return self.owner.assignments[shard].state


def dispatches(effects: list[OwnerEffect]) -> list[DispatchTable]:
    return [e.message for e in effects if isinstance(e, SendTo) and isinstance(e.message, DispatchTable)]


def told(shard: ShardId, state: NodeShardState, counter: int = 7) -> NodeShard:
    return NodeShard(shard, TableEpoch(0, counter), state)


def running() -> tuple[Driver, DispatchTable]:
    driver = Driver(N1, wanted=("a",))
    driver.sync(N1)
    (dispatch,) = dispatches(driver.settle())
    driver.respond(N1, dispatch, NodeShardState.RUNNING)
    return driver, dispatch
