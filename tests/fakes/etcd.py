"""Membership and election in memory, for tests of what stands on the ports; real ones: tests/integration/etcd.

Nothing happens by itself: tests expire leases and move the clock. Callbacks come from the thread that caused them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf

from iscp.model.values.errors import ConfigurationError, IscpError, NotOwner, Unavailable
from iscp.model.values.ids import Leader, Moment, NodeRecord
from iscp.model.values.ring import Overrides
from iscp.ports.system import Clock

Snapshot = tuple[NodeRecord, ...]


@dataclass
class FakeLease:
    """Confirmed at every check while it lives and etcd answers."""

    etcd: FakeEtcd
    lease_id: int
    confirmed_s: float
    on_lapsed: Callable[[], None] | None = None
    alive: bool = True

    @property
    def gone(self) -> bool:
        return not self.alive

    def confirmed_until_s(self) -> float:
        if self.alive and self.etcd.answers:
            self.confirmed_s = self.etcd.clock.monotonic_s()
        return self.confirmed_s + self.etcd.ttl_s - self.etcd.margin_s if self.alive else float("-inf")


@dataclass
class FakeEtcd:
    """What the nodes of one cluster share."""

    clock: Clock
    ttl_s: float = 10.0
    margin_s: float = 2.0
    answers: bool = True
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    leases: dict[int, FakeLease] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    candidates: list[FakeElection] = field(default_factory=list)
    watchers: list[Callable[[Snapshot, Moment], None]] = field(default_factory=list)
    revision: int = 0
    restores: int = 0
    revoked: list[NodeRecord] = field(default_factory=list)
    overrides: Overrides = field(default_factory=Overrides)
    checkpoints: list[float] = field(default_factory=list)
    log_versions: list[int] = field(default_factory=list)
    log_fault: IscpError | None = None
    numbers: count[int] = field(default_factory=lambda: count(1))

    def refuse_silent(self) -> None:
        """Raises Unavailable while it does not answer."""
        if not self.answers:
            raise Unavailable("deadline exceeded")

    def members(self) -> Snapshot:
        return tuple(sorted(self.nodes.values()))

    def expire(self, lease_id: int) -> None:
        """The lease ends, with all that hangs on it."""
        if lease := self.leases.pop(lease_id, None):
            lease.alive = False
            if lease.on_lapsed is not None:
                lease.on_lapsed()
        for node_id, record in list(self.nodes.items()):
            if record.lease_id == lease_id:
                del self.nodes[node_id]
                self.changed()

    def changed(self) -> None:
        self.revision += 1
        for watcher in list(self.watchers):
            watcher(self.members(), self.moment)

    @property
    def moment(self) -> Moment:
        return Moment(self.restores, self.revision)

    def restore(self) -> None:
        """It is back from a backup without any of the leases and keys, at a lower revision."""
        self.restores, self.revision = self.restores + 1, 0
        for lease_id in list(self.leases):
            self.expire(lease_id)

    def depose(self) -> None:
        """The owner's key is deleted: it is notified, and the next candidate leads; it runs again behind the others."""
        deposed = self.candidates.pop(0)
        self.candidates.append(deposed)
        deposed.lose()
        self.elect()

    def elect(self) -> None:
        if self.candidates:
            self.candidates[0].win(next(self.numbers))


class FakeMembership:
    """Port Membership."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd
        self._lease: FakeLease | None = None

    def register(self, record: NodeRecord, on_lapsed: Callable[[], None] | None = None) -> FakeLease:
        self.deregister()
        if record.node_id in self._etcd.nodes:
            raise ConfigurationError(f"a live node is registered as {record.node_id!r}", about="node_id")
        lease_id = next(self._etcd.numbers)
        lease = self._lease = FakeLease(self._etcd, lease_id, self._etcd.clock.monotonic_s(), on_lapsed)
        self._etcd.leases[lease_id] = lease
        self._etcd.nodes[record.node_id] = replace(record, lease_id=lease_id)
        self._etcd.epochs[record.node_id] = record.epoch
        self._etcd.changed()
        return lease

    def deregister(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.on_lapsed = None
            self._etcd.expire(lease.lease_id)

    def members(self) -> tuple[Snapshot, Moment]:
        return self._etcd.members(), self._etcd.moment

    def watch(self, on_change: Callable[[Snapshot, Moment], None]) -> Callable[[], None]:
        self._etcd.watchers.append(on_change)
        on_change(self._etcd.members(), self._etcd.moment)
        return lambda: self._etcd.watchers.remove(on_change)

    def next_epoch(self, node_id: str, above: int = 0) -> int:
        return max(above, self._etcd.epochs.get(node_id, 0)) + 1

    def leave(self) -> None:
        lease = self._lease
        for node_id, record in self._etcd.nodes.items():
            if lease is not None and record.lease_id == lease.lease_id:
                self._etcd.nodes[node_id] = replace(record, leaving=True)
        self._etcd.changed()

    def revoke(self, record: NodeRecord, put_fenced: Callable[[str, bytes, int], object]) -> None:
        put_fenced("trace", b"", 0)
        self._etcd.revoked.append(record)
        self._etcd.expire(record.lease_id)

    def hold_s(self) -> float:
        return self._etcd.ttl_s + self._etcd.margin_s if self._etcd.revoked else 0.0

    def lease_ages_s(self, records: Sequence[NodeRecord]) -> dict[str, float]:
        self._etcd.refuse_silent()
        return {record.node_id: 0.0 for record in records if record.lease_id in self._etcd.leases}


class FakeElection:
    """Port Election: candidates lead in the order in which they came."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd
        self._node_id = ""
        self._term: Leader | None = None
        self._on_elected: Callable[[Leader], None] = lambda _: None
        self._on_lost: Callable[[], None] = lambda: None
        self.confirmed_s = inf
        self.gave_way: list[int] = []

    def campaign(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        self._node_id, self._on_elected, self._on_lost = node_id, on_elected, on_lost
        self._etcd.candidates.append(self)
        if len(self._etcd.candidates) == 1:
            self._etcd.elect()

    def resign(self) -> None:
        if self in self._etcd.candidates:
            self._etcd.candidates.remove(self)
        if self._term is not None:
            self.lose()
            self._etcd.elect()

    def leader(self) -> Leader | None:
        return self._etcd.candidates[0].term if self._etcd.candidates else None

    def confirmed_until_s(self, revision: int) -> float:
        return self.confirmed_s

    def give_way(self, revision: int) -> None:
        self.gave_way.append(revision)

    def put_fenced(self, leader: Leader, key: str, value: bytes, lease_id: int) -> int:
        if self.term != leader:
            raise NotOwner(f"{leader.node_id} does not lead")
        return self._etcd.revision

    @property
    def term(self) -> Leader:
        if self._term is None:
            raise NotOwner(f"{self._node_id} does not lead")
        return self._term

    def win(self, revision: int) -> None:
        self._term = Leader(self._node_id, revision)
        self._on_elected(self._term)

    def lose(self) -> None:
        self._term = None
        self._on_lost()


class FakeCheckpoints:
    """Port CheckpointStore."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd

    def load(self) -> float:
        return self._etcd.checkpoints[-1] if self._etcd.checkpoints else 0.0

    def save(self, leader: Leader, at_s: float) -> None:
        self._etcd.checkpoints.append(at_s)


class FakeLogMarks:
    """Port LogMarks."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd

    def load(self) -> int:
        return self._etcd.log_versions[-1] if self._etcd.log_versions else -1

    def save(self, leader: Leader, version: int) -> None:
        self._refuse_others(leader)
        self._etcd.log_versions.append(version)

    def fault(self) -> IscpError | None:
        self._etcd.refuse_silent()
        return self._etcd.log_fault

    def report_fault(self, leader: Leader, fault: IscpError | None) -> None:
        self._refuse_others(leader)
        self._etcd.log_fault = fault

    def _refuse_others(self, leader: Leader) -> None:
        if not self._etcd.candidates or self._etcd.candidates[0].term != leader:
            raise NotOwner(f"{leader.node_id} does not lead")


class FakeOverrides:
    """Port OverrideStore."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd

    def load(self) -> Overrides:
        return self._etcd.overrides

    def save(self, leader: Leader, before: Overrides, after: Overrides) -> None:
        if not self._etcd.candidates or self._etcd.candidates[0].term != leader:
            raise NotOwner(f"{leader.node_id} does not lead")
        self._etcd.overrides = after
