"""Each fence and guard of the protocol, dropped: a world built with one of these breaks a promise.

Nothing of the product is patched: a mutant (`tests/simulation/dropped`) derives from a machine or from a model, or lies
to a real machine about what came in. `MUTANTS` says of each which seeds found it out, so that the tests are quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from tests.simulation.builds.mutants import MUTANTS as BUILD_MUTANTS
from tests.simulation.dropped.builds import PublishesAll, PublishesParts
from tests.simulation.dropped.etcd import (
    CountsFromReceipt,
    FollowsAlone,
    GoesByIdsAndRevisions,
    KeepsItsEpoch,
    LooksNotAgain,
    NoMargin,
)
from tests.simulation.dropped.joblog import (
    BelievesTimeouts,
    ClaimedAtOnce,
    ForgetsWhatIsInDoubt,
    StaysDueAtItsEnd,
    TakesLateStatuses,
    UnfencedLog,
    by_the_clock_alone,
)
from tests.simulation.dropped.owner import (
    AwaitsNoSync,
    BelievesItsClock,
    BelievesOldMembers,
    BelievesTheFuture,
    BlamesForUnreadAnswers,
    CoversWhoeverCounts,
    ForgetsWhoHasGone,
    GoesByRevisionsAlone,
    HearsAnyEpoch,
    HearsAnyTableEpoch,
    HearsAnyTerm,
    HoldsNotAfterARestore,
    KeepsWhatIsAhead,
    PlacesBesideCopies,
    PlacesByAnyRing,
    RepeatsAsOften,
    RevokesNobody,
    SendsAllAtOnce,
    TakesCheckpointsTwice,
    TakesStoppingForStopped,
    WaitsByItsOwnTtl,
    WaitsHardlyAfterARevocation,
    WaitsNotAfterAnExpiry,
)
from tests.simulation.dropped.owner_loop import (
    AnswersWithoutProof,
    ClaimsBlindly,
    ForgetsRevocations,
    LosesWhatItTold,
    NeverRests,
    RevokesUnfenced,
)
from tests.simulation.dropped.several import BelievesRecordedMarks, KeepsMarksToItself, ProbesItsOwnTable
from tests.simulation.dropped.sink import (
    BelievesConsumers,
    BelievesTheDispatch,
    BlindRanges,
    BlindSink,
    ClaimsNothing,
    GuardsAnyEpoch,
    Uncancelled,
    Unguarded,
)
from tests.simulation.dropped.worker import (
    BelievesAnyOwner,
    BelievesNotices,
    ForgetsRemovals,
    KeepsRunningWithoutLease,
    ObeysAnyEpoch,
    ObeysAnyTableEpoch,
    ObeysAnyTerm,
    SaysAbsentWhenStopping,
    StartsWithoutLease,
)
from tests.simulation.mutant_troubles import (
    BUILDS,
    BURST,
    BUSY_ENGINES,
    BUSY_FORMER_OWNERS,
    BUSY_OWNER,
    CLOCKS,
    CREATIONS,
    CROWD,
    DEPOSITIONS,
    FALSE_OWNERS,
    FOREIGN_CODE,
    LISTS,
    LOSSES,
    LOST_PUTS,
    NODES_RESTART,
    OWNERS_CHANGE,
    PAUSES,
    REGISTRATIONS,
    RESTORES,
    REVOCATIONS,
    SEVERAL_TABLES,
    SHARDS_MOVE,
    SLOW_ETCD,
    SPLITS,
    STALLED_LOG,
    SUSPENSIONS,
    TOGETHER,
    TTLS,
    UNANNOUNCED,
    WRONG_CLOCKS,
    WRONG_TIMES,
)
from tests.simulation.parts import REAL, TIMES, Parts
from tests.simulation.search import Bounds
from tests.simulation.simulation import simulate
from tests.simulation.trouble import Fault, Trouble
from tests.simulation.violation import ViolationError


@dataclass(frozen=True, slots=True)
class Mutant:
    """`trouble`: the kind of run in which it shows (None: any). `seeds`: some that found it out."""

    parts: Parts
    trouble: Trouble | None = None
    seeds: tuple[int, ...] = ()


UNASKED = replace(TIMES, margin_s=0.001)
BUDGET = 300
"""Seeds beside the known ones: what is drawn otherwise finds the same elsewhere."""


def _of_builds(name: str, *seeds: int, trouble: Trouble = BUILDS) -> Mutant:
    """One of the machines of builds, as `tests/simulation/builds` plays it, in the whole cluster."""
    parts = BUILD_MUTANTS[name].parts
    return Mutant(replace(REAL, builder=parts.builder, build_worker=parts.worker), trouble, seeds)


MUTANTS: dict[str, Mutant] = {
    "worker: owner_rev": Mutant(replace(REAL, worker=ObeysAnyTerm), OWNERS_CHANGE, seeds=(45, 67)),
    "worker: epoch": Mutant(replace(REAL, worker=ObeysAnyEpoch), NODES_RESTART, seeds=(11, 14)),
    "worker: table_epoch": Mutant(replace(REAL, worker=ObeysAnyTableEpoch), SHARDS_MOVE, seeds=(3,)),
    "worker: table_epochs of removed shards": Mutant(replace(REAL, worker=ForgetsRemovals), SHARDS_MOVE, seeds=(1,)),
    "worker: election check": Mutant(
        replace(REAL, worker=BelievesAnyOwner, loop=ClaimsBlindly),
        replace(OWNERS_CHANGE, length_s=120.0),
        seeds=(64,),
    ),
    "worker: dispatches without a lease": Mutant(replace(REAL, worker=StartsWithoutLease), seeds=(11,)),
    "worker: stop when the lease is lost": Mutant(replace(REAL, worker=KeepsRunningWithoutLease), seeds=(10,)),
    "worker: stopping is not stopped": Mutant(replace(REAL, worker=SaysAbsentWhenStopping), seeds=(7, 9)),
    "owner: owner_rev": Mutant(
        replace(REAL, owner=HearsAnyTerm), replace(OWNERS_CHANGE, length_s=120.0), seeds=(115, 121)
    ),
    "owner: epoch": Mutant(
        replace(REAL, owner=HearsAnyEpoch), replace(NODES_RESTART, late=0.7, double=0.7, long_s=1.0), seeds=(124,)
    ),
    "owner: copies stopped before placing": Mutant(
        replace(REAL, owner=PlacesBesideCopies),
        replace(NODES_RESTART, faults={Fault.LOSE_ETCD: 0.3, Fault.DELETE_ELECTION_KEY: 0.3}, long_s=6.0),
        seeds=(121,),
    ),
    "owner: table_epoch": Mutant(replace(REAL, owner=HearsAnyTableEpoch), SHARDS_MOVE, seeds=(1, 2)),
    "owner: stopped before dispatch": Mutant(replace(REAL, owner=TakesStoppingForStopped), seeds=(7, 9)),
    "owner: Sync before assigning": Mutant(replace(REAL, owner=AwaitsNoSync), seeds=(8, 41)),
    "owner: revoking an unreachable node": Mutant(
        replace(REAL, owner=RevokesNobody), replace(CROWD, apart=True), seeds=(2, 11)
    ),
    "owner: grace after a revocation": Mutant(
        replace(REAL, owner=WaitsHardlyAfterARevocation), REVOCATIONS, seeds=(51, 67)
    ),
    "owner: members taken together": Mutant(
        replace(REAL, owner_times=replace(TIMES, settle_s=0.0)), TOGETHER, seeds=(10, 52)
    ),
    "owner: checkpoints taken once": Mutant(replace(REAL, owner=TakesCheckpointsTwice), SHARDS_MOVE, seeds=(0, 1)),
    "owner: grace after an expiry": Mutant(replace(REAL, owner=WaitsNotAfterAnExpiry), SUSPENSIONS, seeds=(34, 68)),
    "owner: grace after an expiry before its term": Mutant(
        replace(REAL, roll=ForgetsWhoHasGone), SUSPENSIONS, seeds=(28,)
    ),
    "owner: a look at who leads, after the claim": Mutant(replace(REAL, loop=ClaimsBlindly), FALSE_OWNERS, seeds=(55,)),
    "owner: hold after another's revocations": Mutant(
        replace(REAL, membership=ForgetsRevocations),
        DEPOSITIONS,
        seeds=(99,),
    ),
    "owner: revocations fenced by the election": Mutant(
        replace(REAL, revoker=RevokesUnfenced), replace(DEPOSITIONS, watch_lag_s=6.0), seeds=(179,)
    ),
    "owner: nothing due before what came is read": Mutant(
        replace(REAL, owner=BlamesForUnreadAnswers), BUSY_OWNER, seeds=(0, 1)
    ),
    "owner: a window over all nodes": Mutant(replace(REAL, owner=SendsAllAtOnce), BURST, seeds=(0, 1)),
    "owner: repetitions ever more rarely": Mutant(
        replace(REAL, owner_times=RepeatsAsOften(**asdict(TIMES))), STALLED_LOG, seeds=(7, 8)
    ),
    "owner: the ring of the present nodes": Mutant(replace(REAL, owner=PlacesByAnyRing), NODES_RESTART, seeds=(6, 14)),
    "owner: nothing is due between terms": Mutant(replace(REAL, loop=NeverRests), OWNERS_CHANGE, seeds=(0, 1)),
    "owner: what was decided anew": Mutant(replace(REAL, loop=LosesWhatItTold), REGISTRATIONS, seeds=(0, 1)),
    # Either keeps the order: what is delivered late needs the roll's, and no simulated delivery takes that long.
    "owner: members in order": Mutant(
        replace(REAL, roll=BelievesOldMembers, reads=FollowsAlone), LISTS, seeds=(21, 39)
    ),
    "owner: members of a restored etcd": Mutant(replace(REAL, roll=GoesByRevisionsAlone), RESTORES, seeds=(14, 29)),
    "owner: hold after a restore of etcd": Mutant(replace(REAL, roll=HoldsNotAfterARestore), RESTORES, seeds=(97,)),
    "members: epochs that a restored etcd has lost": Mutant(
        replace(REAL, reads=GoesByIdsAndRevisions), RESTORES, seeds=(97, 242)
    ),
    "watches: they end by themselves": Mutant(replace(REAL, watch_max_s=1e9), LOSSES, seeds=(17, 36)),
    "owner: each node's own TTL": Mutant(replace(REAL, owner=WaitsByItsOwnTtl), TTLS, seeds=(70, 159)),
    "checkpoint: jobs that catch up": Mutant(replace(REAL, checkpoint=CoversWhoeverCounts), PAUSES, seeds=(0, 1)),
    "checkpoint: times of the future": Mutant(replace(REAL, checkpoint=BelievesTheFuture), WRONG_TIMES, seeds=(28, 39)),
    "checkpoint: the owner's own clock": Mutant(replace(REAL, time=BelievesItsClock), WRONG_CLOCKS, seeds=(12, 13)),
    "checkpoint: taken back": Mutant(replace(REAL, checkpoint=KeepsWhatIsAhead), WRONG_CLOCKS, seeds=(61,)),
    "owner: proof of the term before it answers": Mutant(
        replace(REAL, loop=AnswersWithoutProof), BUSY_FORMER_OWNERS, seeds=(0, 1)
    ),
    "run: the epoch before commits": Mutant(replace(REAL, run=GuardsAnyEpoch), BUSY_ENGINES, seeds=(0, 1)),
    "lease: counted from sending": Mutant(replace(REAL, lease=CountsFromReceipt), SLOW_ETCD, seeds=(5, 8)),
    "lease: margin and grace": Mutant(replace(REAL, lease=NoMargin, owner_times=UNASKED), CLOCKS, seeds=(0, 1)),
    "election: last look at one's own key": Mutant(replace(REAL, candidacy=LooksNotAgain), seeds=(0, 6)),
    "registration: a new epoch each time": Mutant(
        replace(REAL, registration=KeepsItsEpoch), NODES_RESTART, seeds=(2, 3)
    ),
    "log: fence": Mutant(replace(REAL, log=UnfencedLog), seeds=(23, 24)),
    "log: claims by put-if-absent": Mutant(replace(REAL, log=ClaimedAtOnce), OWNERS_CHANGE, seeds=(61, 72)),
    "log: job_id of statuses": Mutant(replace(REAL, writer=TakesLateStatuses), REGISTRATIONS, seeds=(2, 8)),
    "log: what is in doubt is written again": Mutant(
        replace(REAL, writer=ForgetsWhatIsInDoubt), replace(REGISTRATIONS, doubt=0.3), seeds=(0, 1)
    ),
    "log: puts that time out": Mutant(replace(REAL, log=BelievesTimeouts), LOST_PUTS, seeds=(0, 1)),
    "log: rest while it closes": Mutant(replace(REAL, writer=StaysDueAtItsEnd), seeds=(55,)),
    "job ids: order over clock steps": Mutant(replace(REAL, job_id=by_the_clock_alone), seeds=(7, 42)),
    "sink: compare-and-set": Mutant(replace(REAL, sink=BlindSink), seeds=(16,)),
    "sink: records of ranges": Mutant(replace(REAL, ranged_sink=BlindRanges), SPLITS, seeds=(0,)),
    "sink: claim commits": Mutant(replace(REAL, run=ClaimsNothing), REGISTRATIONS, seeds=(0, 1)),
    "run: lease before commits": Mutant(replace(REAL, run=Unguarded), seeds=(17, 48)),
    "run: cancel before commits": Mutant(replace(REAL, run=Uncancelled), seeds=(36, 38)),
    "run: what consumers answer": Mutant(replace(REAL, run=BelievesConsumers), FOREIGN_CODE, seeds=(0,)),
    "probes: of what nobody announces": Mutant(replace(REAL, engine=BelievesNotices), UNANNOUNCED, seeds=(0, 1)),
    "several: probes of further tables": Mutant(replace(REAL, engine=ProbesItsOwnTable), SEVERAL_TABLES, seeds=(0, 1)),
    "several: the sink's versions": Mutant(replace(REAL, run=BelievesRecordedMarks), SEVERAL_TABLES, seeds=(0, 1)),
    "several: versions in the log": Mutant(replace(REAL, run=KeepsMarksToItself), SEVERAL_TABLES, seeds=(1, 2)),
    "run: the sink's position": Mutant(replace(REAL, run=BelievesTheDispatch), seeds=(13, 17)),
    "builds: the aborted flag": _of_builds("worker: the aborted flag", 18, 25),
    "builds: owner_rev": _of_builds("worker: owner_rev", 24),
    "builds: one batch a range": _of_builds("worker: one batch a range", 0, 1),
    "builds: late results of aborted tasks": _of_builds("owner: late results of aborted tasks", 31, 40),
    "builds: counts with the removal": _of_builds("owner: counts with the removal", 0, 1),
    "builds: ids by term": _of_builds("owner: ids by term", 0, 1),
    "builds: begins again after a failed write": _of_builds("owner: begins again after a failed write", 9),
    "builds: both halves of a split": _of_builds("owner: both halves of a split", 0, 1),
    "builds: one task of a merge": _of_builds("owner: one task of a merge", 0, 1),
    "builds: new ids for successors": _of_builds("owner: new ids for successors", 0, 1),
    "builds: copies of what was aborted": _of_builds("owner: copies of what was aborted", 16),
    "builds: the plan after all tasks": _of_builds("owner: the plan after all tasks", 0, 1),
    "builds: leftovers of a creation dropped": _of_builds(
        "owner: leftovers of a creation dropped", 2, 14, trouble=CREATIONS
    ),
    "builds: new tasks for another version": _of_builds("owner: new tasks for another version", 12, 15),
    "builds: what tiles the whole is published": Mutant(replace(REAL, built_run=PublishesAll), BUILDS, seeds=(2, 4)),
    "builds: nothing is published before": Mutant(replace(REAL, built_run=PublishesParts), BUILDS, seeds=(0, 1)),
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
