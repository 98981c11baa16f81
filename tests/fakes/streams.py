"""An owner's and a node's end of their streams, and what each has heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
)
from iscp.model.settings.config import WaitBounds
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import JobKey, NodeRecord, ShardId, TableEpoch
from iscp.server.admin.admin_server import AdminServer
from iscp.server.node.node_server import NodeServer
from iscp.server.node.owner_streams import Peers
from tests.fakes.admin import FakeAdmin
from tests.fakes.node_calls import FakeNodeCalls

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
        self.server = AdminServer(
            FakeAdmin(), self.address, max_workers=2, waits=WaitBounds(node_max=1), services=[self.node]
        )
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
