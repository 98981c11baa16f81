"""An owner's machine that takes time for what it does, among many nodes that take none; in simulated time.

Stands for the owner's loop and its inbox: events wait in the order in which they came in, and the machine is given the
time up to which all that came has been read.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import (
    CoordinationTimes,
    Decided,
    Decision,
    Elected,
    FromNode,
    MembersChanged,
    OwnerEffect,
    OwnerEvent,
    SendTo,
    Tick,
)
from iscp.model.protocol.messages import Alive, DispatchTable, NodeMessage, NodeShard, OwnerMessage
from iscp.model.values.ids import NodeRecord, ShardId
from tests.fakes.prompt_nodes import answers, job_rows, node_records
from tests.fakes.rings import step_with_rings

LATENCY_S = 0.005


@dataclass(slots=True)
class Costs:
    """What the owner spends on an event, and on each message that it sends."""

    event_s: float = 0.0
    send_s: float = 0.0


def tables(count: int) -> dict[ShardId, tuple[JobRow, ...]]:
    """So many tables, with a job on each."""
    return {row.key.shard: (row,) for row in job_rows(count)}


@dataclass(slots=True)
class BusyOwner:
    """`starts_s`: how long a node takes to start a shard. `silent`: nodes that answer no dispatch. `held`: what nodes
    say in their Syncs that they run already.

    `dispatches` counts those sent of each shard, `revoked` says of whom the owner gave up on, and why.
    """

    machine: OwnerMachine
    nodes: tuple[NodeRecord, ...]
    times: CoordinationTimes
    costs: Costs
    starts_s: float = 0.0
    silent: frozenset[str] = frozenset()
    held: dict[str, tuple[NodeShard, ...]] = field(default_factory=dict)
    now_s: float = 0.0
    dispatches: Counter[ShardId] = field(default_factory=Counter)
    revoked: list[str] = field(default_factory=list)
    longest_wait_s: float = 0.0
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _inbox: deque[tuple[float, OwnerEvent]] = field(default_factory=deque)
    _free_s: float = 0.0
    _serial: int = 0

    def elect(self, wanted: dict[ShardId, tuple[JobRow, ...]]) -> None:
        self._come(Elected(1, 1, self.nodes, wanted))
        for node in self.nodes:
            self._after(self.times.alive_s, partial(self._say_alive, node))

    def change_nodes(self, nodes: tuple[NodeRecord, ...]) -> None:
        """These are registered from now on."""
        for node in set(nodes) - set(self.nodes):
            self._after(self.times.alive_s, partial(self._say_alive, node))
        self.nodes = nodes
        self._come(MembersChanged(nodes))

    def stall(self, for_s: float) -> None:
        """The owner does nothing for so long; what comes in waits."""
        self._free_s = self.now_s + for_s

    def run_until(self, done: Callable[[OwnerMachine], bool], within_s: float) -> float:
        """How long it takes; raises AssertionError where it is not `done` in time."""
        began_s = self.now_s
        while not done(self.machine):
            assert self.now_s < began_s + within_s, f"not done after {within_s} s: {self.machine.assignments.counts}"
            self._go_on()
        return self.now_s - began_s

    def _go_on(self) -> None:
        """The next thing that happens: something comes in, or the owner is free for what waits or is due."""
        next_s = self._agenda[0][0] if self._agenda else float("inf")
        due_s = self.machine.next_due_s()
        owner_s = max(self._free_s, self._inbox[0][0] if self._inbox else (due_s if due_s is not None else next_s))
        if next_s <= owner_s:
            self.now_s, _, action = heapq.heappop(self._agenda)
            action()
            return
        self.now_s = owner_s
        if due_s is not None and due_s <= self.read_s:
            self._step(Tick(), self.read_s)
        elif self._inbox:
            came_s, event = self._inbox.popleft()
            self.longest_wait_s = max(self.longest_wait_s, self.now_s - came_s)
            self._step(event, came_s)

    @property
    def read_s(self) -> float:
        """All that came in before has been read."""
        return self._inbox[0][0] if self._inbox else self.now_s

    def _step(self, event: OwnerEvent, read_s: float) -> None:
        effects = step_with_rings(self.machine, event, self.now_s, read_s)
        self._free_s = self.now_s + self.costs.event_s
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: OwnerEffect) -> None:
        match effect:
            case SendTo(record, message):
                self._free_s += self.costs.send_s
                self._after(self._free_s - self.now_s + LATENCY_S, partial(self._hear, record, message))
            case Decided(Decision.REVOKE, node_id, _, why):
                self.revoked.append(f"{node_id} {why}")
            case _:
                pass

    def _hear(self, node: NodeRecord, message: OwnerMessage) -> None:
        if isinstance(message, DispatchTable):
            self.dispatches[message.shard] += 1
            if node.node_id in self.silent:
                return
        for number, answer in enumerate(answers(message, self.held.get(node.node_id, ()))):
            self._after(number * self.starts_s, partial(self._answer, node, answer))

    def _say_alive(self, node: NodeRecord) -> None:
        self._answer(node, Alive(1, node.epoch))
        self._after(self.times.alive_s, partial(self._say_alive, node))

    def _answer(self, node: NodeRecord, message: NodeMessage) -> None:
        self._after(LATENCY_S, lambda: self._come(FromNode(node.node_id, message)))

    def _come(self, event: OwnerEvent) -> None:
        self._inbox.append((self.now_s, event))

    def _after(self, wait_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._agenda, (self.now_s + wait_s, self._serial, action))


def busy_owner(nodes: int, costs: Costs, starts_s: float = 0.0, silent: frozenset[str] = frozenset()) -> BusyOwner:
    times = CoordinationTimes()
    machine = OwnerMachine("n-0", "v", times)
    return BusyOwner(machine, node_records(nodes), times, costs, starts_s, silent)
