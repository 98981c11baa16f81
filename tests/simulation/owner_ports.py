"""What an owner's loop requests of etcd, by the ports that it has for it: each call takes its time, and may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from iscp.model.values.errors import IscpError, NotOwner, OutcomeUnknown, Unavailable
from iscp.model.values.ids import Leader, Moment, NodeRecord
from iscp.model.values.ring import Overrides
from tests.simulation.election import CANDIDATES, leader_of
from tests.simulation.etcd import Etcd
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")

REVOKED = "revoked/"
OVERRIDES = "overrides"
CHECKPOINT = "checkpoint"
MARK = "mark"

LOOKS_MAX = 100_000
"""How often a process may look at its clock at one moment: far more than all that may happen then needs."""


def overrides_of(etcd: Etcd) -> Overrides:
    there = etcd.get(OVERRIDES)
    return there.value if there and isinstance(there.value, Overrides) else Overrides()


def is_led_by(etcd: Etcd, leader: Leader) -> bool:
    """Whether its very candidacy is there still; a restored etcd gives a revision twice."""
    candidates = (item for _, item in etcd.prefixed(CANDIDATES) if item.created == leader.revision)
    return any(item.value == leader.node_id for item in candidates)


class Asks:
    """One process's way to etcd, for a thread that waits for the answer."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def ask(self, operation: Callable[[Etcd], T], changes: bool = False) -> T:
        """Raises Unavailable, or OutcomeUnknown of what changes something."""
        failed = OutcomeUnknown("etcd does not answer") if changes else Unavailable("etcd does not answer")

        def call(answered: Callable[[T], None], unanswered: Callable[[], None]) -> None:
            self._process.etcd.call(operation, answered, unanswered)

        return self._process.threads.asked(call, failed)


class ProcessClock:
    """Port Clock: the process's own."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._looked_s, self._looks = 0.0, 0

    def now_s(self) -> float:
        return self._process.wall_s

    def monotonic_s(self) -> float:
        now_s = self._process.now_s
        if now_s != self._looked_s:
            self._looked_s, self._looks = now_s, 0
        self._looks += 1
        expect(self._looks < LOOKS_MAX, "a loop turns without rest, though nothing happens")
        return now_s


class OwnerMembership(Asks):
    """Port MemberControl."""

    def members(self) -> tuple[tuple[NodeRecord, ...], Moment]:
        return self._process.reads.list()

    def revoke(self, record: NodeRecord, put_fenced: Callable[[str, bytes, int], object]) -> None:
        put_fenced(f"{REVOKED}{record.lease_id}", str(record.ttl_s).encode(), 0)
        self.ask(lambda etcd: etcd.revoke(record.lease_id), changes=True)
        self._forget(record.lease_id, record.ttl_s)

    def hold_s(self) -> float:
        """What a former owner began to revoke is revoked surely, before its time is counted."""
        traces = self.ask(traces_of)
        for lease_id in traces:
            self.ask(lambda etcd, lease_id=lease_id: etcd.revoke(lease_id), changes=True)  # type: ignore[misc]
        for lease_id, ttl_s in traces.items():
            self._forget(lease_id, ttl_s)
        return self._still_written_s(traces)

    def _still_written_s(self, traces: dict[int, float]) -> float:
        return max(traces.values()) + self._process.world.parts.times.margin_s if traces else 0.0

    def _forget(self, lease_id: int, ttl_s: float) -> None:
        """The lease has surely ended now, so that nobody writes by it after this time."""
        key = f"{REVOKED}{lease_id}"
        self._process.after(
            ttl_s + self._process.world.parts.times.margin_s,
            lambda: self._process.etcd.call(lambda etcd: etcd.delete(key), lambda _: None, lambda: None),
        )


def traces_of(etcd: Etcd) -> dict[int, float]:
    """Leases that are being revoked, and their TTLs."""
    return {
        int(key.removeprefix(REVOKED)): float(item.value)
        for key, item in etcd.prefixed(REVOKED)
        if isinstance(item.value, bytes)
    }


class OwnerElection(Asks):
    """Port ElectionKey."""

    def leader(self) -> Leader | None:
        return self.ask(leader_of)

    def confirmed_until_s(self, revision: int) -> float:
        return self._process.candidacy.confirmed_until_s(revision)

    def give_way(self, revision: int) -> None:
        self._process.candidacy.give_way(revision)

    def put_fenced(self, leader: Leader, key: str, value: bytes, lease_id: int) -> int:
        def put(etcd: Etcd) -> int:
            if not is_led_by(etcd, leader):
                return 0
            etcd.put(key, value, lease_id)
            return etcd.revision

        if not (revision := self.ask(put, changes=True)):
            raise NotOwner("the election was lost")
        return revision


class OwnerOverrides(Asks):
    """Port OverrideStore."""

    def load(self) -> Overrides:
        return self.ask(overrides_of)

    def save(self, leader: Leader, before: Overrides, after: Overrides) -> None:
        def put(etcd: Etcd) -> bool:
            if leader_of(etcd) != leader:
                return False
            etcd.put(OVERRIDES, after)
            return True

        if not self.ask(put, changes=True):
            raise NotOwner("the election was lost")


class OwnerCheckpoints(Asks):
    """Port CheckpointStore."""

    def load(self) -> float:
        return self.ask(checkpoint_of)

    def save(self, leader: Leader, at_s: float) -> None:
        def put(etcd: Etcd) -> bool:
            if leader_of(etcd) != leader:
                return False
            etcd.put(CHECKPOINT, at_s)
            return True

        if not self.ask(put, changes=True):
            raise NotOwner("the election was lost")


class OwnerMarks(Asks):
    """Port LogMarks."""

    def load(self) -> int:
        there = self.ask(lambda etcd: etcd.get(MARK))
        return there.value if there and isinstance(there.value, int) else -1

    def save(self, leader: Leader, version: int) -> None:
        self._put(leader, version)

    def fault(self) -> IscpError | None:
        return None

    def report_fault(self, leader: Leader, fault: IscpError | None) -> None:
        self._put(leader, fault)

    def _put(self, leader: Leader, value: object) -> None:
        def put(etcd: Etcd) -> bool:
            if leader_of(etcd) != leader:
                return False
            etcd.put(MARK, value)
            return True

        if not self.ask(put, changes=True):
            raise NotOwner("the election was lost")


def checkpoint_of(etcd: Etcd) -> float:
    there = etcd.get(CHECKPOINT)
    return there.value if there and isinstance(there.value, float) else 0.0
