"""The owner's side of a node: elected, it claims its term in the job log, loads the jobs and drives the owner machine.

All of it happens on one inbox thread. The log's writer has threads of its own and tells what it has committed; the
log's fence, not the election, is what makes a deposed owner harmless. What is written to etcd is written by a thread
of its own: an etcd that does not answer must not hold up the nodes that do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar, assert_never

from iscp.coordination.jobs.book_change import BookChange, by_shard
from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.membership.registered_nodes import Roll
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.effects import BuildRing, Decided, OwnerEffect, RecordCheckpoint, RevokeLease, SendTo
from iscp.coordination.protocol.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    MoveAsked,
    OverridesChanged,
    OwnerEvent,
    RebalanceAsked,
    Recorded,
    RingBuilt,
    RowsMoved,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.coordination.protocol.messages import NodeMessage, OwnerMessage, SourceSeen
from iscp.core.errors import IscpError, JobLogDamaged, NotOwner, QueueFull, TemporaryError, Unavailable
from iscp.core.ids import ShardId
from iscp.core.members import Leader, Moment, NodeRecord
from iscp.ports.cluster import CheckpointStore, ElectionKey, LogMarks, MemberControl, OverrideStore
from iscp.ports.job_log import JobLog
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.gc_tuning import no_collection
from iscp.runtime.loop.inbox import EVENTS_MAX, Gathered, Inbox
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.owner.checkpoint_saver import Checkpointer
from iscp.runtime.owner.job_log_writer import LogWriter
from iscp.runtime.owner.log_limits import LogLimits
from iscp.runtime.owner.log_marker import LogMarker
from iscp.runtime.owner.owner_events import Asked, Committed, Heard, Lost, Members, Won
from iscp.runtime.owner.placement_events import Decisions
from iscp.runtime.owner.revoker import Revoker
from iscp.runtime.owner.ring_builder import RingBuilder
from iscp.runtime.owner.unread import Unread

log = logging.getLogger(__name__)
T = TypeVar("T")

CLAIM_RETRY_S = 1.0
"""Pause before an owner tries again to claim the job log."""

_Snapshot = tuple[tuple[NodeRecord, ...], Moment]
_Event = OwnerEvent | Won | Lost | Committed | Asked | Heard | Members


class OwnerLoop:
    """Runs while the node does; between terms it only waits.

    `open_log` gives a log for one term; `keep` is told to whom it goes on to `send`: the members during a term, nobody
    between terms; `on_moved` is told whenever rows have moved. `seen` maps shards to what their nodes last saw of the
    sources; like `machine`, it is read through `ask`. `claim_fault`: why the last claim failed, until one succeeds.
    """

    _writer_of: type[LogWriter] = LogWriter
    _roll_of: type[Roll] = Roll
    _revoker_of: type[Revoker] = Revoker

    def __init__(
        self,
        machine: OwnerMachine,
        open_log: Callable[[], JobLog],
        membership: MemberControl,
        election: ElectionKey,
        overrides: OverrideStore,
        checkpoints: CheckpointStore,
        marks: LogMarks,
        clock: Clock,
        limits: LogLimits,
        send: Callable[[NodeRecord, OwnerMessage], None],
        keep: Callable[[Sequence[NodeRecord]], None],
        on_moved: Callable[[], None],
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self.machine = machine
        self.seen: dict[ShardId, SourceSeen] = {}
        self.decisions = Decisions()
        self.checkpoint = Checkpointer(checkpoints)
        self.leader: Leader | None = None
        self.writer: LogWriter | None = None
        self._last_writer: LogWriter | None = None
        self._open_log = open_log
        self._membership = membership
        self._election = election
        self._overrides = overrides
        self._clock = clock
        self._limits = limits
        self._send = send
        self._keep = keep
        self._on_moved = on_moved
        self._roll = self._roll_of()
        self._registered: Gathered[_Snapshot] = Gathered(lambda before, now: now)
        self._last_address = "", ""
        self._threads = threads
        self._etcd = threads.pool("iscp-owner-etcd")
        self._marker = LogMarker(marks, clock, self._etcd)
        self._revoker = self._revoker_of(membership, election, self._etcd)
        self._rings = RingBuilder(lambda ring: self._inbox.post(RingBuilt(ring)), on_broken, threads)
        self._claim_at_s: float | None = None
        self._unread = Unread(clock)
        self.claim_fault: IscpError | None = None
        self._inbox: Inbox[_Event] = Inbox(
            "iscp-owner", clock, self._take, self._tick, self._next_due_s, on_broken, events_max, threads=threads
        )

    def start(self) -> None:
        self._inbox.start()

    def close(self) -> None:
        """End the term in order: what is pending is written."""
        leader = self.leader
        self._inbox.post(Lost())
        self._inbox.close()
        self._marker.close(leader)
        self._etcd.shutdown(wait=False, cancel_futures=True)
        self._rings.close()
        self.decisions.close()

    def on_elected(self, leader: Leader) -> None:
        self._inbox.post(Won(leader))

    def on_lost(self) -> None:
        self._inbox.post(Lost())

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """These are registered as of that moment of etcd."""
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

    def tell(self, event: OverridesChanged | MoveAsked | RebalanceAsked) -> None:
        """What an operator has said; without effect between terms."""
        self._inbox.put(event)

    @property
    def members(self) -> tuple[NodeRecord, ...]:
        return self._roll.members

    def address_of(self, node_id: str, here: str) -> str | None:
        """Where a node is, or was as long as it was a member; None if it is `here`, or has never been heard of."""
        if node_id in ("", here):
            return None
        known = next((record.address for record in self.members if record.node_id == node_id), None)
        if known is not None:
            self._last_address = node_id, known
        return known or (self._last_address[1] if self._last_address[0] == node_id else None)

    def current_writer(self) -> LogWriter:
        """The writer of the present term; raises NotOwner between terms."""
        if (writer := self.writer) is None:
            raise NotOwner(f"no owner has claimed the job log yet: {self.log_fault() or 'try again in a moment'}")
        return writer

    def log_fault(self) -> IscpError | None:
        """Why nobody can claim the job log, here or at the node that leads. Between terms etcd is asked."""
        return self.claim_fault or (self._marker.fault() if self.writer is None else None)

    def last_writer(self) -> LogWriter:
        """For reading: as `current_writer`, but between terms the last one, whose book stands still."""
        writer = self.writer or self._last_writer
        if writer is None or isinstance(self.claim_fault, JobLogDamaged):  # no book is true of a log that is damaged
            return self.current_writer()
        return writer

    @property
    def quarantined(self) -> int:
        """Entries of the history that this node could not write as an owner, in its last term."""
        return self._last_writer.quarantined() if self._last_writer else 0

    def ask(self, look: Callable[[OwnerLoop], T], timeout_s: float = 5.0) -> T:
        """What `look` finds, on the loop's own thread; raises Unavailable where that is busy for long."""
        answer: Future[T] = Future()

        def answer_asker() -> None:
            try:
                answer.set_result(look(self))
            except Exception as error:  # noqa: BLE001  (it belongs to whoever asked)
                answer.set_exception(error)

        self._inbox.put(Asked(answer_asker))
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            raise Unavailable("the owner begins or ends a term", remedy="Try again in a moment") from error

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

    def _take(self, event: _Event) -> None:
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
            case Committed(writer, moved):
                if writer is self.writer:
                    self._take_moved(writer, moved.take())
            case Asked(look):
                look()
            case Heard(node_id, messages, came_s):
                for message in messages:
                    self._step(FromNode(node_id, message))
                self._unread.mark_read(came_s)
            case Members():
                members, moment = self._registered.take()
                if not self._roll.overtaken(moment):
                    self._step(MembersChanged(members, self._take_roll(members, moment)))
                    self._keep(members if self.machine.term else ())
            case _:
                self._step(event)

    @no_collection()
    def _claim(self) -> None:
        """Mint the term, load the jobs, begin. A fault of storage is tried again while the election is held."""
        leader, self._claim_at_s = self.leader, None
        if leader is None:
            return
        try:
            joblog = self._open_log()
            owner_rev = joblog.claim_term()
            rows = joblog.load()
            hold_s, overrides = self._membership.hold_s(), self._overrides.load()
            members, members_at = self._membership.members()
            if not self._still_leads(leader):
                # Frozen for a while, it has overtaken who leads by now. Whatever it took in would be read by nobody,
                # until that one writes and sees that it has to claim again.
                raise NotOwner("the election was lost during the claim")
            wanted = by_shard(rows)
            self.checkpoint.begin(wanted)
        except TemporaryError as error:
            log.warning("owner.claim_failed", extra={"error": str(error)})
            self._marker.report(leader, error)
            self.claim_fault, self._claim_at_s = error, self._clock.monotonic_s() + CLAIM_RETRY_S
            return
        self._marker.report(leader, None)
        self._marker.note(joblog.version)
        follows = owner_rev > 1  # before the first owner nobody has run anything
        hold_s, self.seen, self.claim_fault = max(hold_s, self._take_roll(members, members_at, follows)), {}, None
        self.decisions.begin(owner_rev)
        # Before the book is made of the rows: meanwhile the nodes can say what they run.
        self._step(Elected(owner_rev, leader.revision, members, wanted, hold_s, overrides))
        book = JobBook(rows, joblog.requests())
        log.info("owner.began", extra={"owner_rev": owner_rev, "jobs": len(book), "election": leader.revision})
        self.writer = self._last_writer = writer = self._new_writer(joblog, book)
        writer.start()
        self._on_moved()

    def _still_leads(self, leader: Leader) -> bool:
        return self._election.leader() == leader

    def _take_roll(self, members: tuple[NodeRecord, ...], moment: Moment, begins: bool = False, /) -> float:
        times = self.machine.times
        return self._roll.take(members, moment, self._clock.monotonic_s(), times.margin_s, times.ttl_s, begins)

    def _new_writer(self, joblog: JobLog, book: JobBook) -> LogWriter:
        moved: Gathered[dict[ShardId, bool]] = Gathered(_merge_moved)

        def post_commit(change: BookChange) -> None:
            if moved.add(change.moved):
                self._inbox.post(Committed(writer, moved))

        writer: LogWriter = self._writer_of(
            joblog,
            book,
            self._clock,
            self._limits,
            on_committed=post_commit,
            on_deposed=lambda error: self._inbox.post(Lost(writer)),
            on_written=self._mark,
            threads=self._threads,
        )
        return writer

    def _mark(self, version: int) -> None:
        """On the writer's thread."""
        if self._marker.note(version):
            self._inbox.post(Asked(lambda: None))  # it is due earlier than the loop knows

    def _end_term(self) -> None:
        writer, self.writer = self.writer, None
        self._step(Deposed())
        self._keep(())
        if writer is not None:
            writer.close()
            self._on_moved()

    def _take_moved(self, writer: LogWriter, moved: dict[ShardId, bool]) -> None:
        for shard, decided in moved.items():
            jobs = writer.read(lambda book, shard=shard: book.jobs_in(shard))  # type: ignore[misc]
            if not decided:
                self._step(RowsMoved(shard, jobs))
            else:
                self._step(ShardWanted(shard, jobs) if jobs else ShardUnwanted(shard))
            if not jobs:
                self.seen.pop(shard, None)
            self.checkpoint.take(shard, jobs, self.seen.get(shard), self._clock.monotonic_s())
        self._on_moved()

    def _advance(self) -> None:
        now_s, due_s, leader = self._clock.monotonic_s(), self.checkpoint.due_s, self.leader
        self._marker.advance(leader)
        if due_s is None or due_s > now_s or leader is None:
            return
        if self.checkpoint.advance(now_s, self.machine.running):
            self._etcd.submit(self.checkpoint.save, leader)

    def _step(self, event: OwnerEvent) -> None:
        for effect in self.machine.step(event, self._clock.monotonic_s(), self._unread.since_s()):
            self._carry_out(effect)

    def _carry_out(self, effect: OwnerEffect) -> None:
        match effect:
            case SendTo(record, message):
                self._send(record, message)
            case RevokeLease(record, election_revision):
                self._revoker.revoke(record, election_revision)
            case RecordCheckpoint():
                self._record(effect)
            case BuildRing(nodes):
                self._rings.build(nodes)
            case Decided():
                self.decisions.note(effect, self._clock.now_s())
            case _:
                assert_never(effect)

    def _record(self, checkpoint: RecordCheckpoint) -> None:
        if self.writer is None:
            return
        recorded = Recorded(checkpoint.node_id, checkpoint.epoch, checkpoint.number)
        self.writer.report(checkpoint.reports, checkpoint.history, lambda: self._inbox.post(recorded))
        for seen in checkpoint.seen:
            # A last word of what is not wanted any more would make it lag for ever.
            if (held := self.machine.assignments.get(seen.shard)) is not None and held.wanted:
                self.seen[seen.shard] = seen
                self.checkpoint.take(seen.shard, held.jobs, seen, self._clock.monotonic_s())
        if checkpoint.seen or checkpoint.reports:
            self._on_moved()


def _merge_moved(before: dict[ShardId, bool], now: dict[ShardId, bool]) -> dict[ShardId, bool]:
    for shard, decided in now.items():
        before[shard] = decided or before.get(shard, False)
    return before
