"""The state of a node's schedule, which its modules share, and what follows from the outcomes of iterations for their
jobs: the next attempt, and what is reported of jobs and of their tables' sources.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from iscp.model.job.iteration import SECONDS_MOST, HistoryEntry, Iteration, JobOutcome, Purpose, Usage
from iscp.model.job.job_row import Deletion, JobReport, JobRow, JobState, JobStatus, Reason
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import Reports, Seen
from iscp.model.protocol.messages import FurtherSeen, SourceSeen, VersionAge
from iscp.model.settings.config import BackoffConfig, ProbeConfig, delay_s, doubled_s, jittered_s, quarantined
from iscp.model.values.errors import PERMANENT_FROM, ErrorCode, InvariantBroken, IscpError
from iscp.model.values.ids import JobKey, ShardId
from iscp.schedule.lag import LEAST_S, applied_since_s
from iscp.schedule.maintenance_turns import VerifyQueue
from iscp.schedule.probes import ProbeDeadlines
from iscp.schedule.reports import JobEvent
from iscp.schedule.schedule_events import CancelIteration, ScheduleEffect
from iscp.schedule.table_state import TrackedTable
from iscp.schedule.tracked_job import EvaluateTrigger, Pace, TrackedJob

# --- iterations in flight ---------------------------------------------------------------------------------------------
# Iterations between their submission and their end, and when it is reported that they wait or run.


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


# --- tables by the time of their next visit ---------------------------------------------------------------------------
# A pass over the tables costs only what is due. Due times of idle tables lie on a grid, so that many share one: the
# heap holds times, each with the tables that are due then, in the order in which they came. A hundred thousand idle
# tables have some hundreds of times.

STALE_MAX = 1_000
"""Outdated entries, in addition to one for each live table; beyond them they are removed."""


class DueTables:
    """Invariant: a table with a finite `due_s` has an entry at that time; its other entries count for nothing."""

    def __init__(self) -> None:
        self._times: list[float] = []  # a heap
        self._tables: dict[float, list[TrackedTable]] = {}
        self._entries = 0
        self._live = 0
        # How many entries of the earliest time count no more: a list is not cut at its beginning for each.
        self._passed, self._passed_of_s = 0, inf

    def __len__(self) -> int:
        return self._live

    def set(self, table: TrackedTable, due_s: float, now_s: float) -> None:
        """Set when the table is due: never in the past, and never not at all. Raises InvariantBroken if `due_s` is no
        time.
        """
        due_s = max(due_s, now_s)
        if not isfinite(due_s):
            raise InvariantBroken(f"{table.uri} would never be visited again")
        if due_s == table.due_s:
            return
        if table.due_s == inf:
            self._live += 1
        table.due_s = due_s
        tables = self._tables.get(due_s)
        if tables is None:
            self._tables[due_s] = [table]
            heapq.heappush(self._times, due_s)
        else:
            tables.append(table)
        self._entries += 1
        if self._entries > 2 * self._live + STALE_MAX:
            self._remove_stale()

    def clear(self, table: TrackedTable) -> None:
        if table.due_s != inf:
            self._live -= 1
            table.due_s = inf

    def pop(self, now_s: float) -> TrackedTable | None:
        """Return a table that is due, the longest overdue first."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        table = self._tables[due_s][self._passed]
        self._passed += 1
        self.clear(table)
        return table

    def next_due_s(self) -> float | None:
        while self._times:
            due_s = self._times[0]
            if due_s != self._passed_of_s:
                self._passed, self._passed_of_s = 0, due_s
            tables = self._tables[due_s]
            while self._passed < len(tables):
                if tables[self._passed].due_s == due_s:
                    return due_s
                self._passed += 1
            heapq.heappop(self._times)
            del self._tables[due_s]
            self._entries -= len(tables)
            self._passed_of_s = inf
        return None

    def _remove_stale(self) -> None:
        waiting = {
            due_s: [table for table in dict.fromkeys(tables) if table.due_s == due_s]
            for due_s, tables in self._tables.items()
        }
        self._tables = {due_s: tables for due_s, tables in waiting.items() if tables}
        self._times = list(self._tables)
        heapq.heapify(self._times)
        self._entries = sum(map(len, self._tables.values()))
        self._passed_of_s = inf


# --- outcomes of an iteration -----------------------------------------------------------------------------------------
# What outcomes mean for the iteration's jobs: their next attempt, and what is reported of them.

BUILD_LOOK_S = 5.0
"""Seconds that a job built by ranges waits before it checks that all are there; sooner if it is notified."""

WAIT_CHECK_S = 1.0
"""Seconds that a job waits for tables that are behind before it checks that they are so still; sooner if one moves."""

_NOT_THE_JOBS_FAULT = frozenset({ErrorCode.CANCELED, ErrorCode.LEASE_LOST, ErrorCode.QUEUE_FULL})


def apply_triggers(
    table: TrackedTable,
    evaluate: EvaluateTrigger,
    backoff: BackoffConfig,
    now_s: float,
    at_s: float,
    draw: Callable[[], float],
) -> list[JobReport]:
    """Forget waits that are over, and let the jobs' triggers decide whether they delay anything.

    A fault of a user's own trigger is its job's fault, and delays no other: the trigger is called again by backoff.
    """
    reports: list[JobReport | None] = []
    for job in (job for job in table.jobs if job.runnable):
        if job.retry_at_s <= now_s:
            job.retry_at_s = 0.0
        job.heed_time(now_s)
        try:
            since_s = table.outstanding_since_s(job, now_s, at_s)
            reports.append(job.apply_trigger(table.newest, since_s, now_s, at_s, evaluate))
        except IscpError as error:
            if job.pace is None:
                raise
            reports.append(_record_trigger_failure(job, job.pace, error, backoff, now_s, at_s, draw()))
        table.waiting |= job.wakes_at_s > 0.0
    return [report for report in reports if report]


def _record_trigger_failure(
    job: TrackedJob, pace: Pace, error: IscpError, backoff: BackoffConfig, now_s: float, at_s: float, draw: float
) -> JobReport:
    pace.faults += 1
    job.wait(now_s, delay_s(backoff, pace.faults, draw))
    reason = Reason.QUARANTINED if quarantined(backoff, pace.faults) else Reason.RETRYING
    version, message = job.row.watermark.version, f"trigger {pace.trigger.name!r}: {error}"
    status = JobStatus(version, version, at_s, at_s, ErrorCode.TRIGGER_FAILED, message, failures=pace.faults)
    return job.report(JobEvent.FAIL, reason, replace(status, retry_at_s=job.retry_due_at_s(now_s, at_s)))


class Settlement:
    """Turns one iteration's outcomes into the jobs' new state."""

    def __init__(self, node_id: str, backoff: BackoffConfig, run: InFlightIteration, now_s: float, at_s: float) -> None:
        self._node_id = node_id
        self._backoff = backoff
        self._run = run
        self._now_s = now_s
        self._at_s = at_s
        self.reports: list[JobReport] = []
        self.history: list[HistoryEntry] = []
        self._retries = 0

    def settle_all(
        self, outcomes: Mapping[str, JobOutcome], error: IscpError | None, draw: Callable[[], float]
    ) -> None:
        """Settle `outcomes` by job_id; a job without one has failed by `error`."""
        code = error.code if error else ErrorCode.INTERNAL
        message = str(error or "the iteration gave no outcome")
        iteration, table = self._run.iteration, self._run.table
        table.waiting = True
        ran = {row.job_id for row in iteration.jobs}
        for job in table.jobs:
            if job.in_flight != iteration.number:
                continue
            job.in_flight = 0
            if job.row.job_id not in ran:
                continue
            row = job.row
            outcome = outcomes.get(row.job_id) or JobOutcome(row, row.watermark, row.seq, code, message)
            if iteration.purpose is Purpose.APPLY:
                self.settle(job, outcome, draw())
                if job.row.deletion:
                    job.forgive()
            elif iteration.purpose is Purpose.DELETE:
                self._settle_deletion(job, outcome, draw())
            else:
                self.settle_verification(job, outcome)

    def settle(self, job: TrackedJob, outcome: JobOutcome, draw: float) -> None:
        if job.row.job_id in self._run.settled:
            return
        before, self._retries = job.row, job.failures
        job.row = before._replace(watermark=outcome.watermark, seq=outcome.seq)
        code, message = outcome.error_code, outcome.error_msg
        if outcome.ok and outcome.build is not None:
            self._record_build(job, outcome)
            return
        if outcome.ok and self._stalled(job, before, outcome):
            code, message = ErrorCode.INTERNAL, "the iteration ended without progress"
        if code == ErrorCode.OK:
            self._record_success(job, outcome, changed=outcome.seq != before.seq)
        elif code in _NOT_THE_JOBS_FAULT:
            self._record_interruption(job, draw)
        else:
            self._record_failure(job, outcome, code, message, draw)

    def settle_verification(self, job: TrackedJob, outcome: JobOutcome) -> None:
        """Report only the repair that a comparison led to; a comparison says nothing else of the job."""
        if outcome.seq == job.row.seq:
            return
        job.row = job.row._replace(watermark=outcome.watermark, seq=outcome.seq)
        status = self._status(outcome, ErrorCode.OK, "") if job.reported_state is JobState.COMPLETED else None
        self.reports.append(job.repeat_report(status))
        if outcome.committed:
            self.history.append(self._history(outcome, ErrorCode.OK, ""))

    def _settle_deletion(self, job: TrackedJob, outcome: JobOutcome, draw: float) -> None:
        """Report that the target is gone, or why it is not; what is no refusal is tried again, ever more rarely."""
        job.row = job.row._replace(seq=outcome.seq)
        code, message = int(outcome.error_code), outcome.error_msg
        status = self._status(outcome, code, message)
        if outcome.ok:
            job.note_deleted()
            status = replace(status, deletion=Deletion.DONE)
            self.reports.append(job.report(JobEvent.SUCCEED, Reason.PAUSED, status))
        elif code in _NOT_THE_JOBS_FAULT:
            if not self._run.canceled:
                job.wait(self._now_s, jittered_s(self._backoff.base_s, draw))
            return
        else:
            job.failures += 1
            job.failed = code >= PERMANENT_FROM
            if not job.failed:
                rarely = quarantined(self._backoff, job.failures)
                job.wait(self._now_s, (delay_s if rarely else doubled_s)(self._backoff, job.failures, draw))
            retry_at_s = 0.0 if job.failed else job.retry_due_at_s(self._now_s, self._at_s)
            status = replace(status, failures=job.failures, retry_at_s=retry_at_s)
            self.reports.append(job.report(JobEvent.FAIL, Reason.PAUSED, status))
        self.history.append(self._history(outcome, code, message))

    def _stalled(self, job: TrackedJob, before: JobRow, outcome: JobOutcome) -> bool:
        """Return whether all that was known to be outstanding still is: going on at once would never end."""
        if outcome.waits_for:
            return False
        target = self._run.iteration.to_version
        wanted = self._run.newest if target is None else target
        after, steps = outcome.watermark, (outcome.watermark.step, before.watermark.step)
        unmoved = after.version == before.watermark.version and steps[0] == steps[1]
        stalled = unmoved and after.version < wanted
        if job.several:
            of_further = job.several.stalled(outcome.sources, self._run.further)
            stalled = stalled if of_further is None else of_further and unmoved
        return after.version < 0 or stalled

    def _record_success(self, job: TrackedJob, outcome: JobOutcome, changed: bool) -> None:
        target = self._run.iteration.to_version
        reached = outcome.watermark.version >= (self._run.newest if target is None else target)
        job.near = reached and not outcome.waits_for
        job.failures, job.retry_at_s, job.doubted_at_s, job.file_lost = 0, 0.0, 0.0, False
        job.request_build(None)
        job.note_seen(self._run.table.newest, self._now_s)
        self._record_run(job, up_to_date=job.near)
        job.await_time(outcome.due_at_s, self._now_s, self._at_s)
        if outcome.waits_for:
            job.wait(self._now_s, min(outcome.wait_s, WAIT_CHECK_S))
        changed |= self._take_marks(job, outcome) or outcome.waits_for != job.waits_for
        if changed or (job.reported_state, job.reported_reason) != (JobState.COMPLETED, Reason.NONE):
            report = job.report(JobEvent.SUCCEED, Reason.NONE, self._status(outcome, ErrorCode.OK, ""))
            self.reports.append(report)
        else:
            row = job.row
            self.reports.append(JobReport(row.key, row.job_id, row.watermark, row.seq))
        if outcome.committed:
            self.history.append(self._history(outcome, ErrorCode.OK, ""))

    def _take_marks(self, job: TrackedJob, outcome: JobOutcome) -> bool:
        """Take how far each of several tables was read, if the outcome says so, and return whether that is news."""
        if job.several is None or not outcome.sources:
            return False
        news = job.several.marks != outcome.sources
        job.several.marks = outcome.sources
        if self._run.table.further:
            self._run.table.further.compare([job.several])
        return news

    def _record_build(self, job: TrackedJob, outcome: JobOutcome) -> None:
        """Record that the job waits for its first rows, which is no fault, and is reported once."""
        reported = job.reported_state, job.reported_reason
        news = outcome.build != job.build or reported != (JobState.PENDING, Reason.BUILDING)
        job.request_build(outcome.build)
        job.near, job.failures, job.file_lost = False, 0, False
        job.wait(self._now_s, BUILD_LOOK_S)
        if news:
            status = self._status(outcome, ErrorCode.OK, "")
            self.reports.append(job.report(JobEvent.BUILD, Reason.BUILDING, status))

    def _record_interruption(self, job: TrackedJob, draw: float) -> None:
        job.near = False
        job.stale = True  # what it was started for may not show in any version
        if not self._run.canceled:
            job.wait(self._now_s, jittered_s(self._backoff.base_s, draw))
        if job.reported_state in (JobState.PENDING, JobState.RUNNING):
            self.reports.append(job.report(JobEvent.INTERRUPT, job.reported_reason))

    def _record_failure(self, job: TrackedJob, outcome: JobOutcome, code: int, message: str, draw: float) -> None:
        # A table that cannot be found may be one whose directory is away for a while: nobody gives up on it.
        if code == ErrorCode.TABLE_NOT_FOUND:
            code = ErrorCode.STORAGE
        job.near = False
        job.file_lost = code == ErrorCode.FILE_LOST
        self._record_run(job, up_to_date=False)
        self._take_marks(job, outcome)
        job.failures += 1
        if code == ErrorCode.NODE_KILLED:  # it has been tried again already
            job.failures = max(job.failures, self._backoff.quarantine_after)
        if 0 <= self._run.newest <= outcome.watermark.version and not (job.several or job.due_at_s):
            # Nothing was outstanding: it ran to see whether its target is right, and that is not known now.
            job.doubted_at_s = job.doubted_at_s or self._at_s
        if code >= PERMANENT_FROM:
            job.failed, job.retry_at_s, reason = True, 0.0, Reason.NONE
        else:
            # A log that is restored shows in no new version.
            rarely = quarantined(self._backoff, job.failures) and code != ErrorCode.LOG_CORRUPT
            job.wait(self._now_s, (delay_s if rarely else doubled_s)(self._backoff, job.failures, draw))
            reason = Reason.QUARANTINED if rarely else Reason.RETRYING
        status = replace(
            self._status(outcome, code, message),
            doubted_at_s=job.doubted_at_s,
            failures=job.failures,
            retry_at_s=job.retry_due_at_s(self._now_s, self._at_s),
        )
        self.reports.append(job.report(JobEvent.FAIL, reason, status))
        self.history.append(self._history(outcome, code, message))

    def _record_run(self, job: TrackedJob, *, up_to_date: bool) -> None:
        if job.pace is not None:
            job.pace.record_run(self._run.started_at_s, self._now_s, self._at_s, up_to_date=up_to_date)

    def _status(self, outcome: JobOutcome, code: int, message: str) -> JobStatus:
        return JobStatus(
            from_version=outcome.from_version,
            to_version=outcome.watermark.version,
            start_at_s=self._run.started_at_s,
            end_at_s=self._at_s,
            error_code=int(code),
            error_msg=message,
            rows=outcome.rows,
            bytes=outcome.bytes,
            dead_letters=outcome.dead_letters,
            warning=outcome.warning,
            step=outcome.watermark.step,
            steps=outcome.watermark.steps,
            source_id=outcome.source_id,
            sources=outcome.sources,
            waits_for=outcome.waits_for,
            waits_until_s=self._at_s + outcome.wait_s if outcome.waits_for else 0.0,
        )

    def _history(self, outcome: JobOutcome, code: int, message: str) -> HistoryEntry:
        row = outcome.row
        return HistoryEntry(
            account=row.key.account,
            table_id=row.key.table_id,
            job_name=row.key.job_name,
            job_id=row.registration,
            seq=outcome.seq,
            from_version=outcome.from_version,
            to_version=outcome.watermark.version,
            start_at_s=self._run.started_at_s,
            end_at_s=self._at_s,
            source_commit_at_s=outcome.watermark.at_s,
            error_code=int(code),
            error_msg=message,
            rows=outcome.rows,
            bytes=outcome.bytes,
            data_type=outcome.strategy or outcome.data_type.value,
            node_id=self._node_id,
            reason=outcome.strategy_reason,
            rows_in=outcome.rows_in,
            parts_s=outcome.parts_s,
            usage=self._usage(outcome),
        )

    def _usage(self, outcome: JobOutcome) -> Usage:
        measured = outcome.usage or Usage(rows_written=outcome.rows, bytes_written=outcome.bytes)
        wait_s = min(self._run.waited_s + measured.wait_s, SECONDS_MOST)
        return replace(measured, wait_s=wait_s, retries=self._retries)


# --- reports on a table's source --------------------------------------------------------------------------------------
# Up to when the source is known, and how far its jobs lie behind.


def report_seen(table: TrackedTable, now_s: float, at_s: float, every_s: float) -> SourceSeen | None:
    """Return what is known of the source: when it moved, when a lag begins or ends, and if the last probe that was
    reported was `every_s` ago.

    If it cannot be reached, and never was from here, only that is reported.
    """
    unreached = table.overdue or bool(table.fault)
    if table.seen is None or table.probed_s == -inf:
        return _report_unreached(table) if unreached else None
    probed_at_s = at_s - (now_s - table.probed_s)
    further = _see_further(table) if table.further else ()
    ages, own_s = _see_versions(table, table.seen, probed_at_s)
    lag_s = max([own_s, *(each.lag_s for each in further)])
    behind = (job.row.watermark.version for job in table.jobs if job.row.watermark.version >= 0 and not job.row.paused)
    repair = table.seen.repair if min(behind, default=table.seen.repair) < table.seen.repair else 0
    version = table.seen.version
    seen = SourceSeen(table.shard, version, probed_at_s, lag_s, further, repair, unreached, ages, at_s)
    if table.reported and not seen.moved_since(table.reported) and now_s - table.reported_s < every_s:
        return None
    table.reported, table.reported_s = seen, table.probed_s
    return seen


def _report_unreached(table: TrackedTable) -> SourceSeen | None:
    seen = SourceSeen(table.shard, -1 if table.newest is None else table.newest, 0.0, 0.0, unreached=True)
    if table.reported == seen:
        return None
    table.reported = seen
    return seen


def _see_versions(table: TrackedTable, seen: ProbeState, probed_at_s: float) -> tuple[tuple[VersionAge, ...], float]:
    """Return the ages of what jobs have not applied, and that for the slowest job that is built and not paused; 0 if
    there is nothing.
    """
    if all(job.row.watermark.version >= seen.version for job in table.jobs if not job.row.paused):
        table.behind = None
        return (), 0.0
    behind = [job.row for job in table.jobs if not job.row.paused and job.row.watermark.version < seen.version]
    ages: tuple[VersionAge, ...] = ()
    if table.behind:
        table.behind.forget(min(row.watermark.version for row in behind))
        ages = table.behind.ages(table.probed_s)
    built = [row for row in behind if row.watermark.version >= 0]
    if not built:
        return ages, 0.0
    slowest = min(built, key=lambda row: row.watermark.version)
    otherwise_s = table.probed_s - (probed_at_s - applied_since_s(slowest, slowest.watermark, probed_at_s))
    since_s = table.behind.since_s(slowest.watermark.version, otherwise_s) if table.behind else otherwise_s
    return ages, max(LEAST_S, table.probed_s - since_s)


def _see_further(table: TrackedTable) -> tuple[FurtherSeen, ...]:
    built = [job.several for job in table.jobs if job.several and job.row.watermark.version >= 0 and job.runnable]
    return table.further.see(built, table.probed_s) if table.further else ()


# --- the state of the schedule ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """Limits of how often the schedule reports, and of how much one of its steps does."""

    announce_s: float = 1.0
    """Time after which an iteration is reported as pending or running; most are over before."""

    seen_every_s: float = 60.0
    """Seconds between two reports that a source has not moved, at most."""

    seen_per_lag: float = 4.0
    """Reports that a source has not moved within the smallest target lag of its jobs, about: so that the owner knows
    that none is late.
    """

    due_max: int = 1_000
    """Due tables that one Tick visits; the next one goes on with the others."""


@dataclass(slots=True)
class ScheduleState:
    """The state of the schedule. `out` gathers the effects of the step at `now_s` (monotonic), which is `at_s` in Unix
    time.

    `shards` has the tables of each shard that runs here, until it has stopped; `stopping` has the shards that are to
    stop. `postponed` has the tables that would have been visited while iterations are postponed, and is None while they
    are not.
    """

    node_id: str
    probe: ProbeConfig
    backoff: BackoffConfig
    draw: Callable[[], float]
    pacing: ScheduleTimes
    evaluate_trigger: EvaluateTrigger
    in_flight: InFlightIterations
    probes_out: ProbeDeadlines
    shards: dict[ShardId, tuple[TrackedTable, ...]] = field(default_factory=dict)
    due: DueTables = field(default_factory=DueTables)
    stopping: set[ShardId] = field(default_factory=set)
    verify_queue: VerifyQueue = field(default_factory=VerifyQueue)
    postponed: dict[TrackedTable, None] | None = None
    now_s: float = 0.0
    at_s: float = 0.0
    out: list[ScheduleEffect] = field(default_factory=list)

    def report(self, table: TrackedTable, reports: Sequence[JobReport], history: Sequence[HistoryEntry] = ()) -> None:
        if reports or history:
            self.out.append(Reports(table.shard, tuple(reports), tuple(history)))

    def report_seen(self, table: TrackedTable) -> None:
        news = report_seen(table, self.now_s, self.at_s, self.seen_every_s(table))
        if news is not None:
            self.out.append(Seen(news))

    def seen_every_s(self, table: TrackedTable) -> float:
        return min(self.pacing.seen_every_s, table.target_lag_s / self.pacing.seen_per_lag)

    def cancel(self, number: int) -> None:
        run = self.in_flight.get(number)
        if run is not None and not run.canceled:
            run.canceled = True
            self.out.append(CancelIteration(number))
