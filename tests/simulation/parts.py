"""What a world is built of. A mutant is a world in which one part is another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from iscp.cluster.builds.builder import Builder, BuildWorker
from iscp.cluster.membership.membership import Roll
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_loop import OwnerLoop, Revoker
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import WorkerMachine
from iscp.etcd.member_keys import MemberReads
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.values.ids import next_job_id
from iscp.schedule.lag import GlobalCheckpoint, SteadyTime
from tests.simulation.builds.built_run import BuiltRun
from tests.simulation.election import Candidacy
from tests.simulation.engine import Engine, Run
from tests.simulation.joblog import Log
from tests.simulation.lease import Lease
from tests.simulation.owner_ports import OwnerMembership
from tests.simulation.ranged import RangedSink
from tests.simulation.registration import Registration
from tests.simulation.sources import Sink

TIMES = CoordinationTimes(
    lease_ttl_s=5.0,
    margin_s=1.0,
    sync_deadline_s=4.0,
    operation_deadline_s=12.0,
    settle_s=0.3,
    rebalance_after_s=3.0,
    resend_s=1.0,
    checkpoint_s=0.05,
    alive_s=inf,
)


WATCH_MAX_S = 6.0
"""In place of the real one, which is longer than the runs."""

RING_S = 0.2
"""How long a ring may take to be built."""


@dataclass(frozen=True, slots=True)
class Parts:
    """`owner_times`: those of the owner's machine, where they differ from the leases'."""

    times: CoordinationTimes = field(default=TIMES)
    owner_times: CoordinationTimes | None = None
    owner: type[OwnerMachine] = OwnerMachine
    worker: type[WorkerMachine] = WorkerMachine
    loop: type[OwnerLoop] = OwnerLoop
    writer: type[LogWriter] = LogWriter
    revoker: type[Revoker] = Revoker
    membership: type[OwnerMembership] = OwnerMembership
    log: type[Log] = Log
    lease: type[Lease] = Lease
    registration: type[Registration] = Registration
    candidacy: type[Candidacy] = Candidacy
    engine: type[Engine] = Engine
    run: type[Run] = Run
    sink: type[Sink] = Sink
    ranged_sink: type[RangedSink] = RangedSink
    roll: type[Roll] = Roll
    reads: type[MemberReads] = MemberReads
    checkpoint: type[GlobalCheckpoint] = GlobalCheckpoint
    time: type[SteadyTime] = SteadyTime
    builder: type[Builder] = Builder
    build_worker: type[BuildWorker] = BuildWorker
    built_run: type[BuiltRun] = BuiltRun
    job_id: Callable[[float, str], str] = next_job_id
    watch_max_s: float = WATCH_MAX_S
    pool_lag_s: Mapping[str, float] = field(default_factory=lambda: {"iscp-ring": RING_S})


REAL = Parts()
