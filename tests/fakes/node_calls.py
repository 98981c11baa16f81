"""The calls of an owner at a node, noted (port NodeCalls)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iscp.model.api.api_requests import EventView, LogPage, LogQuery
from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance, MaintenanceFigures
from iscp.model.job.start_rule import Comparison, Sample, VerifyReport
from iscp.model.values.errors import IscpError, StorageError, TimedOut
from iscp.model.values.ids import ShardId
from iscp.model.values.progress import RunProgress, TableSize
from iscp.ports.cluster import BuildAnswer

LOOK_S = 0.05
REPORT = VerifyReport(
    7, 3, Comparison(10, 11, 4, 1, 2, 3, 1, 5, (Sample("extra", "{}", ("v",)),)), "others wrote", True
)


UPKEEP = JobMaintenance(refresh=MaintenanceFigures(3, 1, 0, 1, 1, 1, 2, True, True, 3, "too long", 5.5))


PROGRESS = RunProgress("apply", 5.5, 2.0, 12, 7, 900, 4_000, 500, 2_000, 1_000, 8_000, 450.0, 2_000.0, 2.0)


@dataclass
class FakeNodeCalls:
    """`failure` is raised by every call. A comparison ends with REPORT once `released`."""

    failure: IscpError | None = None
    notified: list[tuple[ShardId, bool]] = field(default_factory=list)
    interrupted: list[tuple[ShardId, str, str]] = field(default_factory=list)
    verified: list[tuple[ShardId, str, bool]] = field(default_factory=list)
    worked: list[tuple[int, int, tuple[str, ...]]] = field(default_factory=list)
    verifying: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    queries: list[LogQuery] = field(default_factory=list)
    page: LogPage = field(default_factory=lambda: LogPage("n"))
    kept: list[EventView] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)

    def notify(self, shard: ShardId, targets: bool) -> None:
        self._fail()
        self.notified.append((shard, targets))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        self._fail()
        self.interrupted.append((shard, job_id, spec_json))

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        self._fail()
        self.verified.append((shard, job_id, repair))
        self.verifying.release()
        for _ in range(int(timeout_s / LOOK_S)):
            if self.released.wait(LOOK_S):
                return REPORT
            if not alive():
                break
        self.given_up.set()
        raise TimedOut(f"not done within {timeout_s:.3g} s")

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        """Those of term 0 are refused, and those of term 1 answered at once; others are never finished."""
        self.worked.append((owner_rev, range_id, tuple(task_ids)))
        if owner_rev == 0:
            answered(StorageError("no space", remedy="Make some"))
        elif owner_rev == 1:
            answered({task_id: TableSize(len(task_id), range_id) for task_id in task_ids})
        return self.given_up.set

    def maintenance(self, job_id: str) -> JobMaintenance:
        self._fail()
        return UPKEEP if job_id == "job" else NO_MAINTENANCE

    def progress(self, job_id: str) -> RunProgress | None:
        self._fail()
        return PROGRESS if job_id == "job" else None

    def counters(self) -> dict[str, int]:
        self._fail()
        return {"submitted": 3, "failed": 1}

    def events(self, known: Sequence[int]) -> list[EventView]:
        self._fail()
        return [event for event in self.kept if event.owner_rev not in known]

    def logs(self, query: LogQuery) -> LogPage:
        self._fail()
        self.queries.append(query)
        return self.page

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
