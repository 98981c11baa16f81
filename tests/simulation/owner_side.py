"""The owner's part of a node. Stands for `iscp/runtime/owner_loop.py`: one thing at a time, waits for claims.

The machine is the real one. What the loop does while it blocks is here put off until it has its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from iscp.coordination.book import BookChange, JobBook, by_shard
from iscp.coordination.draft import Request
from iscp.coordination.effects import BuildRing, Decided, Decision, OwnerEffect, RecordCheckpoint, RevokeLease, SendTo
from iscp.coordination.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    OverridesChanged,
    OwnerEvent,
    Recorded,
    RingBuilt,
    RowsMoved,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.coordination.invariants import check_owner
from iscp.coordination.messages import DispatchTable, DispatchTableResponse, NodeMessage
from iscp.coordination.placement import Overrides, ring_of
from iscp.core.cluster import Leader, Moment, NodeRecord
from iscp.core.ids import ShardId
from iscp.core.job import JobRow
from tests.simulation.checkpoint_side import CheckpointSide, checkpoint_of
from tests.simulation.election import CANDIDATES, leader_of
from tests.simulation.etcd import Etcd
from tests.simulation.inbox import Inbox
from tests.simulation.joblog import Writer
from tests.simulation.registration import Snapshot, members_of
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process

CLAIM_RETRY_S = 1.0
CHECKED_SHARDS = 50
"""A world of so many is checked after every step."""

RING_S = 0.2
"""How long a ring may take to be built."""

REVOKED = "revoked/"
OVERRIDES = "overrides"

Traces = dict[int, float]
"""Leases that are being revoked, and their TTLs."""

Found = tuple[int, Snapshot, Overrides, Traces, Leader | None, float]


def look_around(etcd: Etcd) -> Found:
    """What a new owner reads: revision, members, what operators said, whose leases were being revoked, who leads, the
    checkpoint.
    """
    there = etcd.get(OVERRIDES)
    overrides = there.value if there and isinstance(there.value, Overrides) else Overrides()
    traces = {
        int(key.removeprefix(REVOKED)): item.value
        for key, item in etcd.prefixed(REVOKED)
        if isinstance(item.value, float)
    }
    return etcd.revision, members_of(etcd), overrides, traces, leader_of(etcd), checkpoint_of(etcd)


class OwnerSide:
    """`writer` is None between terms."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        parts = process.world.parts
        self.machine = parts.owner(process.node_id, "1", parts.owner_times or process.world.times)
        self.writer: Writer | None = None
        self.leader: Leader | None = None
        self.roll = parts.roll()
        self.checkpoint = CheckpointSide(process)
        self._claiming = False
        self.inbox = Inbox(process, lambda: self._claiming)
        self._revoking: set[int] = set()
        self._tick_at_s = float("inf")
        self._unchecked = 0
        self._unread_answers = 0

    # --- what comes in -----------------------------------------------------------------------------------------

    def elected(self, leader: Leader) -> None:
        self.inbox.post(partial(self._won, leader))

    def lost(self) -> None:
        self.inbox.post(self._lost)

    def members_changed(self, moment: Moment, members: Snapshot) -> None:
        self.inbox.post(partial(self._members, moment, members))

    def heard(self, node_id: str, message: NodeMessage) -> None:
        if not isinstance(message, DispatchTableResponse):
            self.inbox.put(partial(self._step, FromNode(node_id, message)))
            return
        self._unread_answers += 1
        self._world.checks.answers_wait(self._unread_answers)
        self.inbox.put(partial(self._answered, node_id, message), self._lost_answer)

    def _answered(self, node_id: str, message: NodeMessage) -> None:
        self._unread_answers -= 1
        self._step(FromNode(node_id, message))

    def _lost_answer(self) -> None:
        self._unread_answers -= 1

    def submit(self, request: Request) -> None:
        """A user's request; refused while this node is not the owner."""
        if self.writer is not None:
            self.writer.submit(request)

    def override(self, change: Callable[[Overrides], Overrides]) -> None:
        """Operators' word goes to etcd first, by the owner's hand and none other's."""
        leader = self.leader
        if leader is None or self.writer is None:
            return

        def put(etcd: Etcd) -> Overrides | None:
            if leader_of(etcd) != leader:
                return None
            changed = change(look_around(etcd)[2])
            etcd.put(OVERRIDES, changed)
            return changed

        def done(changed: Overrides | None) -> None:
            if changed is not None and self.leader == leader:
                self.inbox.post(partial(self._step, OverridesChanged(changed)))

        # Where the answer is lost the operator says it again.
        self._process.etcd.call(put, done, lambda: self.override(change))

    def ask(self, event: OwnerEvent) -> None:
        self.inbox.post(partial(self._step, event))

    # --- terms -------------------------------------------------------------------------------------------------

    def _won(self, leader: Leader) -> None:
        self._end_term()
        self.leader = leader
        self._claim()

    def _lost(self) -> None:
        self.leader = None
        self._end_term()

    def _told_deposed(self, writer: Writer) -> None:
        self.inbox.post(partial(self._deposed, writer))

    def _deposed(self, writer: Writer) -> None:
        if writer is self.writer:
            self._end_term()
            self._process.after(CLAIM_RETRY_S, lambda: self.inbox.post(self._claim_again))

    def _claim_again(self) -> None:
        if self.leader is not None and self.writer is None:
            self._claim()

    def _claim(self) -> None:
        self._claiming = True
        seen = self._world.log.term
        self._process.after(self._world.log_lag_s(), lambda: self._claimed(seen))

    def _claimed(self, seen: int) -> None:
        term = None if self._world.log.stalled else self._world.log.claim(seen)
        if term is None:
            self._claim_failed()
        else:
            self._process.after(self._world.log_lag_s(), lambda: self._load(term))

    def _load(self, term: int) -> None:
        if self._world.log.stalled or not self._world.log.admits(term):
            self._claim_failed()
            return
        rows = list(self._world.log.rows.values())
        before = self._process.moments.latest
        self._process.etcd.call(look_around, partial(self._end_revocations, term, rows, before), self._claim_failed)

    def _end_revocations(self, term: int, rows: list[JobRow], before: Moment, found: Found) -> None:
        """What a former owner began to revoke is revoked surely, before its time is counted."""
        moment = self._process.moments.read_at(before, found[0])
        if not self.leads(found[4]) or moment is None:
            # Paused for a while, it has overtaken who leads by now.
            self._claim_failed()
            return
        traces = found[3]
        if not traces:
            self._begin(term, rows, moment, found)
            return

        def revoke(etcd: Etcd) -> None:
            for lease_id in traces:
                etcd.revoke(lease_id)

        self._process.etcd.call(revoke, lambda _: self._begin(term, rows, moment, found), self._claim_failed)

    def _begin(self, term: int, rows: list[JobRow], moment: Moment, found: Found) -> None:
        _, members, overrides, traces, _, checkpoint_s = found
        book = JobBook(rows)
        wanted = by_shard(rows)
        self.writer = self._world.parts.writer(self._process, term, book, self._moved, self._told_deposed)
        leader, roll_s = self.leader, self._take_roll(members, moment, begins=True)
        if leader is not None:
            hold_s = max(self.hold_s(traces), roll_s)
            for lease_id, ttl_s in traces.items():
                self._forget_trace(lease_id, ttl_s)
            event = Elected(term, leader.revision, members, wanted, hold_s, overrides)
            self.inbox.put_first(partial(self._elected, event, checkpoint_s))
        self._claiming = False
        self.inbox.go_on()

    def _elected(self, event: Elected, checkpoint_s: float) -> None:
        self._step(event)
        self.checkpoint.begin(checkpoint_s, event.wanted)

    def _take_roll(self, members: Snapshot, moment: Moment, *, begins: bool = False) -> float:
        times = self.machine.times
        return self.roll.take(members, moment, self._process.now_s, times.margin_s, times.ttl_s, begins)

    def leads(self, leader: Leader | None) -> bool:
        return leader == self.leader

    def hold_s(self, traces: Traces) -> float:
        """How long a node that was revoked before this term may still write."""
        return max(traces.values()) + self._world.parts.times.margin_s if traces else 0.0

    def _claim_failed(self) -> None:
        self._process.after(CLAIM_RETRY_S, lambda: self.inbox.post(self._claim_again))
        self._claiming = False
        self.inbox.go_on()

    def _end_term(self) -> None:
        writer, self.writer = self.writer, None
        self._step(Deposed())
        if writer is not None:
            writer.close()

    # --- the machine -------------------------------------------------------------------------------------------

    def _members(self, moment: Moment, members: Snapshot) -> None:
        if not self.roll.overtaken(moment):
            self._step(MembersChanged(members, self._take_roll(members, moment)))

    def _moved(self, change: BookChange) -> None:
        writer = self.writer
        if writer is None:
            return
        for shard in change.shards:
            self.inbox.post(partial(self._shard_moved, writer, shard, True))
        for shard in sorted({row.key.shard for row in change.rows} - set(change.shards)):
            self.inbox.post(partial(self._shard_moved, writer, shard, False))

    def _shard_moved(self, writer: Writer, shard: ShardId, decided: bool) -> None:
        if writer is not self.writer:
            return
        jobs = writer.book.jobs_in(shard)
        if not decided:
            self._step(RowsMoved(shard, jobs))
        else:
            self._step(ShardWanted(shard, jobs) if jobs else ShardUnwanted(shard))
        self.checkpoint.take(shard, jobs)

    def _step(self, event: OwnerEvent) -> None:
        process = self._process
        effects = self.machine.step(event, process.now_s, self.inbox.read_s)
        if effects or not isinstance(event, Tick | RowsMoved | Recorded):
            self._check()
        if effects or not isinstance(event, Tick):
            self._world.stepped(f"{process.node_id}/owner", event, effects)
        for effect in effects:
            self._carry_out(effect)
        self._arrange_tick()

    def _check(self) -> None:
        """After every step; in a large world, where it costs with the shards, after so many."""
        self._unchecked += 1
        if self._unchecked * CHECKED_SHARDS**2 >= len(self.machine.assignments) ** 2:
            self._unchecked = 0
            check_owner(self.machine)

    def _arrange_tick(self) -> None:
        due_s = self.machine.next_due_s()
        if due_s is not None and due_s < self._tick_at_s:
            self._tick_at_s = due_s
            self._process.after(max(0.0, due_s - self._process.now_s) + 1e-6, lambda: self.inbox.post(self._tick))

    def _tick(self) -> None:
        self._tick_at_s = float("inf")
        due_s = self.machine.next_due_s()
        if due_s is not None and due_s <= self.inbox.read_s:
            self._step(Tick())
        else:
            self._arrange_tick()

    def _carry_out(self, effect: OwnerEffect) -> None:
        match effect:
            case SendTo(record, message):
                if isinstance(message, DispatchTable):
                    self._world.checks.dispatched(message, self._process.now_s)
                self._world.wire.send(
                    self._process.node_id, record.node_id, lambda process: process.worker.heard(message)
                )
            case RevokeLease(record, election_revision):
                self.revoke(record, election_revision)
            case RecordCheckpoint():
                self._record(effect)
            case BuildRing(nodes):
                built = partial(self._step, RingBuilt(ring_of(nodes)))
                self._process.after(self._world.random.random() * RING_S, lambda: self.inbox.post(built))
            case Decided(Decision.REVOKE, node_id, _, why):
                self._world.checks.revoked(node_id, why)
            case Decided():
                pass
            case _:
                assert_never(effect)

    def revoke(self, record: NodeRecord, election_revision: int) -> None:
        """Leave a trace, as this owner and none other, then end the lease."""
        lease_id, ttl_s = record.lease_id, record.ttl_s
        if lease_id in self._revoking:
            return
        self._revoking.add(lease_id)

        def mark(etcd: Etcd) -> bool:
            # A restored etcd gives a revision twice.
            ours = (
                item.value == self._process.node_id
                for _, item in etcd.prefixed(CANDIDATES)
                if item.created == election_revision
            )
            if not any(ours):
                return False
            etcd.put(f"{REVOKED}{lease_id}", ttl_s)
            return True

        def over() -> None:
            self._revoking.discard(lease_id)

        def marked(done: bool) -> None:
            if done:
                self._process.etcd.call(lambda etcd: etcd.revoke(lease_id), lambda _: revoked(), over)
            else:
                over()

        def revoked() -> None:
            over()
            self._forget_trace(lease_id, ttl_s)

        self._process.etcd.call(mark, marked, over)

    def _forget_trace(self, lease_id: int, ttl_s: float) -> None:
        """The lease has surely ended now, so that nobody writes by it after this time."""
        key = f"{REVOKED}{lease_id}"
        self._process.after(
            ttl_s + self._world.parts.times.margin_s,
            lambda: self._process.etcd.call(lambda etcd: etcd.delete(key), lambda _: None, lambda: None),
        )

    def _record(self, checkpoint: RecordCheckpoint) -> None:
        writer = self.writer
        if writer is None:
            return
        recorded = Recorded(checkpoint.node_id, checkpoint.epoch, checkpoint.number)
        expect(recorded not in writer.recorded, "{} is recorded twice in one term", recorded)
        writer.recorded.add(recorded)
        writer.report(checkpoint.reports, checkpoint.history, lambda: self.inbox.post(partial(self._step, recorded)))
        for seen in checkpoint.seen:
            if (held := self.machine.assignments.get(seen.shard)) is not None and held.wanted:
                self.checkpoint.seen[seen.shard] = seen
                self.checkpoint.take(seen.shard, held.jobs)
