"""The state that the schedule stores of each job, and the times that the job's trigger goes by.

The job decides what is reported of it, and whether it may start something; when it does is the schedule's business. A
hundred thousand of these lie idle in one node: slots, and nothing that can be derived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor, inf

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.job_row import Deletion, JobReport, JobRow, JobState, JobStatus, Reason, further_tables, tables_of
from iscp.model.job.start_rule import (
    Candidate,
    SharingGroup,
    TargetSeen,
    TriggerFacts,
    run_spec,
    sharing_group,
    wait_of,
)
from iscp.model.settings.config import BackoffConfig, quarantined
from iscp.model.spec.cron_schedule import parse_cron
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import ErrorCode, IscpError, TemporaryError
from iscp.schedule.lag import CLOCKS_APART_S, SeveralTables
from iscp.schedule.reports import JOB_STATES, JobEvent
from iscp.schedule.schedule_events import TargetAnswer

# --- the times of triggers --------------------------------------------------------------------------------------------
# A trigger decides when its job may start, unless that is simply whenever its source is ahead of it.
#
# Periodic: when `interval_s` have gone by since the job last came up to date. Jobs that share go by the clock instead,
# at the multiples of their interval: so they come due together, whenever each was made, and once one iteration has
# brought each to the newest version they are at one watermark and go on in one. Cron: at its next time after what is
# outstanding came to be; however many times were missed, it runs once. Custom: a class decides.
#
# No time of another clock (a node's that ran the job before, a commit's) counts as later than this node's now: a clock
# that was ahead for one iteration, or one commit of the future, would have the job wait until it is so late.
#
# Nothing is outstanding while the source does not move: then no trigger is called, and no time is waited for.

EvaluateTrigger = Callable[[str, TriggerFacts], object]
"""Evaluates a trigger by its name. Raises IscpError where it is not there, or fails."""


def no_triggers(name: str, facts: TriggerFacts) -> object:
    raise TemporaryError(f"this node has no trigger {name!r}", code=ErrorCode.TRIGGER_FAILED)


LEAST_WAIT_S = 0.001
"""Least seconds until a trigger is checked again; what is due within it counts as due, as clocks are not exact."""


class Pace:
    """The times that one job's trigger goes by. Times ending in `_now_s` are monotonic, those in `_at_s` are Unix time.

    `delayed_until_s` (monotonic): what is outstanding is not started before it (0: it may start). `faults` counts those
    of a trigger of the user's own, in a row. `_settled`: at some time while this node had the job nothing was
    outstanding. `_since_at_s`: since when something is, as far as is known (0: nothing is).
    """

    __slots__ = (
        "_applied_at_s",
        "_applied_now_s",
        "_ran_at_s",
        "_settled",
        "_since_at_s",
        "delayed_until_s",
        "faults",
        "trigger",
    )

    def __init__(self, trigger: TriggerSpec, row: JobRow, now_s: float, at_s: float) -> None:
        """Begin with `row`: a node that takes a job over goes on with the wait that was under way."""
        self.trigger = trigger
        self.delayed_until_s = 0.0
        self.faults = 0
        self._settled = False
        self._since_at_s = 0.0
        status = row.status
        self._ran_at_s = (status.start_at_s, status.end_at_s)
        self._applied_at_s = status.end_at_s
        waited_s = max(0.0, at_s - self._applied_at_s) if self._applied_at_s else inf
        self._applied_now_s = now_s - waited_s

    def record_run(self, start_at_s: float, now_s: float, at_s: float, *, up_to_date: bool) -> None:
        """An iteration of the job has ended."""
        self._ran_at_s = (start_at_s, at_s)
        if up_to_date:
            self._applied_now_s, self._applied_at_s = now_s, at_s
            self.settle()

    def settle(self) -> None:
        """Note that nothing is outstanding."""
        self._settled, self._since_at_s = True, 0.0

    def hold(
        self,
        row: JobRow,
        newest: int | None,
        since_s: float,
        now_s: float,
        at_s: float,
        evaluate: EvaluateTrigger,
    ) -> None:
        """Note that something is outstanding, as far as is known since `since_s` (Unix time): set until when it has to
        wait.

        Raises IscpError if a trigger cannot say.
        """
        trigger, interval_s = self.trigger, self.trigger.interval_s
        if trigger.name:
            facts = self._facts(row, newest, at_s)
            wait_s = wait_of(evaluate(trigger.name, facts), facts)
        elif trigger.cron:
            # When its first commit was made is not known of what a node has taken over: times since may be missed.
            if not self._since_at_s:
                self._since_at_s = max(self._applied_at_s, since_s) if self._settled else self._applied_at_s
            if self._since_at_s > at_s:
                self._since_at_s = at_s
            wait_s = parse_cron(trigger.cron, trigger.time_zone).next_after(self._since_at_s) - at_s
        elif interval_s is None:
            wait_s = 0.0
        elif trigger.share:
            turn = floor(at_s / interval_s)
            same = turn == floor(self._applied_at_s / interval_s)
            wait_s = max(LEAST_WAIT_S, (turn + 1) * interval_s - at_s) if same else 0.0
        else:
            wait_s = self._applied_now_s + interval_s - now_s
        self.delayed_until_s = now_s + wait_s if wait_s > 0.0 else 0.0

    def _facts(self, row: JobRow, newest: int | None, at_s: float) -> TriggerFacts:
        return TriggerFacts(
            account=row.key.account,
            table=row.table_name,
            job=row.key.job_name,
            applied_version=row.watermark.version,
            applied_at_s=row.watermark.at_s,
            source_version=row.watermark.version if newest is None else newest,
            now_s=at_s,
            last_start_at_s=min(self._ran_at_s[0], at_s),
            last_end_at_s=min(self._ran_at_s[1], at_s),
            options=self.trigger.options,
        )


def recorded_due_at_s(row: JobRow, at_s: float) -> float:
    """Return until when the job's rows need no change, as its last iteration has recorded it.

    The time is in Unix seconds; 0 means for as long as no table changes. If the clock of that iteration was ahead, it
    is now.
    """
    if '"due_at"' not in row.status_json:
        return 0.0
    status = row.status
    return at_s if status.end_at_s > at_s + CLOCKS_APART_S else status.due_at_s


# --- jobs -------------------------------------------------------------------------------------------------------------

_UNFINISHED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELED})


class TrackedJob:
    """A job as this node runs it.

    `row` is as it was given, but with the newest watermark and seq that are known here. Invariants: `in_flight` is the
    number of the iteration that it waits for or takes part in (0: none), so there is never more than one;
    `company`, `target_lag_s` and `pace` (None: whenever the source is ahead) are what the spec says of when it runs;
    `retry_at_s` is 0 or the time before which it starts nothing; `failures` counts those in a row. `awaited_spec`: the
    spec that is to end, when it comes, what runs by another one (empty: none). `target`: as it was last seen;
    `doubted_at_s`: as in JobStatus. `file_lost`: it failed at a file that is gone or damaged. `several`: of a job that
    reads further tables. `reported_status`: the last that was reported from here. `due_at_s`: as in JobStatus, as it
    was last said; `due_s`: the same by the monotonic clock, until that is heeded (0: it is, or there is none).
    `noticed_s`: since when, by the monotonic clock, there may be something for it that no iteration has begun to apply
    (0: not known, or nothing).
    """

    __slots__ = (
        "awaited_spec",
        "doubted_at_s",
        "due_at_s",
        "due_s",
        "failed",
        "failures",
        "file_lost",
        "in_flight",
        "near",
        "noticed_s",
        "pace",
        "reported_reason",
        "reported_state",
        "reported_status",
        "retry_at_s",
        "row",
        "several",
        "sharing_group",
        "stale",
        "target",
        "target_lag_s",
    )

    def __init__(self, row: JobRow, backoff: BackoffConfig) -> None:
        self.row = row
        self.in_flight = 0
        self.retry_at_s = 0.0
        self.near = False
        self.noticed_s = 0.0
        self.file_lost = False
        self.awaited_spec = ""
        self.target: TargetSeen | None = None
        self.doubted_at_s = row.status.doubted_at_s if "doubted_at" in row.status_json else 0.0
        self.stale = self.doubted_at_s > 0
        self.due_at_s, self.due_s = 0.0, 0.0
        self.sharing_group = SharingGroup.TABLE
        self.target_lag_s: float | None = None
        self.pace: Pace | None = None
        self.several: SeveralTables | None = None
        self.failed = row.failed_for_good
        self.failures = {Reason.RETRYING: 1, Reason.QUARANTINED: backoff.quarantine_after}.get(row.reason, 0)
        if self.failures:
            self.failures = max(self.failures, row.status.failures)
        self.reported_state = row.state
        self.reported_reason = row.reason
        self.reported_status: JobStatus | None = None

    @property
    def runnable(self) -> bool:
        return not self.failed and not self.row.paused

    @property
    def ends_with_target(self) -> bool:
        """Return whether its target is to be deleted, which has neither been done nor refused."""
        return self.row.deletion is Deletion.WANTED and not self.failed

    @property
    def priority(self) -> int:
        try:
            return self.row.spec.priority
        except IscpError:
            return 0

    @property
    def idle(self) -> bool:
        """Built, and nothing is known that it has to do."""
        if self.in_flight or self.failures or self.has_to_run:
            return False
        return self.row.watermark.version >= 0 and self.runnable

    @property
    def has_to_run(self) -> bool:
        """Whatever the version of its source is."""
        return self.stale or (self.several is not None and self.several.behind)

    @property
    def faults(self) -> int:
        """Failures in a row, of its iterations or of its own trigger."""
        return self.failures or (self.pace.faults if self.pace else 0)

    @property
    def waits_until_s(self) -> float:
        """Return the time before which it starts nothing, in whatever a retry or its trigger wait for; 0: none."""
        return self.retry_at_s or (self.pace.delayed_until_s if self.pace else 0.0)

    @property
    def wakes_at_s(self) -> float:
        """Return the time at which it may have to start something, though nothing happens until then; 0: none."""
        if self.row.deletion:
            return self.retry_at_s
        return self.waits_until_s or self.due_s

    def go_by_spec(self, now_s: float, at_s: float) -> None:
        """The job is new here, or its spec has changed. One that cannot be read is reported by its next iteration."""
        try:
            spec = run_spec(self.row.spec_json)
        except IscpError:
            spec = None
        self.sharing_group = sharing_group(spec)
        self._note_further_tables()
        self.await_time(self.due_at_s or recorded_due_at_s(self.row, at_s), now_s, at_s)
        self.target_lag_s = spec.target_lag_s if spec else None
        timed = spec is not None and spec.trigger.job_type in (TriggerType.PERIODIC, TriggerType.CUSTOM)
        self.pace = Pace(spec.trigger, self.row, now_s, at_s) if spec and timed else None
        if self.pace and self.failures and self.row.status.error_code == ErrorCode.TRIGGER_FAILED:
            # Not its iterations have failed, so that no retry of one is due.
            self.pace.faults, self.failures = self.failures, 0

    def _note_further_tables(self) -> None:
        further = further_tables(self.row)
        marks = self.several.marks if self.several else self.row.sources
        self.several = SeveralTables(further, marks) if further else None
        if self.sharing_group is SharingGroup.TABLE and tables_of(self.row):
            # A job that reads its tables itself shares no read, and must not wait for what others of its table do.
            self.sharing_group = SharingGroup.NONE

    def await_time(self, due_at_s: float, now_s: float, at_s: float) -> None:
        """Wait until the job's rows may have to change (Unix seconds; 0: not before a table changes)."""
        self.due_at_s = due_at_s
        self.due_s = now_s + max(LEAST_WAIT_S, due_at_s - at_s) if due_at_s else 0.0
        if due_at_s and self.sharing_group is SharingGroup.TABLE:
            self.sharing_group = SharingGroup.NONE  # others have nothing to do then

    def heed_time(self, now_s: float) -> None:
        """Run the job if its rows may have to change by now; an outcome of what is in flight says when that is next."""
        if self.due_s and self.due_s <= now_s and not self.in_flight:
            self.stale, self.due_s = True, 0.0

    def apply_trigger(
        self, newest: int | None, since_s: float, now_s: float, at_s: float, evaluate: EvaluateTrigger
    ) -> JobReport | None:
        """Set until when its trigger holds back what is outstanding, if it does; the news if it had failed before.

        `since_s`: Unix time since when something may be outstanding.

        Raises IscpError if the trigger fails.
        """
        if self.pace is None:
            return None
        self.pace.delayed_until_s = 0.0
        candidate = self.candidate(now_s)
        if candidate.built and newest is not None and not candidate.outstanding(newest):
            self.pace.settle()
        if not (candidate.built and candidate.outstanding(newest)) or candidate.busy or candidate.failing:
            return None
        self.pace.hold(self.row, newest, since_s, now_s, at_s, evaluate)
        if not self.pace.faults:
            return None
        self.pace.faults = 0
        return self.report(JobEvent.RECOVER, Reason.NONE)

    def candidate(self, now_s: float) -> Candidate:
        return Candidate(
            account=self.row.key.account,
            watermark=self.row.watermark.version,
            busy=self.in_flight != 0 or self.retry_at_s > now_s,
            failing=self.failures > 0,
            near=self.near,
            stale=self.has_to_run,
            group=self.sharing_group,
            waits=self.pace is not None and self.pace.delayed_until_s > now_s,
        )

    def take(self, row: JobRow, backoff: BackoffConfig) -> JobReport | None:
        """Take `row`, this registration's as the owner has it now; progress that it lacks is reported again.

        An owner may have ended before it wrote that down, and a source that stays idle would never lead to a report. A
        row without the fault that was reported says that a person wants another try; of a job that is retried anyway it
        may be from before its first failure, unless it has the error of one. A row with a fault for which it would be
        retried is from before the last failure of a job that is not.
        """
        clean = row.state is not JobState.ERROR and row.reason in (Reason.NONE, Reason.BUILDING)
        resumed = clean and self.failures > 0 and row.status.error_code > 0
        stuck = self.failed or quarantined(backoff, self.faults) or resumed
        # A deletion is tried again when a person requests it again, which clears its error.
        deletes = row.deletion is Deletion.WANTED and row.state is not JobState.ERROR
        if (clean and (stuck or self.row.paused)) or row.spec_json != self.row.spec_json or deletes:
            self.forgive()
            self.stale |= self.doubted_at_s > 0
            if self.pace is not None:
                self.pace.faults = 0
            self.reported_state, self.reported_reason, self.reported_status = row.state, row.reason, None
        lacks_build = self.build is not None and row.watermark.version < 0 and row.build is None
        if lacks_build:
            row = _with_build(row, self.build)
        of_owner, of_node = (row.seq, row.watermark.version), (self.row.seq, self.row.watermark.version)
        marks = self.several.marks if self.several and of_owner <= of_node else row.sources
        behind = of_owner < of_node or marks != row.sources
        self.row = row._replace(watermark=self.row.watermark, seq=self.row.seq) if behind else row
        lacks_end = self.failed and not (row.failed_for_good or row.paused)
        if not (behind or lacks_build or lacks_end):
            return None
        # The owner's may be from before what was reported since, as the fault for which it is not retried.
        last = self.reported_status or row.status
        news = lacks_build or lacks_end or marks != row.sources
        return self.repeat_report(replace(last, sources=marks) if news else None)

    def forgive(self) -> None:
        """Forget that it has failed."""
        self.failed, self.failures, self.retry_at_s = False, 0, 0.0

    @property
    def waits_for(self) -> str:
        """Return what it waits for to refresh what is outstanding, as its last iteration has said; empty: nothing."""
        if self.reported_status is not None:
            return self.reported_status.waits_for
        return self.row.status.waits_for if '"waits_for"' in self.row.status_json else ""

    def note_deleted(self) -> None:
        """Note that the target is gone: the job does nothing any more, and waits to be dropped."""
        self.row = self.row._replace(status_json=replace(self.row.status, deletion=Deletion.DONE).to_json())

    def take_target(self, answer: TargetAnswer, at_s: float) -> JobReport | None:
        """Take what was found at its target; the result of an iteration that runs by now is newer."""
        if not self.idle:
            return None
        self.target = answer.seen
        if answer.error is None:
            return None
        self.stale, self.doubted_at_s = True, self.doubted_at_s or at_s
        version, code, message = self.row.watermark.version, int(answer.error.code), str(answer.error)
        status = JobStatus(version, version, at_s, at_s, code, message, doubted_at_s=self.doubted_at_s)
        return self.report(JobEvent.FAIL, Reason.RETRYING, status)

    def report(self, event: JobEvent, reason: Reason, status: JobStatus | None = None) -> JobReport:
        self.reported_state, self.reported_reason = JOB_STATES.after(self.reported_state, event, self.row.key), reason
        return self.repeat_report(status)

    def repeat_report(self, status: JobStatus | None = None) -> JobReport:
        """Return a report of the state as it was reported last."""
        row = self.row
        if status is not None and self.due_at_s:
            status = replace(status, due_at_s=self.due_at_s)
        if status is not None and self.build:
            status = replace(status, build=self.build)
        self.reported_status = status or self.reported_status
        return JobReport(row.key, row.job_id, row.watermark, row.seq, self.reported_state, self.reported_reason, status)

    def correction(self) -> JobReport | None:
        """Return a report if the row still says that an iteration of an earlier node is under way, else None."""
        if self.row.state not in _UNFINISHED or self.row.reason is Reason.BUILDING:
            return None
        return self.report(JobEvent.TAKE_OVER, self.row.reason)

    @property
    def build(self) -> BuildRequest | None:
        """Return what it has requested, as long as it is not built."""
        return self.row.build

    def request_build(self, wanted: BuildRequest | None) -> None:
        """The row says so from now on, for whatever runs by it; None: it needs none (any more)."""
        if wanted != self.build:
            self.row = _with_build(self.row, wanted)

    def look_for_build(self) -> None:
        """Check the build at once, without waiting: it may have been finished."""
        if self.build and not self.failures:
            self.retry_at_s = 0.0

    def end_wait(self) -> None:
        """End the wait for tables that are behind, as one of the job's has moved."""
        if self.waits_for and not self.failures:
            self.retry_at_s = 0.0

    def wait(self, now_s: float, wait_s: float) -> None:
        self.retry_at_s = now_s + wait_s

    def retry_due_at_s(self, now_s: float, at_s: float) -> float:
        """Return the time of the retry in Unix seconds, at `at_s`; 0 if it waits for none."""
        return at_s + self.retry_at_s - now_s if self.retry_at_s else 0.0

    def note_notice(self, now_s: float) -> None:
        """Note that the source may have changed."""
        self.noticed_s = self.noticed_s or now_s

    def note_seen(self, newest: int | None, now_s: float) -> None:
        """Note that the source is at version `newest`."""
        if newest is None or newest <= self.row.watermark.version:
            self.noticed_s = 0.0
        else:
            self.note_notice(now_s)

    def due_since_s(self, now_s: float) -> float:
        """Return since when an iteration is due that is submitted now; a trigger or a retry has only now let it be."""
        return self.noticed_s if self.noticed_s and self.pace is None and not self.failures else now_s

    def heed_move(self, config: BackoffConfig, now_s: float) -> None:
        """The source has a new version, in which a file that was lost may count no more; no quarantine outlasts that.

        However often it moves, that makes for no more attempts than a job has that is not quarantined.
        """
        self.end_wait()
        if self.file_lost and self.retry_at_s:
            self.retry_at_s = min(self.retry_at_s, now_s + config.cap_s)


def _with_build(row: JobRow, build: BuildRequest | None) -> JobRow:
    return row._replace(status_json=replace(row.status, build=build).to_json())
