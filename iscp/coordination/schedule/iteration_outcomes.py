"""Derive from an iteration's outcomes what they mean for its jobs: their next attempt, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from iscp.coordination.job_states import JobEvent
from iscp.coordination.schedule.in_flight import InFlightIteration
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.coordination.schedule.tracked_job import TrackedJob
from iscp.coordination.schedule.trigger_timing import EvaluateTrigger, Pace
from iscp.core.job.iteration import HistoryEntry, JobOutcome, Purpose
from iscp.core.job.job_row import Deletion, JobReport, JobRow, JobState, JobStatus, Reason
from iscp.core.job.usage import SECONDS_MOST, Usage
from iscp.core.settings.backoff import delay_s, doubled_s, jittered_s, quarantined
from iscp.core.settings.config import BackoffConfig
from iscp.core.values.errors import PERMANENT_FROM, ErrorCode, IscpError

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
