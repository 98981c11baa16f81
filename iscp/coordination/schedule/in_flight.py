"""Iterations between their submission and their end, and when it is reported that they wait or run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iscp.coordination.job_states import JobEvent
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.tracked_job import TrackedJob
from iscp.core.job.iteration import Iteration, Purpose
from iscp.core.job.job_row import JobReport, JobStatus, Reason
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.ids import JobKey


@dataclass(slots=True)
class InFlightIteration:
    """One iteration between its submission and its end; `newest` is the source version known at its submission.

    `further`: the versions of further tables that were known. `due_s` is when it was due by the monotonic clock, and
    `waited_s` how many seconds passed from then until it began.
    """

    iteration: Iteration
    table: TrackedTable
    newest: int
    due_s: float = 0.0
    started_at_s: float = 0.0
    waited_s: float = 0.0
    pending_reported: bool = False
    canceled: bool = False
    settled: set[str] = field(default_factory=set)
    further: Mapping[str, int] = field(default_factory=dict)


class InFlightIterations:
    """Invariant: a job is in one iteration at most.

    A run is announced (`pending`, then `running`) only when it is not over `announce_s` after its submission:
    most are.
    """

    def __init__(self, announce_s: float) -> None:
        self._announce_s = announce_s
        self._open: dict[int, InFlightIteration] = {}
        self._announce: list[tuple[float, int]] = []
        self._numbers = 0
        self.epoch = 0

    def get(self, number: int) -> InFlightIteration | None:
        return self._open.get(number)

    def begin(
        self,
        table: TrackedTable,
        jobs: Sequence[TrackedJob],
        to_version: int | None,
        deadline_s: float,
        now_s: float,
        purpose: Purpose = Purpose.APPLY,
    ) -> Iteration:
        self._numbers += 1
        table.in_flight += 1
        due_s = min((job.due_since_s(now_s) for job in jobs), default=now_s) if purpose is Purpose.APPLY else now_s
        for job in jobs:
            if job.in_flight:
                raise InvariantBroken(f"{job.row.key} would be in two iterations")
            job.in_flight, job.stale = self._numbers, job.stale and purpose is not Purpose.APPLY
            job.noticed_s = 0.0 if purpose is Purpose.APPLY else job.noticed_s
        iteration = Iteration(
            number=self._numbers,
            table_id=table.shard.table_id,
            table_uri=table.uri,
            jobs=tuple(job.row for job in jobs),
            to_version=to_version,
            priority=max(job.priority for job in jobs),
            deadline_s=deadline_s,
            purpose=purpose,
            epoch=self.epoch,
        )
        newest = -1 if table.newest is None else table.newest
        run = self._open[iteration.number] = InFlightIteration(iteration, table, newest, due_s)
        if table.further:
            run.further = table.further.versions()
        if purpose is Purpose.APPLY:
            heapq.heappush(self._announce, (now_s + self._announce_s, iteration.number))
        return iteration

    def next_number(self) -> int:
        return self._numbers + 1

    def verifying(self, job: TrackedJob) -> bool:
        """Return whether the job's target is being compared: the table's others need not wait for that."""
        run = self._open.get(job.in_flight)
        return run is not None and run.iteration.purpose is not Purpose.APPLY

    def note_started(self, number: int, now_s: float, at_s: float) -> None:
        run = self._open.get(number)
        if run is not None:
            run.started_at_s, run.waited_s = at_s, max(0.0, now_s - run.due_s)
            if run.pending_reported:
                heapq.heappush(self._announce, (now_s + self._announce_s, number))

    def end(self, number: int) -> InFlightIteration | None:
        run = self._open.pop(number, None)
        if run is not None:
            run.table.in_flight -= 1
            run.table.ran_since_probe = True
        return run

    def of_job(self, table: TrackedTable, key: JobKey) -> int:
        """Return the number of the iteration that a job of this name is still in, whichever registration; 0: none."""
        flights = self._open.values() if table.in_flight else ()
        mine = (run.iteration for run in flights if run.table is table)
        return next((its.number for its in mine if any(row.key == key for row in its.jobs)), 0)

    def take_outdated(self, job: TrackedJob) -> int:
        """Once the spec is here that is to end what runs by another: the number of that iteration; 0: none."""
        if not job.awaited_spec or job.awaited_spec != job.row.spec_json:
            return 0
        job.awaited_spec = ""
        run = self._open.get(job.in_flight)
        mine = (row for row in run.iteration.jobs if row.key == job.row.key) if run else ()
        return job.in_flight if any(row.spec_json != job.row.spec_json for row in mine) else 0

    def before_deletion(self, job: TrackedJob) -> int:
        """Return the number of the iteration that has to end before the job's target is deleted; 0: none."""
        run = self._open.get(job.in_flight)
        return job.in_flight if run is not None and run.iteration.purpose is not Purpose.DELETE else 0

    def next_due_s(self) -> float | None:
        """Return when the next iteration is to be announced, or None if none is."""
        while self._announce and self._announce[0][1] not in self._open:
            heapq.heappop(self._announce)
        return self._announce[0][0] if self._announce else None

    def pop_due(self, now_s: float) -> InFlightIteration | None:
        """Return one that is to be announced now."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        return self._open[heapq.heappop(self._announce)[1]]


def announcement(run: InFlightIteration) -> list[JobReport]:
    """Return the reports that the iteration's jobs wait, or run."""
    if run.canceled:
        return []
    started = run.started_at_s > 0
    run.pending_reported = not started
    event = JobEvent.START if started else JobEvent.QUEUE
    reports = []
    for job in run.table.jobs:
        running = job.in_flight == run.iteration.number and job.row.job_id not in run.settled
        if running and not job.row.paused:
            to_version = run.iteration.to_version
            status = JobStatus(
                from_version=job.row.watermark.version,
                to_version=-1 if to_version is None else to_version,
                start_at_s=run.started_at_s,
                doubted_at_s=job.doubted_at_s,
            )
            reason = job.reported_reason if job.failures else Reason.NONE
            reports.append(job.report(event, reason, status if started else None))
    return reports
