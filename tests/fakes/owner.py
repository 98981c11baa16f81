"""An owner's loop over a log, etcd and a node in memory; its threads are real, its clock is in the test's hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from iscp.cluster.membership.assignments import ShardState
from iscp.cluster.owner.owner_events import JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.protocol.messages import (
    Acknowledge,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    FurtherSeen,
    NodeShardState,
    OwnerMessage,
    ShardCheckpoint,
    SourceSeen,
    Sync,
    VersionAge,
)
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.ids import JobKey, NodeRecord, ShardId
from iscp.model.values.watermark import Watermark
from iscp.ports.cluster import ClusterPorts
from tests.fakes.clock import FakeClock
from tests.fakes.etcd import FakeCheckpoints, FakeElection, FakeEtcd, FakeLogMarks, FakeMembership, FakeOverrides
from tests.fakes.joblog import FakeJobLog, LogStorage
from tests.fakes.waiting import until

TIMES = CoordinationTimes(alive_s=inf)
"""The node here says nothing by itself."""


class FlakyLog(FakeJobLog):
    """`claim_faults` are raised by the next claims."""

    def __init__(self, storage: LogStorage, claim_faults: list[Exception]) -> None:
        super().__init__(storage)
        self._claim_faults = claim_faults

    def claim_term(self) -> int:
        if self._claim_faults:
            raise self._claim_faults.pop(0)
        return super().claim_term()


class OwnerWorld:
    """One registered node, whose side of the protocol is played here: it obeys everything and reports as the test sets.

    `told` is what it was sent, in order. `logs` are the logs of the terms so far.
    """

    def __init__(
        self,
        storage: LogStorage | None = None,
        on_progress: Callable[[], None] = lambda: None,
        times: CoordinationTimes = TIMES,
    ) -> None:
        self.clock = FakeClock()
        self.storage = storage or LogStorage()
        self.etcd = FakeEtcd(self.clock)
        self.membership = FakeMembership(self.etcd)
        self.election = FakeElection(self.etcd)
        self.logs: list[FlakyLog] = []
        self.claim_faults: list[Exception] = []
        self.told: list[OwnerMessage] = []
        self.moves = 0
        self._on_moved = on_progress
        self.broken: list[Exception] = []
        self.on_tables: Callable[[Iterable[str]], None] = lambda table_ids: None
        self.synced: list[NodeRecord] = []
        self.woken: list[ShardId] = []
        self.owner = OwnerLoop(
            OwnerMachine("n-1", "v", times),
            JobLogAccess(self._open_log, JobLogConfig(uri="", status_batch_s=0.0)),
            ClusterPorts(
                self.membership,
                self.election,
                FakeOverrides(self.etcd),
                FakeCheckpoints(self.etcd),
                FakeLogMarks(self.etcd),
            ),
            self.clock,
            OwnerHooks(
                *(self._hear, lambda members: None, self._moved, self.broken.append),
                on_tables=lambda ids: self.on_tables(ids),
                on_synced=self.synced.append,
                on_woken=self.woken.append,
            ),
        )
        self._term, self._sent, self._epoch = 0, 0, 1

    # --- what happens --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.membership.register(NodeRecord("n-1", 1, "here:1", pid=7, version="v"))
        self.owner.start()
        self.membership.watch(self.owner.on_members_changed)
        self.election.campaign("n-1", self.owner.on_elected, self.owner.on_lost)

    def lead(self) -> None:
        """Start, and wait for the term and for the node to be known."""
        self.start()
        until(lambda: self.owner.writer)
        until(lambda: self.heard(Acknowledge))
        self.pass_s(max(TIMES.settle_s, TIMES.margin_s))

    def pass_s(self, seconds: float) -> None:
        """What the loop is at is planned by the time before; then what is due after it is taken."""
        self.settle()
        self.clock.advance(seconds)
        self.settle()

    def settle(self) -> None:
        """The loop has taken all that there was, and what was due."""
        for _ in range(2):
            self.owner.query(lambda loop: None)

    def checkpoint(self, *shards: ShardCheckpoint) -> int:
        self._sent += 1
        self.owner.receive("n-1", [Checkpoint(self._term, self._epoch, self._sent, shards)])
        return self._sent

    def see(
        self,
        version: int,
        lag_s: float = 0.0,
        table_id: str = "t-1",
        further: Sequence[FurtherSeen] = (),
        repair: int = 0,
        *,
        unreached: bool = False,
        checked_at_s: float | None = None,
        ages: Sequence[VersionAge] = (),
    ) -> None:
        """`checked_at_s`: now where it is None."""
        shard = ShardId(table_id)
        at_s = self.clock.now_s() if checked_at_s is None else checked_at_s
        seen = SourceSeen(shard, version, at_s, lag_s, tuple(further), repair, unreached, tuple(ages), at_s)
        self.checkpoint(ShardCheckpoint(shard, seen=seen))
        self.settle()

    def report(
        self,
        row: JobRow,
        version: int,
        state: JobState | None = None,
        reason: Reason | None = None,
        status: JobStatus | None = None,
        history: Sequence[HistoryEntry] = (),
    ) -> int:
        at = Watermark(version, self.clock.now_s())
        report = JobReport(row.key, row.job_id, at, version + 1, state, reason, status)
        return self.checkpoint(ShardCheckpoint(row.key.shard, (report,), tuple(history)))

    # --- what is seen --------------------------------------------------------------------------------------------

    def heard(self, kind: type) -> list[OwnerMessage]:
        return [message for message in list(self.told) if isinstance(message, kind)]

    def recorded(self) -> int:
        """The last checkpoint that was acknowledged to the node as recorded."""
        return max((message.recorded for message in self.heard(Acknowledge)), default=0)  # type: ignore[union-attr]

    def runs(self, table_id: str = "t-1") -> bool:
        """Whether the node has confirmed that it runs the table's shard."""
        held = self.owner.query(lambda loop: loop.machine.assignments.get(ShardId(table_id)))
        return held is not None and held.state is ShardState.RUNNING

    def dispatched(self, table_id: str) -> list[str]:
        """The job_ids of a table that were last dispatched to the node."""
        told = [each for each in self.heard(DispatchTable) if each.shard == ShardId(table_id)]  # type: ignore[union-attr]
        return [row.job_id for row in told[-1].jobs] if told else []  # type: ignore[union-attr]

    def job(self, key: JobKey) -> JobRow | None:
        return self.owner.current_writer().read(lambda book: book.get(key))

    def _moved(self) -> None:
        self.moves += 1
        self._on_moved()

    # --- the node ------------------------------------------------------------------------------------------------

    def _open_log(self) -> FlakyLog:
        self.logs.append(FlakyLog(self.storage, self.claim_faults))
        return self.logs[-1]

    def _hear(self, record: NodeRecord, message: OwnerMessage) -> None:
        self.told.append(message)
        match message:
            case Announce():
                self._term = message.owner_rev
                self.owner.receive("n-1", [Sync(message.owner_rev, self._epoch, "v", 1, 0, 1, self._sent, ())])
            case DispatchTable():
                state = NodeShardState.ABSENT if message.is_delete else NodeShardState.RUNNING
                answer = DispatchTableResponse(
                    message.owner_rev, message.epoch, message.table_epoch, message.shard, state
                )
                self.owner.receive("n-1", [answer])
            case Acknowledge():
                pass

    def close(self) -> None:
        self.owner.close()
        assert self.broken == []
