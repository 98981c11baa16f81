"""Plays all nodes of a cluster that builds by ranges, and its owner: which ranges are to be built, and who does it.

The tasks are what it keeps in `live`; everything else is the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from iscp.cluster.builds.builder_loop import plan_of
from iscp.model.build.build_task import BuildPlan, RangeBatch
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.rows.key_ranges import WHOLE, children, parent
from iscp.model.values.errors import IscpError, PlanOutdated
from iscp.model.values.progress import TableSize
from iscp.ports.consumer import RangeBuilder
from tests.fakes.guards import OpenGuard

Run = Callable[[JobRow], JobOutcome]


def after(row: JobRow, outcome: JobOutcome) -> JobRow:
    """The row as its owner has it after a report."""
    status = JobStatus(build=outcome.build or (row.build if not outcome.ok else None))
    return row._replace(watermark=outcome.watermark, seq=outcome.seq, status_json=status.to_json())


class BuildDriver:
    """`rows` are the jobs as they are by now; `nodes` build ranges, `run` is an iteration of a job.

    `done`: of each job, what nodes say that its finished ranges have of the source.
    """

    def __init__(self, rows: Sequence[JobRow], nodes: Sequence[RangeBuilder], run: Run, seed: int = 0) -> None:
        self.rows = list(rows)
        self.nodes = list(nodes)
        self.draw = Random(seed)
        self.live: dict[str, list[int]] = {}
        self._run = run
        self.done: dict[str, list[TableSize]] = {}
        self._plans: dict[str, BuildPlan] = {}

    def iterate(self) -> list[JobOutcome]:
        """An iteration of each job that is not built yet; new requests make tasks."""
        outcomes = []
        for place, row in enumerate(self.rows):
            if row.watermark.version >= 0:
                continue
            outcome = self._run(row)
            self.rows[place] = row = after(row, outcome)
            outcomes.append(outcome)
            plan = plan_of(row)
            if plan is not None and self._plans.get(row.job_id) != plan:
                self._plans[row.job_id] = plan
                self.live[row.job_id] = [*range(1 << plan.depth, 2 << plan.depth)]
                self.done[row.job_id] = []
        return outcomes

    @property
    def waiting(self) -> list[int]:
        """The ranges that some job still has to have."""
        return sorted({each for tasks in self.live.values() for each in tasks})

    def batch(self, range_id: int) -> RangeBatch:
        plans = [self._plans[job] for job, tasks in self.live.items() if range_id in tasks]
        first = [each for each in plans if each.version == plans[0].version]
        return RangeBatch(range_id, tuple(first))

    def work(self, range_id: int, *, lost: bool = False) -> IscpError | None:
        """A node builds a range for all jobs that have to have it. `lost`: its answer does not arrive."""
        batch = self.batch(range_id)
        node = self.draw.choice(self.nodes)
        try:
            size = node.build(batch, OpenGuard())
        except PlanOutdated:
            for plan in batch.plans:
                self.live[plan.job_id] = []  # the owner has them dropped; the jobs' iterations say what is next
            return None
        except IscpError as error:
            return error
        if not lost:
            for plan in batch.plans:
                self.live[plan.job_id].remove(range_id)
                self.done[plan.job_id].append(size)
        return None

    def split(self, range_id: int) -> None:
        for tasks in self.live.values():
            if range_id in tasks:
                tasks.remove(range_id)
                tasks += children(range_id)

    def merge(self, range_id: int) -> None:
        """With its sibling, where that is waiting too."""
        for tasks in self.live.values():
            if range_id > WHOLE and {range_id, range_id ^ 1} <= {*tasks}:
                tasks.remove(range_id)
                tasks.remove(range_id ^ 1)
                tasks.append(parent(range_id))

    def finish(self, steps_max: int = 500) -> None:
        """In random order until every job is built; some work is done twice, and ranges change."""
        for _ in range(steps_max):
            if not self.waiting:
                self.iterate()
            if not self.waiting and all(row.watermark.version >= 0 for row in self.rows):
                return
            if not self.waiting:
                continue
            range_id = self.draw.choice(self.waiting)
            match self.draw.randrange(8):
                case 0:
                    self.split(range_id)
                case 1:
                    self.merge(range_id)
                case 2:
                    self.work(range_id, lost=True)
                case _:
                    self.work(range_id)
        raise AssertionError(f"not built: {self.rows}, {self.live}")
