"""A cluster in one process and one thread: real machines, a wire that may misbehave, time that only the test moves.

Invariants are checked after every step. Equal calls (and an equal `random`) give equal runs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random

from iscp.cluster.invariants import check_no_double_run, check_owner, check_worker
from iscp.cluster.membership.assignments import ring_of
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, apply_report
from iscp.model.protocol.events import (
    BuildRing,
    CheckElection,
    CoordinationTimes,
    Deposed,
    Elected,
    ElectionChecked,
    FromNode,
    FromOwner,
    HoldIterations,
    LeaseEnded,
    LeaseRegained,
    MembersChanged,
    MoveRequested,
    OverridesChanged,
    OwnerEffect,
    OwnerEvent,
    RebalanceRequested,
    RecordCheckpoint,
    Recorded,
    Reports,
    RevokeLease,
    RingBuilt,
    RowsMoved,
    SendTo,
    SendToOwner,
    ShardStarted,
    ShardStopped,
    ShardUnwanted,
    ShardWanted,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
    WorkerEffect,
    WorkerEvent,
)
from iscp.model.values.ids import JobKey, Leader, NodeRecord, ShardId, TableEpoch
from iscp.model.values.ring import Overrides
from iscp.model.values.watermark import Watermark

TIMES = CoordinationTimes(
    lease_ttl_s=5.0,
    margin_s=1.0,
    sync_deadline_s=4.0,
    operation_deadline_s=30.0,
    settle_s=0.5,
    resend_s=1.0,
    alive_s=inf,
)
"""Without `Alive`, so that silence can be noticed."""
STEPS_MAX = 20_000


def job(shard: str, name: str = "j", spec: str = "{}") -> JobRow:
    """A job row of the shard's table, with little in it."""
    return JobRow(JobKey("default", shard, name), f"{shard}-{name}-1", spec, shard, f"/{shard}", create_at_s=1.0)


def report(row: JobRow, seq: int, state: JobState | None = JobState.COMPLETED, error_msg: str = "") -> JobReport:
    status = JobStatus(to_version=seq, error_msg=error_msg) if state else None
    return JobReport(row.key, row.job_id, Watermark(seq, float(seq)), seq, state, None, status)


def entry(row: JobRow, seq: int, node_id: str = "", error_msg: str = "") -> HistoryEntry:
    return HistoryEntry(
        account=row.key.account,
        table_id=row.key.table_id,
        job_name=row.key.job_name,
        job_id=row.job_id,
        seq=seq,
        from_version=seq - 1,
        to_version=seq,
        start_at_s=float(seq),
        end_at_s=float(seq),
        source_commit_at_s=float(seq),
        error_code=0,
        error_msg=error_msg,
        rows=1,
        bytes=1,
        data_type="tail",
        node_id=node_id,
    )


@dataclass
class Engine:
    """Stands in for the scheduler: takes shards in and gives them up, at once unless `slow`."""

    jobs: dict[ShardId, tuple[JobRow, ...]] = field(default_factory=dict)
    table_epochs: dict[ShardId, TableEpoch] = field(default_factory=dict)
    stopping: set[ShardId] = field(default_factory=set)
    condemned: set[ShardId] = field(default_factory=set)
    slow: bool = False
    hold: bool = False

    def obey(self, effect: WorkerEffect) -> list[WorkerEvent]:
        match effect:
            case StartShard(shard, table_epoch, jobs):
                assert shard not in self.jobs, f"{shard} is started twice"
                self.jobs[shard], self.table_epochs[shard] = jobs, table_epoch
                return [ShardStarted(shard)]
            case UpdateShard(shard, table_epoch, jobs):
                assert shard in self.jobs, f"{shard} is updated and does not run"
                self.jobs[shard], self.table_epochs[shard] = jobs, table_epoch
                return []
            case StopShard(shard):
                self.stopping.add(shard)
            case StopAllShards():
                self.stopping |= self.jobs.keys()
                self.condemned |= self.jobs.keys()
            case HoldIterations(hold):
                self.hold = hold
            case _:
                pass
        return [] if self.slow else self.finish()

    def finish(self) -> list[WorkerEvent]:
        """All that was to stop has stopped."""
        ended = sorted(self.stopping)
        self.stopping.clear()
        self.condemned.clear()
        for shard in ended:
            self.jobs.pop(shard, None)
        return [ShardStopped(shard) for shard in ended]


@dataclass
class Node:
    record: NodeRecord
    worker: WorkerMachine
    engine: Engine = field(default_factory=Engine)
    may_write: bool = True


class Loopback:
    """N nodes, any of which may be owner. `random` makes the wire drop, double and reorder; without it none of that.

    `cut`: node ids whose messages are lost, both ways. `rows`: the job log. `history`: what was recorded, in order.
    """

    def __init__(
        self,
        times: CoordinationTimes = TIMES,
        random: Random | None = None,
        drop: float = 0.0,
        worker: type[WorkerMachine] = WorkerMachine,
    ) -> None:
        self.times, self.random, self.drop = times, random, drop
        self._worker_of = worker
        self.now_s = 100.0
        self.nodes: dict[str, Node] = {}
        self.owners: dict[str, OwnerMachine] = {}
        self.members: dict[str, NodeRecord] = {}
        self.leader: Leader | None = None
        self.owner_rev = 0
        self.rows: dict[ShardId, tuple[JobRow, ...]] = {}
        self.overrides = Overrides()
        self.history: list[HistoryEntry] = []
        self.log_stalled = False
        self.cut: set[str] = set()
        self.transcript: list[str] = []
        self.note: Callable[[float, str, object, list[object]], str | None] | None = None
        self._epochs: dict[str, int] = {}
        self._revoked_until_s = 0.0
        self._wire: list[Callable[[], None]] = []
        self._local: deque[Callable[[], None]] = deque()
        self._stalled: list[tuple[str, RecordCheckpoint]] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    # --- what a test does --------------------------------------------------------------------------------------

    @property
    def owner(self) -> OwnerMachine:
        assert self.leader is not None
        return self.owners[self.leader.node_id]

    def start(self, *node_ids: str, tell: bool = True) -> None:
        """Start nodes, or restart them: a new epoch, nothing in memory; `tell`: the owner hears of it at once."""
        for node_id in node_ids:
            epoch = self._epochs[node_id] = self._epochs.get(node_id, 0) + 1
            record = NodeRecord(node_id, epoch, f"{node_id}:1")
            self.nodes[node_id] = Node(record, self._worker_of(node_id, epoch, "1", self.times))
            self.members[node_id] = record
        if tell:
            self._tell_members()

    def kill(self, node_id: str) -> None:
        """The process is gone; its key stays until the TTL is over."""
        record = self.nodes.pop(node_id).record
        self.owners.pop(node_id, None)
        self.later(self.times.lease_ttl_s, lambda: self._expire(record))

    def lose_etcd(self, node_id: str) -> None:
        """The node cannot renew its lease from now on; it notices before etcd does."""
        node = self.nodes[node_id]
        record = node.record
        self.later(self.times.lease_ttl_s - self.times.margin_s, lambda: self._lease_lost(node))
        self.later(self.times.lease_ttl_s, lambda: self._expire(record))

    def regain(self, node_id: str) -> None:
        """Register again after a lost lease, under a new epoch."""
        node = self.nodes[node_id]
        epoch = self._epochs[node_id] = self._epochs[node_id] + 1
        node.record = NodeRecord(node_id, epoch, f"{node_id}:1")
        node.may_write = True
        self.members[node_id] = node.record
        self.to_worker(node_id, LeaseRegained(epoch))
        self._tell_members()

    def elect(self, node_id: str) -> None:
        """Make `node_id` the owner; an owner before it is not notified."""
        self.owner_rev += 1
        self.leader = Leader(node_id, 1000 + self.owner_rev)
        machine = self.owners.setdefault(node_id, OwnerMachine(node_id, "1", self.times))
        members = tuple(sorted(self.members.values()))
        hold_s = max(0.0, self._revoked_until_s - self.now_s)
        elected = Elected(self.owner_rev, self.leader.revision, members, dict(self.rows), hold_s, self.overrides)
        self._owner_step(node_id, machine, elected)
        self.settle()

    def depose(self, node_id: str) -> None:
        if node_id in self.owners:
            self.to_owner(node_id, Deposed())

    def want(self, shard: str, *names: str, spec: str = "{}") -> None:
        """The shard's jobs are these now: committed in the log, and the owner notified."""
        before = {row.key: row for row in self.rows.get(ShardId(shard), ())}
        rows = tuple(job(shard, name, spec) for name in names or ("j",))
        rows = tuple(before.get(row.key, row) if spec == "{}" else row for row in rows)
        self.rows[ShardId(shard)] = rows
        self._tell_owner(ShardWanted(ShardId(shard), rows))

    def unwant(self, shard: str) -> None:
        if self.rows.pop(ShardId(shard), None):
            self._tell_owner(ShardUnwanted(ShardId(shard)))

    def leave(self, node_id: str) -> None:
        """The node begins an orderly stop."""
        node = self.nodes[node_id]
        node.record = self.members[node_id] = replace(node.record, leaving=True)
        self._tell_members()

    def override(self, overrides: Overrides) -> None:
        """Operators say this of nodes and shards from now on."""
        self.overrides = overrides
        self._tell_owner(OverridesChanged(overrides))

    def move(self, shard: str, node_id: str) -> None:
        self._tell_owner(MoveRequested(ShardId(shard), node_id))

    def rebalance(self) -> None:
        self._tell_owner(RebalanceRequested())

    def iterate(self, node_id: str, shard: str, seq: int) -> None:
        """The node has run an iteration of each job of the shard."""
        rows = self.nodes[node_id].engine.jobs[ShardId(shard)]
        reports = tuple(report(row, seq) for row in rows)
        self.to_worker(node_id, Reports(ShardId(shard), reports, tuple(entry(row, seq, node_id) for row in rows)))

    def finish(self, node_id: str) -> None:
        """A slow engine has stopped what it was to stop."""
        for event in self.nodes[node_id].engine.finish():
            self.to_worker(node_id, event)

    def unstall(self) -> None:
        """The log can be written again."""
        self.log_stalled = False
        stalled, self._stalled = self._stalled, []
        for node_id, effect in stalled:
            self._record(node_id, effect)
        self.settle()

    def running(self) -> dict[str, str]:
        """Shard → the node whose engine has it."""
        return {str(shard): name for name, node in self.nodes.items() for shard in node.engine.jobs}

    # --- time --------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._agenda, (self.now_s + delay_s, self._serial, action))

    def run(self, seconds: float) -> None:
        """Let time pass: each machine is ticked when it is due."""
        end_s = self.now_s + seconds
        for _ in range(STEPS_MAX):
            self.settle()
            due_s = min((due for due in self._due() if due is not None), default=end_s)
            if due_s >= end_s:
                self.now_s = end_s
                break
            self.now_s = max(self.now_s, due_s)
            self._wake()
        else:
            raise AssertionError("the cluster does not come to rest")
        self._wake()
        self.settle()

    def _due(self) -> list[float | None]:
        machines: list[OwnerMachine | WorkerMachine] = [
            *self.owners.values(),
            *(node.worker for node in self.nodes.values()),
        ]
        return [self._agenda[0][0] if self._agenda else None, *(machine.next_due_s() for machine in machines)]

    def _wake(self) -> None:
        while self._agenda and self._agenda[0][0] <= self.now_s:
            heapq.heappop(self._agenda)[2]()
            self.settle()
        for node_id, owner in list(self.owners.items()):
            if (due := owner.next_due_s()) is not None and due <= self.now_s:
                self._owner_step(node_id, owner, Tick())
        for node_id, node in list(self.nodes.items()):
            if (due := node.worker.next_due_s()) is not None and due <= self.now_s:
                self._worker_step(node_id, node, Tick())

    def settle(self) -> None:
        """Deliver until nothing is on its way."""
        for _ in range(STEPS_MAX):
            if self._local:
                self._local.popleft()()
            elif self._wire:
                self._deliver()
            else:
                return
        raise AssertionError("messages without end")

    def _deliver(self) -> None:
        random = self.random
        if random is None:
            self._wire.pop(0)()
            return
        delivery = self._wire.pop(random.randrange(min(len(self._wire), 4)))
        if random.random() < self.drop:
            return
        if random.random() < self.drop:
            self.later(random.uniform(0.0, 6.0), delivery)  # doubled, and late
        delivery()

    # --- the machines ------------------------------------------------------------------------------------------

    def to_worker(self, node_id: str, event: WorkerEvent) -> None:
        self._worker_step(node_id, self.nodes[node_id], event)
        self.settle()

    def to_owner(self, node_id: str, event: OwnerEvent) -> None:
        self._owner_step(node_id, self.owners[node_id], event)
        self.settle()

    def _check(self) -> None:
        for owner in self.owners.values():
            check_owner(owner)
        for node in self.nodes.values():
            check_worker(node.worker)
        writing = ((name, node) for name, node in self.nodes.items() if node.may_write)
        check_no_double_run((name, node.engine.jobs.keys() - node.engine.condemned) for name, node in writing)

    def _write(self, name: str, event: object, effects: list[object]) -> None:
        if self.note is not None and (text := self.note(self.now_s, name, event, effects)) is not None:
            self.transcript.append(text)

    def _worker_step(self, node_id: str, node: Node, event: WorkerEvent) -> None:
        effects = node.worker.step(event, self.now_s)
        self._write(node_id, event, list(effects))
        for effect in effects:
            match effect:
                case SendToOwner(owner_id, message):
                    self._send(node_id, owner_id, self._to_owner_later(owner_id, FromNode(node_id, message)))
                case CheckElection():
                    self._local.append(self._to_worker_later(node, ElectionChecked(self.leader)))
                case _:
                    for answer in node.engine.obey(effect):
                        self._local.append(self._to_worker_later(node, answer))
        self._check()

    def _owner_step(self, node_id: str, owner: OwnerMachine, event: OwnerEvent) -> None:
        effects: list[OwnerEffect] = owner.step(event, self.now_s)
        self._write(f"{node_id}/owner", event, list(effects))
        for effect in effects:
            match effect:
                case SendTo(record, message):
                    node = self.nodes.get(record.node_id)
                    if node is not None:
                        self._send(node_id, record.node_id, self._to_worker_later(node, FromOwner(message)))
                case RevokeLease(record, revision):
                    self._local.append(partial(self._revoke, record, revision))
                case RecordCheckpoint() if self.log_stalled:
                    self._stalled.append((node_id, effect))
                case RecordCheckpoint():
                    self._record(node_id, effect)
                case BuildRing(nodes):
                    self._local.append(self._to_owner_later(node_id, RingBuilt(ring_of(nodes))))
        self._check()

    def _record(self, node_id: str, effect: RecordCheckpoint) -> None:
        owner = self.owners.get(node_id)
        if self.leader is None or node_id != self.leader.node_id or owner is None or owner.owner_rev != self.owner_rev:
            return  # the log's fence
        self.history.extend(effect.history)
        moved: dict[ShardId, None] = {}
        for news in effect.reports:
            shard = ShardId(news.key.table_id)
            rows = self.rows.get(shard, ())
            self.rows[shard] = tuple((row.key == news.key and apply_report(row, news)) or row for row in rows)
            moved[shard] = None
        for shard in moved:
            if self.rows[shard]:
                self._local.append(self._to_owner_later(node_id, RowsMoved(shard, self.rows[shard])))
            else:
                del self.rows[shard]
        done = Recorded(effect.node_id, effect.epoch, effect.number)
        self._local.append(self._to_owner_later(node_id, done))

    def _send(self, source: str, target: str, delivery: Callable[[], None]) -> None:
        # A node reaches itself whatever the network does.
        if source == target or not {source, target} & self.cut:
            self._wire.append(delivery)

    def _to_worker_later(self, node: Node, event: WorkerEvent) -> Callable[[], None]:
        def deliver() -> None:
            if self.nodes.get(node.record.node_id) is node:
                self._worker_step(node.record.node_id, node, event)

        return deliver

    def _to_owner_later(self, node_id: str, event: OwnerEvent) -> Callable[[], None]:
        def deliver() -> None:
            if (owner := self.owners.get(node_id)) is not None:
                self._owner_step(node_id, owner, event)

        return deliver

    # --- etcd --------------------------------------------------------------------------------------------------

    def _tell_members(self) -> None:
        self._tell_owner(MembersChanged(tuple(sorted(self.members.values()))))

    def _tell_owner(self, event: OwnerEvent) -> None:
        if self.leader is not None and self.leader.node_id in self.owners:
            self.to_owner(self.leader.node_id, event)

    def _expire(self, record: NodeRecord) -> None:
        there = self.members.get(record.node_id)
        if there is not None and there.epoch == record.epoch:
            del self.members[record.node_id]
            self._tell_members()

    def _revoke(self, record: NodeRecord, election_revision: int) -> None:
        """The key is gone at once; the node may go on writing on the strength of its last renewal."""
        there = self.members.get(record.node_id)
        if there is None or there.epoch != record.epoch:
            return
        if self.leader is None or self.leader.revision != election_revision:
            return
        self._revoked_until_s = self.now_s + self.times.lease_ttl_s + self.times.margin_s
        node = self.nodes.get(record.node_id)
        if node is not None and node.record.epoch == record.epoch:
            self.later(self.times.lease_ttl_s - self.times.margin_s, lambda: self._lease_lost(node))
        self._expire(record)

    def _lease_lost(self, node: Node) -> None:
        if self.nodes.get(node.record.node_id) is node and node.may_write:
            node.may_write = False
            self.to_worker(node.record.node_id, LeaseEnded())
