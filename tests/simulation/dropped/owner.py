"""The fences and guards of the owner's machine, each dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from iscp.cluster.membership.membership import Roll
from iscp.cluster.membership.term import PeerPhase
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import (
    CoordinationTimes,
    Elected,
    FromNode,
    MembersChanged,
    OwnerEffect,
    OwnerEvent,
    RevokeLease,
    RingBuilt,
)
from iscp.model.protocol.messages import (
    Checkpoint,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
    SourceSeen,
)
from iscp.model.values.ids import Moment, NodeRecord, ShardId
from iscp.schedule.lag import GlobalCheckpoint, SteadyTime, counts


class HearsAnything(OwnerMachine):
    """Lets a message be changed before it is heard."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if isinstance(event, FromNode) and self.term is not None:
            event = FromNode(event.node_id, self.heard(event.node_id, event.message))
        return super().step(event, now_s, read_s)

    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        return message


class HearsAnyTerm(HearsAnything):
    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        return replace(message, owner_rev=self.owner_rev)


class HearsAnyEpoch(HearsAnything):
    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        peer = self.term.peers.get(node_id) if self.term else None
        return replace(message, epoch=peer.record.epoch) if peer else message


class HearsAnyTableEpoch(HearsAnything):
    """An answer to an earlier dispatch counts for the one that is in flight."""

    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        peer = self.term.peers.get(node_id) if self.term else None
        if isinstance(message, DispatchTableResponse) and peer and message.shard in peer.in_flight:
            return replace(message, table_epoch=peer.in_flight[message.shard].table_epoch)
        return message


class TakesCheckpointsTwice(HearsAnything):
    """One that is repeated, or doubled on its way, counts again."""

    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        peer = self.term.peers.get(node_id) if self.term else None
        if isinstance(message, Checkpoint) and peer is not None and message.number <= peer.accepted:
            peer.accepted = message.number - 1
            peer.recorded = min(peer.recorded, peer.accepted)
        return message


class TakesStoppingForStopped(HearsAnything):
    def heard(self, node_id: str, message: NodeMessage) -> NodeMessage:
        if isinstance(message, DispatchTableResponse) and message.state is NodeShardState.REMOVING:
            return replace(message, state=NodeShardState.ABSENT)
        return message


class AwaitsNoSync(OwnerMachine):
    """Places before the nodes have said what they run."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        effects = super().step(event, now_s, read_s)
        if isinstance(event, Elected) and self.term is not None:
            for peer in self.term.peers.values():
                peer.founding, peer.phase = False, PeerPhase.SYNCED
            self.term.look_round()
            self.term.changed = True
        return effects


class RevokesNobody(OwnerMachine):
    """An unreachable node keeps its lease."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        return [effect for effect in super().step(event, now_s, read_s) if not isinstance(effect, RevokeLease)]


class PlacesBesideCopies(OwnerMachine):
    """What one node has given up is placed though another still runs it."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if self.term is not None:
            for shard, holder in list(self.term.copies):
                self.term.end_copy(shard, holder)
        return super().step(event, now_s, read_s)


class BlamesForUnreadAnswers(OwnerMachine):
    """Deadlines and repetitions go by the clock alone, whatever waits to be read."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        return super().step(event, now_s)


class SendsAllAtOnce(OwnerMachine):
    """As many dispatches as the nodes may have in flight, whatever the owner can take in."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if self.term is not None:
            self.term.window.size = 1_000_000
        return super().step(event, now_s, read_s)


class PlacesByAnyRing(OwnerMachine):
    """A ring counts that was requested before the nodes changed."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if isinstance(event, RingBuilt) and self.term is not None:
            self.term.placement = replace(self.term.placement, ring=event.ring)
        return super().step(event, now_s, read_s)


class RepeatsAsOften(CoordinationTimes):
    """What is not confirmed is sent again as often as at first."""

    @property
    def resend_max_s(self) -> float:
        return self.resend_s


class BelievesOldMembers(Roll):
    """A snapshot of the members that was overtaken by the list of the term's beginning counts."""

    def overtaken(self, moment: Moment) -> bool:
        return False


class GoesByRevisionsAlone(Roll):
    """What a restored etcd says is taken for old."""

    def overtaken(self, moment: Moment) -> bool:
        return moment.revision < self.moment.revision


class HoldsNotAfterARestore(Roll):
    """Leases that a restored etcd does not know count for nothing."""

    def take(
        self,
        members: tuple[NodeRecord, ...],
        moment: Moment,
        now_s: float,
        margin_s: float,
        ttl_s: float,
        begins: bool = False,
    ) -> float:
        self.moment = replace(self.moment, restores=moment.restores)
        return super().take(members, moment, now_s, margin_s, ttl_s, begins)


class ForgetsWhoHasGone(Roll):
    """An owner that begins does not wait for nodes whose lease has just ended."""

    def take(
        self,
        members: tuple[NodeRecord, ...],
        moment: Moment,
        now_s: float,
        margin_s: float,
        ttl_s: float,
        begins: bool = False,
    ) -> float:
        return super().take(members, moment, now_s, margin_s, ttl_s)


class WaitsByItsOwnTtl(OwnerMachine):
    """Each node's lease is believed to last as long as the owner's."""

    BELIEVED_S = 0.0

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if isinstance(event, Elected | MembersChanged):
            event = replace(event, members=tuple(replace(each, ttl_s=self.BELIEVED_S) for each in event.members))
        return super().step(event, now_s, read_s)


class WaitsNotAfterAnExpiry(OwnerMachine):
    """What a node ran whose lease ran out is placed at once, though its clock may have stood still."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if self.term is not None:
            revoked = any(peer.phase is PeerPhase.REVOKED for peer in self.term.peers.values())
            self.term.timeouts = self.timeouts if revoked else replace(self.timeouts, margin_s=0.001)
        return super().step(event, now_s, read_s)


class WaitsHardlyAfterARevocation(WaitsByItsOwnTtl):
    """What a revoked node ran is placed when its key is gone, though it may not know yet."""

    BELIEVED_S = 0.5


class CoversWhoeverCounts(GlobalCheckpoint):
    """A job that was resumed far behind is covered at once, as it counts again."""

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None, now_at_s: float = inf) -> None:
        self._covered[shard] = tuple(row.job_id for row in jobs if counts(row))
        super().take(shard, jobs, seen, now_at_s)


class BelievesTheFuture(GlobalCheckpoint):
    """What nodes and commits say of the time counts, however far ahead it is."""

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None, now_at_s: float = inf) -> None:
        super().take(shard, jobs, seen)


class BelievesItsClock(SteadyTime):
    """An owner's own clock counts at once, however far it jumps."""

    def read(self, at_s: float, now_s: float) -> float:
        return at_s


class KeepsWhatIsAhead(GlobalCheckpoint):
    def take_back(self, now_at_s: float) -> bool:
        return False
