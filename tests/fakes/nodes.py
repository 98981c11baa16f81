"""A node as the owner calls it: it remembers what it was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp.cluster.builds.builder_loop import BuildWorkerLoop
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.worker_loop import VerifyDesk
from iscp.model.api.api_requests import EventView, LogPage, LogPlace, LogQuery
from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance
from iscp.model.job.start_rule import VerifyReport
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import ShardId
from iscp.model.values.progress import RunProgress
from iscp.ports.cluster import BuildAnswer, Membership
from iscp.server.admin.admin_service import ClusterViews
from tests.fakes.clock import FakeClock


@dataclass
class FakeCalls:
    """Port NodeCalls."""

    desk: VerifyDesk
    counts: dict[str, int] = field(default_factory=dict)
    notified: list[tuple[ShardId, bool]] = field(default_factory=list)
    interrupted: list[tuple[ShardId, str, str]] = field(default_factory=list)
    runs: dict[str, RunProgress | IscpError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    queries: list[LogQuery] = field(default_factory=list)
    upkeeps: dict[str, JobMaintenance | IscpError] = field(default_factory=dict)
    build_worker: BuildWorkerLoop | None = None
    before_progress: Callable[[], object] = lambda: None

    def notify(self, shard: ShardId, targets: bool) -> None:
        self.notified.append((shard, targets))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        self.interrupted.append((shard, job_id, spec_json))

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        return self.desk.verify(shard, job_id, repair, timeout_s, alive)

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        assert self.build_worker is not None
        return self.build_worker.work_on_build_tasks(owner_rev, range_id, task_ids, answered)

    def maintenance(self, job_id: str) -> JobMaintenance:
        found = self.upkeeps.get(job_id, NO_MAINTENANCE)
        if isinstance(found, IscpError):
            raise found
        return found

    def progress(self, job_id: str) -> RunProgress | None:
        self.before_progress()
        self.asked.append(job_id)
        found = self.runs.get(job_id)
        if isinstance(found, IscpError):
            raise found
        return found

    def counters(self) -> dict[str, int]:
        return self.counts

    def events(self, known: Sequence[int]) -> list[EventView]:
        return []

    def logs(self, query: LogQuery) -> LogPage:
        self.queries.append(query)
        return LogPage("n", LogPlace(1, len(self.queries)))


def nodes_and_views(
    owner: OwnerLoop, membership: Membership, clock: FakeClock, calls: FakeCalls | None = None
) -> tuple[NodeClients, ClusterViews]:
    """What OwnerAdmin needs besides the owner; every node is `calls`."""
    told = calls or FakeCalls(VerifyDesk(lambda event: None, clock))
    nodes = NodeClients(owner, lambda record: told)
    return nodes, ClusterViews(owner, membership, nodes, clock)
