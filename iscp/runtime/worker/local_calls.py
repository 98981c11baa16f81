"""The owner's calls to a node, answered by this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.core.api.api_views import EventView
from iscp.core.api.log_lines import LogPage, LogQuery
from iscp.core.job.maintenance_figures import JobMaintenance
from iscp.core.job.verification import VerifyReport
from iscp.core.values.ids import ShardId
from iscp.core.values.progress import RunProgress
from iscp.ports.cluster import BuildAnswer
from iscp.ports.node_log import NodeLog
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from iscp.runtime.worker.maintenance import Maintenance
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.verify_requests import VerifyDesk


class LocalCalls:
    """The port `NodeCalls` on this node's scheduler.

    `former_events` gives what it retains of all terms but the given ones, `counts` what the node's parts count.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        desk: VerifyDesk,
        maintenance: Maintenance,
        progress: Callable[[str], RunProgress | None],
        node_log: NodeLog,
        build_worker: BuildWorkerLoop,
        former_events: Callable[[Sequence[int]], list[EventView]],
        counts: Callable[[], dict[str, int]],
    ) -> None:
        self._scheduler = scheduler
        self._desk = desk
        self._maintenance = maintenance
        self._progress = progress
        self._node_log = node_log
        self._build_worker = build_worker
        self._former_events = former_events
        self._counts = counts

    def notify(self, shard: ShardId, targets: bool) -> None:
        self._scheduler.notify(shard, targets)

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        self._scheduler.interrupt(shard, job_id, spec_json)

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        return self._desk.verify(shard, job_id, repair, timeout_s, alive)

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        return self._build_worker.work_on_build_tasks(owner_rev, range_id, task_ids, answered)

    def maintenance(self, job_id: str) -> JobMaintenance:
        return self._maintenance.figures(job_id)

    def progress(self, job_id: str) -> RunProgress | None:
        return self._progress(job_id)

    def counters(self) -> dict[str, int]:
        return self._counts()

    def events(self, known: Sequence[int]) -> list[EventView]:
        return self._former_events(known)

    def logs(self, query: LogQuery) -> LogPage:
        return self._node_log.read(query)
