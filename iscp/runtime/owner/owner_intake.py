"""The side of an owner's loop that other threads use: what they submit, and what they read at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Self, TypeVar

from iscp.coordination.membership.registered_nodes import Roll
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.events import MoveRequested, OverridesChanged, OwnerEvent, RebalanceRequested
from iscp.coordination.protocol.messages import NodeMessage, SourceSeen
from iscp.core.values.errors import IscpError, NotOwner, QueueFull, Unavailable, no_owner
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Leader, Moment, NodeRecord
from iscp.ports.cluster import ElectionKey
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.inbox import Gathered, Inbox
from iscp.runtime.loop.loop_query import query_loop
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.log.log_marker import LogMarker
from iscp.runtime.owner.owner_events import Committed, Heard, Lost, Members, Query, Won
from iscp.runtime.owner.unread import Unread

T = TypeVar("T")

_Snapshot = tuple[tuple[NodeRecord, ...], Moment]
LoopEvent = OwnerEvent | Won | Lost | Committed | Query | Heard | Members


class OwnerIntake:
    """All that is here is written by the loop's thread alone.

    `seen` maps shards to what their nodes last saw of the sources, `repaired` are those of them with a repair that some
    job has not applied; like `machine`, they are read through `query`.
    `claim_fault`: why the last claim failed, until one succeeds.
    """

    _inbox: Inbox[LoopEvent]
    _threads: Threads

    def __init__(
        self, machine: OwnerMachine, clock: Clock, roll: Roll, marker: LogMarker, election: ElectionKey
    ) -> None:
        self.machine = machine
        self.seen: dict[ShardId, SourceSeen] = {}
        self.repaired: dict[ShardId, None] = {}
        self.leader: Leader | None = None
        self.writer: LogWriter | None = None
        self.claim_fault: IscpError | None = None
        self._last_writer: LogWriter | None = None
        self._last_address = "", ""
        self._clock = clock
        self._election = election
        self._roll = roll
        self._marker = marker
        self._unread = Unread(clock)
        self._registered: Gathered[_Snapshot] = Gathered(partial(max, key=itemgetter(1)))

    def on_elected(self, leader: Leader) -> None:
        self._inbox.post(Won(leader))

    def on_lost(self) -> None:
        self._inbox.post(Lost())

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """These are registered as of that moment of etcd; also from several threads, in whichever order."""
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

    def take_seen(self, seen: SourceSeen) -> None:
        before = self.seen.get(seen.shard)
        if before is not None and not seen.checked_at_s:  # its node could never probe it; another one could
            seen = replace(before, unreached=True)
        self.seen[seen.shard] = seen
        if seen.repair_version:
            self.repaired[seen.shard] = None
        else:
            self.repaired.pop(seen.shard, None)

    def forget_seen(self, shard: ShardId) -> None:
        self.seen.pop(shard, None)
        self.repaired.pop(shard, None)

    def notify(self, event: OverridesChanged | MoveRequested | RebalanceRequested) -> None:
        """What an operator has said; without effect between terms."""
        self._inbox.put(event)

    def query(self, read: Callable[[Self], T], timeout_s: float = 5.0) -> T:
        """What `read` finds, on the loop's own thread; raises Unavailable where that is busy for long."""
        try:
            return query_loop(lambda act: self._inbox.put(Query(act)), lambda: read(self), timeout_s, self._threads)
        except TimeoutError as error:
            raise Unavailable("the owner begins or ends a term", remedy="Try again in a moment") from error

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
        """The writer of the present term, whose book nobody else has changed.

        Raises NotOwner between terms, and where this node cannot say that no other has been elected since.
        """
        leader = self.leader  # before the writer, which is of this term or an earlier one then: never of a later one
        if (writer := self.writer) is None or leader is None:
            raise no_owner(self.log_fault())
        if self._clock.monotonic_s() >= self._election.confirmed_until_s(leader.revision):
            raise NotOwner(
                "this node leads no more, as far as it can say: etcd has not confirmed its election in time",
                remedy="Try again in a moment, or at another node",
            )
        return writer

    def log_fault(self) -> IscpError | None:
        """Why nobody can claim the job log, here or at the node that leads. Between terms it is read from etcd."""
        return self.claim_fault or (self._marker.fault() if self.writer is None else None)

    @property
    def quarantined(self) -> int:
        """Entries of the history that this node could not write as an owner, in its last term."""
        return self._last_writer.quarantined() if self._last_writer else 0
