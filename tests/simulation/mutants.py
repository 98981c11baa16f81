"""Each fence and guard of the protocol, dropped: a world built with one of these breaks a promise.

Nothing of the product is patched: a mutant derives from a machine or from a model, or lies to a real machine about what
came in. `MUTANTS` says of each which seeds found it out, so that the tests are quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from iscp.coordination.global_checkpoint import GlobalCheckpoint, counts
from iscp.coordination.membership.node_session import PeerPhase
from iscp.coordination.membership.registered_nodes import Roll
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.effects import OwnerEffect, RevokeLease
from iscp.coordination.protocol.events import Elected, FromNode, MembersChanged, OwnerEvent, RingBuilt
from iscp.coordination.protocol.messages import (
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
    OwnerMessage,
    SourceSeen,
)
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.coordination.worker_machine import NEVER, WorkerMachine
from iscp.core.errors import ErrorCode, IscpError
from iscp.core.ids import ShardId, TableEpoch
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobReport, JobRow
from iscp.core.members import Leader, Moment, NodeRecord
from iscp.core.watermark import Position, Watermark
from iscp.runtime.owner.job_log_writer import LogWriter
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.owner.revoker import Revoker
from tests.simulation.election import Candidacy
from tests.simulation.engine import Run
from tests.simulation.etcd import Etcd
from tests.simulation.joblog import Log
from tests.simulation.lease import Lease
from tests.simulation.owner_ports import OwnerMembership
from tests.simulation.parts import REAL, TIMES, Parts
from tests.simulation.registration import EPOCHS, Registration
from tests.simulation.search import Bounds
from tests.simulation.simulation import simulate
from tests.simulation.sources import Commit, Kind, Sink
from tests.simulation.trouble import Fault, Trouble, Wish
from tests.simulation.violation import ViolationError

# --- the worker's fences -----------------------------------------------------------------------------------------


class ObeysAnyTerm(WorkerMachine):
    """Dispatches of other terms count."""

    def _from_owner(self, message: OwnerMessage) -> None:
        if not isinstance(message, Announce):
            message = replace(message, owner_rev=self.owner_rev)
        super()._from_owner(message)


class ObeysAnyEpoch(WorkerMachine):
    """What was meant for a former life of the node counts."""

    def _from_owner(self, message: OwnerMessage) -> None:
        if not isinstance(message, Announce):
            message = replace(message, epoch=self.epoch)
        super()._from_owner(message)


class ObeysAnyTableEpoch(WorkerMachine):
    """The last dispatch to arrive wins, not the newest."""

    def _accept_dispatch(self, message: DispatchTable) -> None:
        held = self.shards.get(message.shard)
        if held is not None and message.table_epoch < held.table_epoch:
            held.table_epoch = NEVER
        super()._accept_dispatch(message)


class ForgetsRemovals(WorkerMachine):
    """A doubled dispatch starts a shard again that was removed."""

    def _fence(self, shard: ShardId, table_epoch: TableEpoch) -> None:
        pass


class BelievesAnyOwner(WorkerMachine):
    """No look at the election key on an owner's first message."""

    def _accept_election(self, leader: Leader | None) -> None:
        claim = self._checking
        super()._accept_election(Leader(claim.owner_id, claim.election_revision) if claim else leader)


class StartsWithoutLease(WorkerMachine):
    """Dispatches are obeyed while the lease is lost."""

    def _from_owner(self, message: OwnerMessage) -> None:
        held, self.lease_held = self.lease_held, True
        super()._from_owner(message)
        self.lease_held = held


class KeepsRunningWithoutLease(WorkerMachine):
    """A lost lease stops nothing, and what runs goes on under the next epoch."""

    def _lose_lease(self) -> None:
        self.lease_held = False


class SaysAbsentWhenStopping(WorkerMachine):
    """Stopping is taken for stopped, by the node."""

    def _respond(self, shard: ShardId, table_epoch: TableEpoch, state: NodeShardState) -> None:
        if state is NodeShardState.REMOVING:
            state = NodeShardState.ABSENT
        super()._respond(shard, table_epoch, state)


# --- the owner's -------------------------------------------------------------------------------------------------


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
    """A ring counts that was asked for before the nodes changed."""

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        if isinstance(event, RingBuilt) and self.term is not None:
            self.term.placement = replace(self.term.placement, ring=event.ring)
        return super().step(event, now_s, read_s)


class RepeatsAsOften(CoordinationTimes):
    """What is not confirmed is sent again as often as at first."""

    @property
    def resend_max_s(self) -> float:
        return self.resend_s


class ClaimsBlindly(OwnerLoop):
    """Takes up its term without another look at who leads: then the nodes' look is all there is."""

    def _still_leads(self, leader: Leader) -> bool:
        return True


class ForgetsRevocations(OwnerMembership):
    """A new owner does not wait for nodes that the one before it revoked."""

    def _still_written_s(self, traces: dict[int, float]) -> float:
        return 0.0


class RevokesUnfenced(Revoker):
    """A deposed owner, which hears from nobody, revokes everybody."""

    def _revoke(self, record: NodeRecord, election_revision: int) -> None:
        with suppress(IscpError):
            self._membership.revoke(record, lambda key, value, lease_id: None)
        self._revoking.discard((record.node_id, record.epoch))


class NeverRests(OwnerLoop):
    """What was due in a term stays due after it."""

    def _next_due_s(self) -> float | None:
        saved_s, due_s = self.checkpoint.due_s, super()._next_due_s()
        return min((each for each in (saved_s, due_s) if each is not None), default=None)


class LosesWhatItTold(OwnerLoop):
    """What moved while a commit of another term was under way is looked up nowhere."""

    def _moved(self, writer: LogWriter, moved: dict[ShardId, bool]) -> None:
        super()._moved(writer, dict.fromkeys(moved, False))


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
            self.term.times = self.times if revoked else replace(self.times, margin_s=0.001)
        return super().step(event, now_s, read_s)


class WaitsHardlyAfterARevocation(WaitsByItsOwnTtl):
    """What a revoked node ran is placed when its key is gone, though it may not know yet."""

    BELIEVED_S = 0.5


class CoversWhoeverCounts(GlobalCheckpoint):
    """A job that was resumed far behind is covered at once, as it counts again."""

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None) -> None:
        self._covered[shard] = tuple(row.job_id for row in jobs if counts(row))
        super().take(shard, jobs, seen)


# --- etcd --------------------------------------------------------------------------------------------------------


class CountsFromReceipt(Lease):
    """A renewal holds from when its answer came."""

    def until_s(self, sent_s: float, received_s: float) -> float:
        return received_s + self.ttl_s - self.margin_s


class NoMargin(Lease):
    def until_s(self, sent_s: float, received_s: float) -> float:
        return sent_s + self.ttl_s


class LooksNotAgain(Candidacy):
    """Elected as soon as nobody is before it, as by etcd's own Campaign."""

    def still_there(self, revisions: list[int]) -> bool:
        return True


class KeepsItsEpoch(Registration):
    """A node that registers anew does so as the life before."""

    def next_epoch(self, etcd: Etcd) -> int:
        etcd.put(f"{EPOCHS}{self._process.node_id}", 1)
        return 1


# --- the log -----------------------------------------------------------------------------------------------------


class UnfencedLog(Log):
    def admits(self, term: int) -> bool:
        return True


class ClaimedAtOnce(Log):
    """Two claims that read the same last term both succeed."""

    def claims(self, seen: int) -> bool:
        return True


class TakesLateStatuses(LogWriter):
    """A status counts for whatever registration has its name now."""

    def report(
        self,
        reports: Iterable[JobReport],
        history: Sequence[HistoryEntry] = (),
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        super().report([self._renamed(report) for report in reports], history, on_written)

    def _renamed(self, report: JobReport) -> JobReport:
        row = self.read(lambda book: book.get(report.key))
        return replace(report, job_id=row.job_id) if row is not None else report


class ForgetsWhatIsInDoubt(LogWriter):
    """What may have been written is drafted anew, as if it surely was not."""

    def _back_off(self, now_s: float, error: IscpError) -> None:
        self._held = None
        super()._back_off(now_s, error)


class StaysDueAtItsEnd(LogWriter):
    """The flush that is due while the writer closes stays due."""

    def _look_after_book(self, now_s: float) -> None:
        due_s = self._flush.due_s
        super()._look_after_book(now_s)
        if self._closing:
            self._flush.due_s = due_s


def by_the_clock_alone(now_s: float, _last: str) -> str:
    """Job ids that go back with the clock."""
    return f"{max(0, int(now_s * 1000)):012x}"


# --- the sink ----------------------------------------------------------------------------------------------------


class BlindSink(Sink):
    """Takes whatever comes, as the next."""

    def land(self, commit: Commit) -> bool:
        return super().land(replace(commit, seq=self.seq + 1))


class Unguarded(Run):
    """Commits without a look at the lease."""

    def guard(self) -> ErrorCode:
        code = super().guard()
        return ErrorCode.OK if code is ErrorCode.LEASE_LOST else code


class GuardsAnyEpoch(Run):
    """What was begun under a former epoch passes once the node has registered again."""

    def guard(self) -> ErrorCode:
        code = super().guard()
        confirmed = self._process.registration.confirmed
        return ErrorCode.OK if code is ErrorCode.LEASE_LOST and confirmed else code


class Uncancelled(Run):
    """What was to end commits all the same."""

    def guard(self) -> ErrorCode:
        return ErrorCode.OK if self._process.registration.confirms(self.iteration.epoch) else ErrorCode.LEASE_LOST


class ClaimsNothing(Run):
    """A new registration begins without using up a seq."""

    def claim(self, row: JobRow, commit: Commit) -> None:
        sink = self._world.sink(row.key)
        sink.begun = max(sink.begun, row.job_id)
        newest = self._world.sources[row.key.table_id]
        self._work(lambda: self.commit(row, replace(commit, to=newest, kind=Kind.SNAPSHOT)))


class BelievesTheDispatch(Run):
    """Goes on from the watermark that it was dispatched with."""

    def stand(self, row: JobRow) -> Position:
        position = super().stand(row)
        if position.job_id == row.job_id and row.watermark.version >= 0:
            return replace(position, watermark=Watermark(row.watermark.version, 0.0))
        return position


# --- where they show ---------------------------------------------------------------------------------------------

CROWD = Trouble(nodes=3, shards=4, length_s=40.0, version_rate=0.2)

OWNERS_CHANGE = replace(
    CROWD,
    faults={Fault.DELETE_ELECTION_KEY: 0.2, Fault.KILL: 0.05, Fault.DEAF_TO_ETCD: 0.05, Fault.PAUSE: 0.05},
    wishes={Wish.MOVE: 0.5, Wish.REBALANCE: 0.2, Wish.UNREGISTER: 0.2, Wish.REGISTER: 0.4},
    watch_lag_s=6.0,
    late=0.4,
    double=0.4,
    long_s=8.0,
)
"""Several that believe to be the owner, and messages of each on their way."""

SHARDS_MOVE = replace(
    CROWD,
    nodes=2,
    wishes={Wish.MOVE: 2.0, Wish.REBALANCE: 0.5, Wish.UPDATE: 0.5, Wish.UNREGISTER: 0.5, Wish.REGISTER: 1.0},
    late=0.3,
    double=0.5,
)
"""Shards that come back to where they were while old messages are still on their way."""

NODES_RESTART = replace(
    CROWD,
    faults={Fault.KILL: 0.3, Fault.LOSE_ETCD: 0.1, Fault.LEAVE: 0.1},
    wishes={Wish.MOVE: 0.3, Wish.REBALANCE: 0.3},
    late=0.4,
    double=0.5,
    long_s=2.0,
)
"""Lives that follow one another within the time that a message may take."""

REVOCATIONS = replace(
    CROWD,
    faults={
        Fault.CUT: 0.3,
        Fault.LOSE_ETCD: 0.2,
        Fault.DELETE_ELECTION_KEY: 0.15,
        Fault.LEAVE: 0.05,
        Fault.PAUSE: 0.05,
    },
    wishes={Wish.MOVE: 0.3, Wish.REBALANCE: 0.2},
    long_s=12.0,
)
"""Nodes that hear neither the owner nor etcd, and owners that follow each other at once."""

DEPOSITIONS = replace(
    REVOCATIONS,
    length_s=90.0,
    faults={Fault.CUT: 0.4, Fault.DELETE_ELECTION_KEY: 0.3, Fault.LOSE_ETCD: 0.2},
    long_s=15.0,
)
"""Owners that go on for long beside nodes that do not hear them, and do so still when another leads."""

REGISTRATIONS = replace(
    CROWD,
    shards=2,
    version_rate=0.6,
    faults={Fault.PAUSE: 0.05, Fault.KILL: 0.05, Fault.STALL_LOG: 0.05},
    wishes={Wish.UNREGISTER: 0.7, Wish.REGISTER: 1.5, Wish.MOVE: 0.3},
    zombie=0.5,
    late=0.2,
)
"""Jobs made anew while commits of the former registration are under way."""

CLOCKS = replace(CROWD, faults={Fault.LOSE_ETCD: 0.3, Fault.PAUSE: 0.1}, drift=0.15, long_s=12.0)
"""Clocks as fast and as slow as the margin allows."""

SUSPENSIONS = replace(CROWD, faults={Fault.LOSE_ETCD: 0.3, Fault.SUSPEND: 0.5}, long_s=15.0)
"""Clocks that stand still, for as long as the margins allow, at nodes that are cut off."""

FALSE_OWNERS = Trouble(
    nodes=3,
    shards=1,
    length_s=8.0,
    version_rate=0.001,
    loaded=True,
    faults={Fault.DELETE_ELECTION_KEY: 0.2},
    wishes={Wish.REGISTER: 0.6, Wish.UNREGISTER: 0.6},
    watch_lag_s=6.0,
)
"""Owners that claim again, not knowing that another leads, who has nothing to write and so does not notice."""

LISTS = replace(
    OWNERS_CHANGE, late=0.0, double=0.0, faults={Fault.KILL: 0.2, Fault.DELETE_ELECTION_KEY: 0.3}, long_s=2.0
)
"""News of the members that comes late, and owners that begin with newer ones."""

SLOW_ETCD = replace(CROWD, faults={Fault.PAUSE: 0.4, Fault.LOSE_ETCD: 0.1}, slow_etcd=0.4, long_s=15.0)
"""Answers that a stopped process reads long after they came."""


BUSY_OWNER = Trouble(nodes=5, shards=40, version_rate=0.05, wishes={Wish.UPDATE: 1.0, Wish.MOVE: 0.5}, step_s=0.2)
"""Nothing is wrong but that the owner needs more time for what comes in than there is."""

STALLED_LOG = replace(SHARDS_MOVE, faults={Fault.STALL_LOG: 0.2}, hang=0.3, long_s=20.0, late=0.0, double=0.0)
"""Shards that take long to stop, as what they have reported cannot be recorded."""

BURST = Trouble(nodes=4, shards=1_000, length_s=20.0, version_rate=0.0001, step_s=0.02, loaded=True)
"""Many tables at once, and an owner that takes in few answers in the time in which all could come."""


TOGETHER = Trouble(nodes=4, shards=6, version_rate=0.05, loaded=True, together=True)
"""All nodes start at one moment."""

RESTORES = replace(
    CROWD, faults={Fault.RESTORE_ETCD: 0.06, Fault.LOSE_ETCD: 0.1, Fault.KILL: 0.05, Fault.CUT: 0.1}, long_s=6.0
)
"""An etcd that forgets what has happened since its backup, beside nodes that do not hear of it at once."""

TTLS = replace(REVOCATIONS, ttl_spread=2.0, grants_more=0.5)
"""Nodes that may write for longer than others after nobody has heard of them."""

PAUSES = replace(
    CROWD, version_rate=0.3, wishes={Wish.PAUSE: 0.3, Wish.RESUME: 0.3, Wish.RESYNC: 0.1}, ruin=0.1, hang=0.1
)
"""Jobs that stand still for long while the others go on."""

BUSY_ENGINES = replace(CROWD, version_rate=0.6, faults={Fault.LOSE_ETCD: 0.3}, busy=0.5, hang=0.1, long_s=8.0)
"""Nodes that register again before all of them has noticed that they had to stop."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`trouble`: the kind of run in which it shows (None: any). `seeds`: some that found it out."""

    parts: Parts
    trouble: Trouble | None = None
    seeds: tuple[int, ...] = ()


UNASKED = replace(TIMES, margin_s=0.001)

BUDGET = 300
"""Seeds beside the known ones: what is drawn otherwise finds the same elsewhere."""

MUTANTS: dict[str, Mutant] = {
    "worker: owner_rev": Mutant(replace(REAL, worker=ObeysAnyTerm), OWNERS_CHANGE, seeds=(26, 40)),
    "worker: epoch": Mutant(replace(REAL, worker=ObeysAnyEpoch), NODES_RESTART, seeds=(2, 6)),
    "worker: table_epoch": Mutant(replace(REAL, worker=ObeysAnyTableEpoch), SHARDS_MOVE, seeds=(3,)),
    "worker: table_epochs of removed shards": Mutant(replace(REAL, worker=ForgetsRemovals), SHARDS_MOVE, seeds=(1,)),
    "worker: election check": Mutant(
        replace(REAL, worker=BelievesAnyOwner, loop=ClaimsBlindly),
        replace(OWNERS_CHANGE, length_s=120.0),
        seeds=(5, 34),
    ),
    "worker: dispatches without a lease": Mutant(replace(REAL, worker=StartsWithoutLease), seeds=(11, 24)),
    "worker: stop when the lease is lost": Mutant(replace(REAL, worker=KeepsRunningWithoutLease), seeds=(10,)),
    "worker: stopping is not stopped": Mutant(replace(REAL, worker=SaysAbsentWhenStopping), seeds=(3,)),
    "owner: owner_rev": Mutant(
        replace(REAL, owner=HearsAnyTerm), replace(OWNERS_CHANGE, length_s=120.0), seeds=(86, 89)
    ),
    "owner: epoch": Mutant(
        replace(REAL, owner=HearsAnyEpoch), replace(NODES_RESTART, late=0.7, double=0.7, long_s=1.0), seeds=(85, 111)
    ),
    "owner: copies stopped before placing": Mutant(
        replace(REAL, owner=PlacesBesideCopies),
        replace(NODES_RESTART, faults={Fault.LOSE_ETCD: 0.3, Fault.DELETE_ELECTION_KEY: 0.3}, long_s=6.0),
        seeds=(113,),
    ),
    "owner: table_epoch": Mutant(replace(REAL, owner=HearsAnyTableEpoch), SHARDS_MOVE, seeds=(1, 2)),
    "owner: stopped before dispatch": Mutant(replace(REAL, owner=TakesStoppingForStopped), seeds=(3,)),
    "owner: Sync before assigning": Mutant(replace(REAL, owner=AwaitsNoSync), seeds=(10, 24)),
    "owner: revoking an unreachable node": Mutant(
        replace(REAL, owner=RevokesNobody), replace(CROWD, apart=True), seeds=(2, 11)
    ),
    "owner: grace after a revocation": Mutant(
        replace(REAL, owner=WaitsHardlyAfterARevocation), REVOCATIONS, seeds=(0, 146)
    ),
    "owner: members taken together": Mutant(
        replace(REAL, owner_times=replace(TIMES, settle_s=0.0)), TOGETHER, seeds=(27, 145)
    ),
    "owner: checkpoints taken once": Mutant(replace(REAL, owner=TakesCheckpointsTwice), SHARDS_MOVE, seeds=(0, 1)),
    "owner: grace after an expiry": Mutant(replace(REAL, owner=WaitsNotAfterAnExpiry), SUSPENSIONS, seeds=(58,)),
    "owner: grace after an expiry before its term": Mutant(
        replace(REAL, roll=ForgetsWhoHasGone), SUSPENSIONS, seeds=(26, 71)
    ),
    "owner: a look at who leads, after the claim": Mutant(replace(REAL, loop=ClaimsBlindly), FALSE_OWNERS, seeds=(93,)),
    "owner: hold after another's revocations": Mutant(
        replace(REAL, membership=ForgetsRevocations),
        DEPOSITIONS,
        seeds=(36, 133),
    ),
    "owner: revocations fenced by the election": Mutant(
        replace(REAL, revoker=RevokesUnfenced), replace(DEPOSITIONS, watch_lag_s=6.0), seeds=(63, 136)
    ),
    "owner: nothing due before what came is read": Mutant(
        replace(REAL, owner=BlamesForUnreadAnswers), BUSY_OWNER, seeds=(0, 1)
    ),
    "owner: a window over all nodes": Mutant(replace(REAL, owner=SendsAllAtOnce), BURST, seeds=(0, 1)),
    "owner: repetitions ever more rarely": Mutant(
        replace(REAL, owner_times=RepeatsAsOften(**asdict(TIMES))), STALLED_LOG, seeds=(12,)
    ),
    "owner: the ring of the present nodes": Mutant(replace(REAL, owner=PlacesByAnyRing), NODES_RESTART, seeds=(1, 18)),
    "owner: nothing is due between terms": Mutant(replace(REAL, loop=NeverRests), OWNERS_CHANGE, seeds=(0, 1)),
    "owner: what was decided anew": Mutant(replace(REAL, loop=LosesWhatItTold), REGISTRATIONS, seeds=(0, 4)),
    "owner: members in order": Mutant(replace(REAL, roll=BelievesOldMembers), LISTS, seeds=(7, 53)),
    "owner: members of a restored etcd": Mutant(replace(REAL, roll=GoesByRevisionsAlone), RESTORES, seeds=(11,)),
    "owner: hold after a restore of etcd": Mutant(
        replace(REAL, roll=HoldsNotAfterARestore), RESTORES, seeds=(442, 468)
    ),
    "owner: each node's own TTL": Mutant(replace(REAL, owner=WaitsByItsOwnTtl), TTLS, seeds=(4, 15)),
    "checkpoint: jobs that catch up": Mutant(replace(REAL, checkpoint=CoversWhoeverCounts), PAUSES, seeds=(0, 1)),
    "run: the epoch before commits": Mutant(replace(REAL, run=GuardsAnyEpoch), BUSY_ENGINES, seeds=(0, 1)),
    "lease: counted from sending": Mutant(replace(REAL, lease=CountsFromReceipt), SLOW_ETCD, seeds=(156, 203)),
    "lease: margin and grace": Mutant(replace(REAL, lease=NoMargin, owner_times=UNASKED), CLOCKS, seeds=(1, 8)),
    "election: last look at one's own key": Mutant(replace(REAL, candidacy=LooksNotAgain), seeds=(78, 86)),
    "registration: a new epoch each time": Mutant(
        replace(REAL, registration=KeepsItsEpoch), NODES_RESTART, seeds=(4, 9)
    ),
    "log: fence": Mutant(replace(REAL, log=UnfencedLog), seeds=(8, 10)),
    "log: claims by put-if-absent": Mutant(replace(REAL, log=ClaimedAtOnce), OWNERS_CHANGE, seeds=(67,)),
    "log: job_id of statuses": Mutant(replace(REAL, writer=TakesLateStatuses), REGISTRATIONS, seeds=(1, 3)),
    "log: what is in doubt is written again": Mutant(
        replace(REAL, writer=ForgetsWhatIsInDoubt), replace(REGISTRATIONS, doubt=0.3), seeds=(0, 1)
    ),
    "log: rest while it closes": Mutant(replace(REAL, writer=StaysDueAtItsEnd), seeds=(214, 263)),
    "job ids: order over clock steps": Mutant(replace(REAL, job_id=by_the_clock_alone), seeds=(3, 73)),
    "sink: compare-and-set": Mutant(replace(REAL, sink=BlindSink), seeds=(6, 28)),
    "sink: claim commits": Mutant(replace(REAL, run=ClaimsNothing), REGISTRATIONS, seeds=(0, 3)),
    "run: lease before commits": Mutant(replace(REAL, run=Unguarded), seeds=(19, 20)),
    "run: cancel before commits": Mutant(replace(REAL, run=Uncancelled), seeds=(3, 24)),
    "run: the sink's position": Mutant(replace(REAL, run=BelievesTheDispatch), seeds=(14, 29)),
}

SEARCHED: dict[str, Bounds] = {
    "worker: stop when the lease is lost": Bounds(crashes=0, elections=0, lapses=1),
    "worker: stopping is not stopped": Bounds(crashes=0, moves=1),
    "owner: stopped before dispatch": Bounds(crashes=0, moves=1),
    "owner: Sync before assigning": Bounds(crashes=0, moves=1),
}
"""Those that the search finds too, and in which world."""


def convicts(seed: int, mutant: Mutant) -> bool:
    """Whether this seed misses what the mutant lacks."""
    try:
        simulate(seed, mutant.parts, trouble=mutant.trouble)
    except ViolationError:
        return True
    return False


def convicting(mutant: Mutant) -> Iterator[int]:
    """Seeds that do, within the budget."""
    return (seed for seed in range(BUDGET) if convicts(seed, mutant))
