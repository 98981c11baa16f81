"""The owner's side of a node: elected, it claims its term in the job log, loads the jobs and drives the owner machine.

The module also has what the loop leaves to other threads: the revocation of leases, and the building of rings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Self, TypeVar, assert_never

from iscp.cluster.jobs.job_book import BookChange, JobBook, by_shard
from iscp.cluster.membership.assignments import ring_of
from iscp.cluster.membership.membership import Roll
from iscp.cluster.owner.checkpoint_saver import Checkpointer, SeenSources
from iscp.cluster.owner.job_log_writer import LogHooks, LogMarker, LogWriter
from iscp.cluster.owner.owner_events import (
    Committed,
    Decisions,
    Heard,
    JobLogAccess,
    Lost,
    Members,
    OwnerHooks,
    Query,
    Unread,
    Won,
    merge_shards,
)
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import (
    BuildRing,
    Decided,
    Decision,
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    MoveRequested,
    OverridesChanged,
    OwnerEffect,
    OwnerEvent,
    RebalanceRequested,
    RecordCheckpoint,
    Recorded,
    Resign,
    RevokeLease,
    RingBuilt,
    RowsMoved,
    SendTo,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.model.protocol.messages import NodeMessage
from iscp.model.values.errors import IscpError, NotOwner, QueueFull, TemporaryError, Unavailable, no_owner
from iscp.model.values.ids import Leader, Moment, NodeRecord, ShardId
from iscp.model.values.ring import Overrides, Ring
from iscp.ports.cluster import ClusterPorts, ElectionKey, MemberControl
from iscp.ports.engine import JobLog
from iscp.ports.system import Clock, Threads
from iscp.schedule.lag import NodeClocks
from iscp.system.inbox import EVENTS_MAX, Gathered, Inbox, InboxLimits, Turns, query_loop
from iscp.system.threads import THREADS, no_collection

log = logging.getLogger(__name__)

# --- the claim of a term ----------------------------------------------------------------------------------------------
# A term is claimed in the job log, and loads what it begins with.


@dataclass(frozen=True, slots=True)
class ClaimedTerm:
    """A term that is minted: `owner_rev` is its number in the log. `wanted`: the jobs of each shard."""

    joblog: JobLog
    owner_rev: int
    rows: Sequence[JobRow]
    wanted: Mapping[ShardId, tuple[JobRow, ...]]
    hold_s: float
    overrides: Overrides
    members: tuple[NodeRecord, ...]
    members_at: Moment


def claim_term(open_log: Callable[[], JobLog], cluster: ClusterPorts, still_leads: Callable[[], bool]) -> ClaimedTerm:
    """Raises TemporaryError, also where the election was lost meanwhile.

    The log is claimed before anything is read: what is read then cannot be changed by a former owner any more.
    """
    joblog = open_log()
    owner_rev = joblog.claim_term()
    rows = joblog.load()
    hold_s, overrides = cluster.membership.hold_s(), cluster.overrides.load()
    members, members_at = cluster.membership.members()
    if not still_leads():
        # Frozen for a while, it has overtaken who leads by now. Whatever it took in would be read by nobody,
        # until that one writes and sees that it has to claim again.
        raise NotOwner("the election was lost during the claim")
    return ClaimedTerm(joblog, owner_rev, rows, by_shard(rows), hold_s, overrides, members, members_at)


# --- leases and rings, on threads of their own ------------------------------------------------------------------------


class Revoker:
    """Ends the leases of nodes that do not answer, as the owner and none other, by the thread that may wait for etcd.

    `on_members` gets who is registered after each revocation. That a node is gone comes by the watch of the members.
    But where etcd was restored from a backup between a list of them and the watch that followed, the owner may know of
    a life that has gone since, or never was.
    """

    def __init__(
        self,
        membership: MemberControl,
        election: ElectionKey,
        etcd: Executor,
        on_members: Callable[[tuple[NodeRecord, ...], Moment], None],
    ) -> None:
        self._membership = membership
        self._election = election
        self._etcd = etcd
        self._on_members = on_members
        self._revoking: set[tuple[str, int]] = set()

    def revoke(self, record: NodeRecord, election_revision: int) -> None:
        """Called again and again until the node is gone; from one thread."""
        life = (record.node_id, record.epoch)
        # etcd may take longer to answer than the machine to repeat itself.
        if life not in self._revoking:
            self._revoking.add(life)
            self._etcd.submit(self._revoke, record, election_revision)

    def _revoke(self, record: NodeRecord, election_revision: int) -> None:
        try:
            # A deposed owner, hearing nobody, would otherwise revoke everyone.
            leader = self._election.leader()
            if leader is not None and leader.revision == election_revision:
                log.warning("owner.revokes", extra={"node": record.node_id, "epoch": record.epoch})
                self._membership.revoke(record, partial(self._election.put_fenced, leader))
                self._on_members(*self._membership.members())
        except IscpError as error:
            log.warning("owner.revoke_failed", extra={"node": record.node_id, "error": str(error)})
        finally:
            self._revoking.discard((record.node_id, record.epoch))


class RingBuilder:
    """Builds the rings on a thread of its own: a ring of 1,000 nodes takes longer than the owner's loop may pause.

    `on_built` gets the ring that was requested last, from the builder's thread, and `on_broken` what went wrong.
    """

    def __init__(
        self, on_built: Callable[[Ring], None], on_broken: Callable[[Exception], None], threads: Threads = THREADS
    ) -> None:
        self._on_built = on_built
        self._on_broken = on_broken
        self._wanted: frozenset[str] = frozenset()
        self._thread = threads.pool("iscp-ring")

    def build(self, nodes: frozenset[str]) -> None:
        """Build the ring of these nodes. Rings that were requested before, and are not begun, are left out."""
        self._wanted = nodes
        self._thread.submit(self._build, nodes)

    def close(self) -> None:
        """Build nothing that is requested from now on."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _build(self, nodes: frozenset[str]) -> None:
        if nodes != self._wanted:
            return
        try:
            self._on_built(ring_of(nodes))
        except Exception as error:
            log.exception("ring.broken")
            self._on_broken(error)


# --- the loop ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_Snapshot = tuple[tuple[NodeRecord, ...], Moment]
LoopEvent = OwnerEvent | Won | Lost | Committed | Query | Heard | Members

CLAIM_RETRY_S = 1.0
"""Pause before an owner tries again to claim the job log."""


class OwnerLoop:
    """Runs while the node does; between terms it only waits.

    All of it happens on one inbox thread. The log's writer has threads of its own and reports what it has committed;
    the log's fence, not the election, is what makes a deposed owner harmless. A thread of its own writes to etcd: an
    etcd that does not answer must not delay the nodes that do.

    Other threads submit events and read at any time; all attributes are written by the loop's thread alone. `machine`
    and `sources` are read by `query`. `claim_fault`: why the last claim failed. `log_commits`: those of its writers.
    """

    _writer_of: type[LogWriter] = LogWriter
    _roll_of: type[Roll] = Roll
    _revoker_of: type[Revoker] = Revoker

    def __init__(
        self,
        machine: OwnerMachine,
        log_access: JobLogAccess,
        cluster: ClusterPorts,
        clock: Clock,
        hooks: OwnerHooks,
        threads: Threads = THREADS,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self.machine = machine
        self.sources = SeenSources(clock)
        self.leader: Leader | None = None
        self.writer: LogWriter | None = None
        self.claim_fault: IscpError | None = None
        self.decisions = Decisions()
        self.log_commits = 0
        self.checkpoint = Checkpointer(cluster.checkpoints, clock)
        self._log_access = log_access
        self._cluster = cluster
        self._clock = clock
        self._hooks = hooks
        self._threads = threads
        self._etcd = threads.pool("iscp-owner-etcd")
        self._marker = LogMarker(cluster.marks, clock, self._etcd)
        self._revoker = self._revoker_of(cluster.membership, cluster.election, self._etcd, self.on_members_changed)
        self._roll = self._roll_of()
        self._registered: Gathered[_Snapshot] = Gathered(partial(max, key=itemgetter(1)))
        self._unread = Unread(clock)
        self._rings = RingBuilder(lambda ring: self._inbox.post(RingBuilt(ring)), hooks.on_broken, threads)
        self._clocks = NodeClocks()
        self._claim_at_s: float | None = None
        self._last_writer: LogWriter | None = None
        self._last_address = "", ""
        turns: Turns[LoopEvent] = Turns(self._take, self._tick, self._next_due_s)
        self._inbox = Inbox("iscp-owner", clock, turns, hooks.on_broken, InboxLimits(events_max), threads)

    def start(self) -> None:
        self._inbox.start()

    def close(self) -> None:
        """End the term in order: what is pending is written."""
        leader = self.leader
        self._inbox.post(Lost())
        self._inbox.close()
        # Before the pool is shut down, through which it saves the last version.
        self._marker.close(leader)
        self._etcd.shutdown(wait=False, cancel_futures=True)
        self._rings.close()
        self.decisions.close()

    def on_elected(self, leader: Leader) -> None:
        self._inbox.post(Won(leader))

    def on_lost(self) -> None:
        self._inbox.post(Lost())

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """Note who is registered as of that moment of etcd; also from several threads, in whichever order."""
        if self._registered.add((members, moment)):
            self._inbox.post(Members())

    def receive(self, node_id: str, messages: Sequence[NodeMessage]) -> None:
        """Raises QueueFull where the loop does not keep up: the node repeats what it was not answered."""
        came_s = self._unread.note()
        try:
            self._inbox.put(Heard(node_id, messages, came_s))
        except QueueFull:
            self._unread.mark_read(came_s)
            raise

    def notify(self, event: OverridesChanged | MoveRequested | RebalanceRequested) -> None:
        """Pass on what an operator has requested; without effect between terms."""
        self._inbox.put(event)

    def query(self, read: Callable[[Self], T], timeout_s: float = 5.0) -> T:
        """Return what `read` finds, on the loop's own thread. Raises Unavailable if that is busy for long."""
        try:
            return query_loop(lambda act: self._inbox.put(Query(act)), lambda: read(self), timeout_s, self._threads)
        except TimeoutError as error:
            raise Unavailable("the owner begins or ends a term", remedy="Try again in a moment") from error

    @property
    def members(self) -> tuple[NodeRecord, ...]:
        return self._roll.members

    def address_of(self, node_id: str, own_id: str) -> str | None:
        """Return the address of a node, or its last one as a member; None if it is `own_id`, or was never heard of."""
        if node_id in ("", own_id):
            return None
        known = next((record.address for record in self.members if record.node_id == node_id), None)
        if known is not None:
            self._last_address = node_id, known
        return known or (self._last_address[1] if self._last_address[0] == node_id else None)

    def current_writer(self) -> LogWriter:
        """Return the writer of the present term, whose book nobody else has changed.

        Raises NotOwner between terms, and where this node cannot say that no other has been elected since.
        """
        leader = self.leader  # before the writer, which is of this term or an earlier one then: never of a later one
        if (writer := self.writer) is None or leader is None:
            raise no_owner(self.log_fault())
        if self._clock.monotonic_s() >= self._cluster.election.confirmed_until_s(leader.revision):
            raise NotOwner(
                "this node leads no more, as far as it can say: etcd has not confirmed its election in time",
                remedy="Try again in a moment, or at another node",
            )
        return writer

    def log_fault(self) -> IscpError | None:
        """Return why nobody can claim the job log, here or at the node that leads (between terms, from etcd)."""
        return self.claim_fault or (self._marker.fault() if self.writer is None else None)

    @property
    def quarantined(self) -> int:
        """Return how many entries of the history this node could not write as an owner, in its last term."""
        return self._last_writer.quarantined if self._last_writer else 0

    # --- the loop's thread -------------------------------------------------------------------------------------

    def _next_due_s(self) -> float | None:
        times = [self.machine.next_due_s(), self._claim_at_s]
        if self.leader is not None:  # who does not lead saves nothing, and would turn for it without rest
            times += [self.checkpoint.due_s, self._marker.due_s]
        return min((due_s for due_s in times if due_s is not None), default=None)

    def _tick(self) -> None:
        if self._claim_at_s is not None and self._claim_at_s <= self._clock.monotonic_s():
            self._claim()
        due_s = self.machine.next_due_s()
        if due_s is not None and due_s <= self._unread.since_s():  # before that, what it waits for may be there
            self._step(Tick())
        self._advance()

    def _take(self, event: LoopEvent) -> None:
        match event:
            case Won(leader):
                self._end_term()
                self.leader = leader
                self._claim()
            case Lost(writer):
                if writer is None:
                    self.leader = self._claim_at_s = None
                    self._end_term()
                elif writer is self.writer:
                    # Another term is in the log. If we still lead, claim a new one: then the log knows who does.
                    self._end_term()
                    self._claim_at_s = self._clock.monotonic_s() + CLAIM_RETRY_S if self.leader else None
            case Committed(writer, shards):
                # Else it is of an earlier term's writer, whose book does not count any more.
                if writer is self.writer:
                    self._take_shards(writer, shards.take())
            case Query(read):
                read()
            case Heard(node_id, messages, came_s):
                for message in messages:
                    self._step(FromNode(node_id, message))
                self._unread.mark_read(came_s)
            case Members():
                members, moment = self._registered.take()
                if not self._roll.overtaken(moment):
                    self._step(MembersChanged(members, self._take_roll(members, moment)))
                    self._hooks.keep(members if self.machine.term else ())
            case _:
                self._step(event)

    @no_collection()
    def _claim(self) -> None:
        """Mint the term, load the jobs, begin. A fault of storage is tried again while the election is held."""
        leader, self._claim_at_s = self.leader, None
        if leader is None:
            return
        try:
            term = claim_term(self._log_access.open, self._cluster, lambda: self._still_leads(leader))
            self.checkpoint.begin(term.wanted)
        except TemporaryError as error:
            log.warning("owner.claim_failed", extra={"error": str(error)})
            self._marker.report(leader, error)
            self.claim_fault, self._claim_at_s = error, self._clock.monotonic_s() + CLAIM_RETRY_S
            return
        self._marker.report(leader, None)
        self._marker.note(term.joblog.version)
        follows = term.owner_rev > 1  # before the first owner nobody has run anything
        roll_hold_s = self._take_roll(term.members, term.members_at, follows)
        self.sources, self.claim_fault = SeenSources(self._clock), None
        self.decisions.begin(term.owner_rev)
        hold_s, overrides = max(term.hold_s, roll_hold_s), term.overrides
        # Before the book is made of the rows: meanwhile the nodes can say what they run.
        self._step(Elected(term.owner_rev, leader.revision, term.members, term.wanted, hold_s, overrides))
        book = JobBook(term.rows, term.joblog.requests())
        log.info("owner.began", extra={"owner_rev": term.owner_rev, "jobs": len(book), "election": leader.revision})
        self.writer = self._last_writer = writer = self._new_writer(term.joblog, book)
        writer.start()
        self._hooks.on_progress()
        self._hooks.on_tables(())

    def _still_leads(self, leader: Leader) -> bool:
        return self._cluster.election.leader() == leader

    def _take_roll(self, members: tuple[NodeRecord, ...], moment: Moment, begins: bool = False, /) -> float:
        timeouts = self.machine.timeouts
        return self._roll.take(
            members, moment, self._clock.monotonic_s(), timeouts.margin_s, timeouts.lease_ttl_s, begins
        )

    def _new_writer(self, joblog: JobLog, book: JobBook) -> LogWriter:
        shards: Gathered[dict[ShardId, bool]] = Gathered(merge_shards)

        def post_commit(change: BookChange) -> None:
            if shards.add(change.decided_shards):
                self._inbox.post(Committed(writer, shards))
            for shard in change.woken:
                self._hooks.on_woken(shard)

        access = self._log_access
        hooks = LogHooks(post_commit, lambda error: self._inbox.post(Lost(writer)), self._mark)
        writer: LogWriter = self._writer_of(
            joblog, book, self._clock, access.config, hooks, access.limits, self._threads
        )
        return writer

    def _mark(self, version: int) -> None:
        """Note the version, on the writer's thread."""
        self.log_commits += 1
        if self._marker.note(version):
            self._inbox.post(Query(lambda: None))  # it is due earlier than the loop knows

    def _end_term(self) -> None:
        # First: from here on requests are refused, however long the writer takes to close.
        writer, self.writer = self.writer, None
        self._step(Deposed())
        self._hooks.keep(())
        if writer is not None:
            writer.close()
            self._hooks.on_progress()
            self._hooks.on_tables(())

    def _take_shards(self, writer: LogWriter, shards: dict[ShardId, bool]) -> None:
        for shard, decided in shards.items():
            jobs = writer.read(lambda book, shard=shard: book.jobs_in(shard))  # type: ignore[misc]
            if not decided and not jobs:
                continue  # they have been dropped since: that comes next, and until then they are wanted
            if not decided:
                self._step(RowsMoved(shard, jobs))
            else:
                self._step(ShardWanted(shard, jobs) if jobs else ShardUnwanted(shard))
            if not jobs:
                self.sources.forget(shard)
            self.checkpoint.take(shard, jobs, self.sources.seen.get(shard))
        self._hooks.on_progress()
        self._hooks.on_tables(shard.table_id for shard in shards)

    def _advance(self) -> None:
        now_s, due_s, leader = self._clock.monotonic_s(), self.checkpoint.due_s, self.leader
        self._marker.advance(leader)
        if due_s is None or due_s > now_s or leader is None:
            return
        if why := self.checkpoint.take_back():
            self._note(Decided(Decision.CLOCK, self.machine.node_id, why=why))
        if self.checkpoint.advance(self.machine.running) or why:
            self._etcd.submit(self.checkpoint.save, leader)

    def _step(self, event: OwnerEvent) -> None:
        for effect in self.machine.step(event, self._clock.monotonic_s(), self._unread.since_s()):
            self._carry_out(effect)

    def _carry_out(self, effect: OwnerEffect) -> None:
        match effect:
            case SendTo(record, message):
                self._hooks.send(record, message)
            case RevokeLease(record, election_revision):
                self._revoker.revoke(record, election_revision)
            case RecordCheckpoint():
                self._record(effect)
            case Resign(election_revision):
                self._cluster.election.give_way(election_revision)
            case BuildRing(nodes):
                self._rings.build(nodes)
            case Decided():
                self._note(effect)
            case _:
                assert_never(effect)

    def _note(self, decided: Decided) -> None:
        self.decisions.note(decided, self._clock.now_s(), self._table_of(decided.shard))
        term = self.machine.term
        if decided.what is Decision.SYNC and decided.node_id != self.machine.node_id and term is not None:
            self._hooks.on_synced(term.peers[decided.node_id].record)

    def _table_of(self, shard: ShardId | None) -> str:
        assignment = self.machine.assignments.get(shard) if shard else None
        return assignment.jobs[0].table_name if assignment and assignment.jobs else ""

    def _record(self, checkpoint: RecordCheckpoint) -> None:
        if self.writer is None:
            return
        recorded = Recorded(checkpoint.node_id, checkpoint.epoch, checkpoint.number)
        self.writer.report(checkpoint.reports, checkpoint.history, lambda: self._inbox.post(recorded))
        for seen in checkpoint.seen:
            if why := self._clocks.note(checkpoint.node_id, seen.checked_at_s, self._clock.now_s()):
                self._note(Decided(Decision.CLOCK, checkpoint.node_id, why=why))
            # A last word of what is not wanted any more would make it lag for ever.
            if (assignment := self.machine.assignments.get(seen.shard)) is not None and assignment.wanted:
                self.sources.take(seen)
                self.checkpoint.take(seen.shard, assignment.jobs, seen)
        if checkpoint.seen or checkpoint.reports:
            self._hooks.on_progress()
