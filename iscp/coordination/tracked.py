"""What the schedule keeps of each job and table.

Decides how a source's answers change the pace at which it is asked, and what is told of it; when tables are looked
at is the schedule's business. A hundred thousand of these lie idle in one node: slots, and nothing that can be
derived.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from iscp.coordination.messages import SourceSeen
from iscp.coordination.pace import AskTrigger, Pace
from iscp.coordination.schedule_events import Probe, TargetAnswer
from iscp.core.backoff import doubled_s, jittered_s, quarantined
from iscp.core.config import BackoffConfig, ProbeConfig
from iscp.core.errors import ErrorCode, IscpError
from iscp.core.ids import ShardId
from iscp.core.job import JobReport, JobRow, JobState, JobStatus, Reason
from iscp.core.spec import TriggerType
from iscp.core.target import TargetAsk, TargetSeen
from iscp.core.trigger import TARGET_LAG_S, Candidate, Company, ProbeState, company_of, run_spec

_UNFINISHED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELED})


GRIDS_PER_INTERVAL = 20
"""Times within the shortest interval at which sources are asked."""


PROBE_LEAST_S = 0.1
"""No source is asked more often of itself, however small a target lag is."""


TARGETS_EVERY_S = 86_400.0
"""How long a table may stand still without an iteration, which begins with a look at the targets, and renews what their
logs will lose: far less than logs are kept."""


MADE_ANEW_S = 60.0
"""By how much a commit's file may be younger than its commit, which has its time from another clock."""


class TrackedJob:
    """A job as this node runs it.

    `row` is as it was given, but with the newest watermark and seq that are known here. Invariants: `flight` is the
    number of the iteration that it waits for or takes part in (0: none), so there is never more than one;
    `company`, `target_lag_s` and `pace` (None: whenever the source is ahead) are what the spec says of when it runs;
    `retry_at_s` is 0 or the time before which it starts nothing; `failures` counts those in a row. `awaited_spec`: the
    spec that is to end, when it comes, what runs by another one (empty: none). `target`: as it was last seen;
    `doubted_at_s`: as in JobStatus.
    """

    __slots__ = (
        "awaited_spec",
        "company",
        "doubted_at_s",
        "failed",
        "failures",
        "flight",
        "near",
        "pace",
        "retry_at_s",
        "row",
        "stale",
        "target",
        "target_lag_s",
        "told_reason",
        "told_state",
    )

    def __init__(self, row: JobRow, backoff: BackoffConfig) -> None:
        self.row = row
        self.flight = 0
        self.retry_at_s = 0.0
        self.near = False
        self.awaited_spec = ""
        self.target: TargetSeen | None = None
        self.doubted_at_s = row.status.doubted_at_s if "doubted_at" in row.status_json else 0.0
        self.stale = self.doubted_at_s > 0
        self.company = Company.TABLE
        self.target_lag_s: float | None = None
        self.pace: Pace | None = None
        self.failed = row.failed_for_good
        self.failures = {Reason.RETRYING: 1, Reason.QUARANTINED: backoff.quarantine_after}.get(row.reason, 0)
        self.told_state = row.state
        self.told_reason = row.reason

    @property
    def runnable(self) -> bool:
        return not self.failed and not self.row.paused

    @property
    def priority(self) -> int:
        try:
            return self.row.spec.priority
        except IscpError:
            return 0

    @property
    def idle(self) -> bool:
        """Built, and nothing is known that it has to do."""
        built = self.row.watermark.version >= 0
        return built and not (self.flight or self.failures or self.stale) and self.runnable

    @property
    def faults(self) -> int:
        """Failures in a row, of its iterations or of its own trigger."""
        return self.failures or (self.pace.faults if self.pace else 0)

    @property
    def waits_until_s(self) -> float:
        """The time before which it starts nothing, in whatever a retry or its trigger wait for; 0: none."""
        return self.retry_at_s or (self.pace.held_until_s if self.pace else 0.0)

    def go_by_spec(self, now_s: float, at_s: float) -> None:
        """The job is new here, or its spec has changed. One that cannot be read is told of by its next iteration."""
        try:
            spec = run_spec(self.row.spec_json)
        except IscpError:
            spec = None
        self.company = company_of(spec)
        self.target_lag_s = spec.target_lag_s if spec else None
        timed = spec is not None and spec.trigger.job_type in (TriggerType.PERIODIC, TriggerType.CUSTOM)
        self.pace = Pace(spec.trigger, self.row, now_s, at_s) if spec and timed else None
        if self.pace and self.failures and self.row.status.error_code == ErrorCode.TRIGGER_FAILED:
            # Not its iterations have failed, so that no retry of one is due.
            self.pace.faults, self.failures = self.failures, 0

    def heed_trigger(self, newest: int | None, now_s: float, at_s: float, ask: AskTrigger) -> JobReport | None:
        """Set until when its trigger holds back what is outstanding, if it does; the news if it had failed before.

        Raises IscpError if the trigger fails.
        """
        if self.pace is None:
            return None
        self.pace.held_until_s = 0.0
        candidate = self.candidate(now_s)
        if not (candidate.built and candidate.outstanding(newest)) or candidate.busy or candidate.failing:
            return None
        self.pace.hold(self.row, newest, now_s, at_s, ask)
        if not self.pace.faults:
            return None
        self.pace.faults = 0
        return self.report(JobState.COMPLETED, Reason.NONE)

    def candidate(self, now_s: float) -> Candidate:
        return Candidate(
            account=self.row.key.account,
            watermark=self.row.watermark.version,
            busy=self.flight != 0 or self.retry_at_s > now_s,
            failing=self.failures > 0,
            near=self.near,
            stale=self.stale,
            company=self.company,
            held=self.pace is not None and self.pace.held_until_s > now_s,
        )

    def take(self, row: JobRow, backoff: BackoffConfig) -> JobReport | None:
        """`row` is this registration's as the owner has it now; what it lacks of the progress here is told again.

        An owner may have ended before it wrote that down, and a source that stays idle would never tell. A row without
        the fault that was reported says that a person wants another try.
        """
        clean = row.state is not JobState.ERROR and row.reason is Reason.NONE
        stuck = self.failed or quarantined(backoff, self.faults)
        if (clean and (stuck or self.row.paused)) or row.spec_json != self.row.spec_json:
            self.failed, self.failures, self.retry_at_s = False, 0, 0.0
            self.stale |= self.doubted_at_s > 0
            if self.pace is not None:
                self.pace.faults = 0
            self.told_state, self.told_reason = row.state, row.reason
        if (row.seq, row.watermark.version) < (self.row.seq, self.row.watermark.version):
            self.row = row._replace(watermark=self.row.watermark, seq=self.row.seq)
            return self.report(self.told_state, self.told_reason)
        self.row = row
        return None

    def take_look(self, answer: TargetAnswer, at_s: float) -> JobReport | None:
        """What was found at its target; an iteration that runs by now knows better."""
        if not self.idle:
            return None
        self.target = answer.seen
        if answer.error is None:
            return None
        self.stale, self.doubted_at_s = True, self.doubted_at_s or at_s
        version, code, message = self.row.watermark.version, int(answer.error.code), str(answer.error)
        status = JobStatus(version, version, at_s, at_s, code, message, doubted_at_s=self.doubted_at_s)
        return self.report(JobState.ERROR, Reason.RETRYING, status)

    def report(self, state: JobState, reason: Reason, status: JobStatus | None = None) -> JobReport:
        self.told_state, self.told_reason = state, reason
        row = self.row
        return JobReport(row.key, row.job_id, row.watermark, row.seq, state, reason, status)

    def correction(self) -> JobReport | None:
        """Where the row still says that an iteration of an earlier node is under way."""
        if self.row.state not in _UNFINISHED:
            return None
        return self.report(JobState.COMPLETED, self.row.reason)

    def wait(self, now_s: float, wait_s: float) -> None:
        self.retry_at_s = now_s + wait_s


class TrackedTable:
    """The jobs of one shard on one URI, and what is known of that source.

    Invariants: `asked` while a Probe is unanswered; `due_s` is the time at which the table is looked at (inf: not
    before something happens); `flights` counts iterations that have not ended. `wake`: it has to be decided again
    what starts. `waiting`: some job may have to wait for a time. `again`: what is asked now may be answered from
    before a change. `moved`: an iteration ended since the source was asked. `behind_at_s`: Unix time of the oldest
    commit that some job has not applied, as far as known (0: none). `target_lag_s`: the smallest of its jobs'.
    `looked_at_s`: Unix time at which the source was asked for the last answer that came (0: not yet).
    `targets_at_s`: when the targets are doubted, if the source stands still until then (0: it has not stood still yet).
    `rested`: the source stood still when it was last asked; the targets are looked at with it then.
    """

    __slots__ = (
        "again",
        "asked",
        "asked_at_s",
        "behind_at_s",
        "due_s",
        "fault",
        "flights",
        "interval_s",
        "jobs",
        "looked_at_s",
        "moved",
        "probe_at_s",
        "probe_failures",
        "rested",
        "seen",
        "shard",
        "target_lag_s",
        "targets_at_s",
        "told",
        "uri",
        "waiting",
        "wake",
    )

    def __init__(self, shard: ShardId, uri: str) -> None:
        self.shard = shard
        self.uri = uri
        self.jobs: list[TrackedJob] = []
        self.seen: ProbeState | None = None
        self.interval_s = 0.0
        self.probe_at_s = 0.0
        self.due_s = inf
        self.asked = False
        self.asked_at_s = 0.0
        self.looked_at_s = 0.0
        self.again = False
        self.wake = False
        self.waiting = False
        self.moved = False
        self.rested = False
        self.flights = 0
        self.probe_failures = 0
        self.fault = ""
        self.behind_at_s = 0.0
        self.target_lag_s = inf
        self.targets_at_s = 0.0
        self.told: SourceSeen | None = None

    @property
    def top(self) -> int:
        return max((job.row.watermark.version for job in self.jobs), default=-1)

    @property
    def newest(self) -> int | None:
        return self.seen.version if self.seen else None

    def retry_at_s(self) -> float:
        """When the next job may run that has to wait for a time; inf if none does."""
        at_s = inf
        if self.waiting:
            for job in self.jobs:
                if 0.0 < job.waits_until_s < at_s and not job.flight and job.runnable:
                    at_s = job.waits_until_s
            self.waiting = at_s < inf
        return at_s

    def bring_back(self, config: ProbeConfig, now_s: float) -> None:
        """Something has happened: ask at once, and often again."""
        self.interval_s = config.interval_min_s
        self.probe_at_s = now_s
        self.wake = True
        self.again = self.asked
        self.rested = False

    def heed_target_lags(self) -> None:
        """Its jobs have changed."""
        self.target_lag_s = min((job.target_lag_s or inf for job in self.jobs if job.runnable), default=inf)

    def deadline_s(self, jobs: Sequence[TrackedJob], at_s: float) -> float:
        """Unix time by which an iteration of these jobs should have applied what is outstanding for them."""
        applied_at_s = min(job.row.watermark.at_s for job in jobs)
        lag_s = min(TARGET_LAG_S if job.target_lag_s is None else job.target_lag_s for job in jobs)
        return max(self.behind_at_s or at_s, applied_at_s) + lag_s

    def ask(self, at_s: float) -> Probe:
        self.asked, self.again, self.moved = True, False, False
        self.asked_at_s = at_s
        idle = [job for job in self.jobs if job.idle] if self.rested else ()
        return Probe(self.shard, self.uri, self.seen, tuple([TargetAsk(job.row, job.target) for job in idle]))

    def answered(self) -> None:
        """What the answer says was so when the source was asked, and perhaps not any more when the answer came."""
        self.looked_at_s = self.asked_at_s

    def take_looks(self, answers: Sequence[TargetAnswer], at_s: float) -> list[JobReport]:
        """What was found at targets; jobs whose target is in doubt have to run."""
        found = {answer.job_id: answer for answer in answers}
        taken = [job.take_look(found[job.row.job_id], at_s) for job in self.jobs if job.row.job_id in found]
        reports = [report for report in taken if report]
        self.wake |= bool(reports)
        return reports

    def still(self, config: ProbeConfig, now_s: float, draw: float) -> None:
        """The source has not moved; ask ever more rarely."""
        limit_s = min(config.interval_max_s, max(PROBE_LEAST_S, self.target_lag_s / 2))
        interval_s = min(self.interval_s, limit_s)
        # Due times lie on a grid: one wake-up serves all tables due about then.
        grid_s = min(config.interval_min_s, limit_s) / GRIDS_PER_INTERVAL
        self.probe_at_s = min(ceil((now_s + jittered_s(interval_s, draw)) / grid_s) * grid_s, now_s + limit_s)
        self.interval_s = min(2 * interval_s, limit_s)
        self.rested = True
        if now_s >= self.targets_at_s:
            self._doubt_now_and_then(now_s, draw)

    def _doubt_now_and_then(self, now_s: float, draw: float) -> None:
        # At first at a time of its own, as all tables of a node begin to stand still together.
        wait_s = TARGETS_EVERY_S * (1.0 if self.targets_at_s else (1 + draw) / 2)
        if self.targets_at_s:
            self.doubt_targets()
        self.targets_at_s = now_s + wait_s

    def doubt_targets(self) -> None:
        """Every job has to run, even if the source stands still: an iteration begins with a look at the target."""
        self.wake = True
        for job in self.jobs:
            job.stale = True

    def take_state(self, state: ProbeState, config: ProbeConfig, now_s: float, draw: float) -> None:
        seen, self.seen = self.seen, state
        self.probe_failures = 0
        behind = state.version < self.top and not self.moved
        anew = seen is not None and seen.stamp and seen.stamp != state.stamp and state.version <= seen.version
        if behind or anew or (seen is not None and not seen.stamp and self._made_anew(state)):
            self.doubt_targets()
        self.behind_at_s = self.behind_at_s or state.since_s
        self.interval_s = config.interval_min_s
        if not self.again:
            self.still(config, now_s, draw)
        self.again, self.wake, self.rested = False, True, False

    def _made_anew(self, state: ProbeState) -> bool:
        """Whether, at a first look, the version that was applied last was written long after it was applied.

        Nobody looked while it may have been made anew. That a copied file looks so too costs one iteration.
        """
        marks = [job.row.watermark for job in self.jobs]
        applied_at_s = max((mark.at_s for mark in marks if mark.version == state.version), default=0.0)
        return applied_at_s > 0 and state.since_s > applied_at_s + MADE_ANEW_S

    def unreachable(self, config: BackoffConfig, now_s: float, draw: float) -> None:
        self.probe_failures += 1
        if not self.again:
            self.probe_at_s = now_s + doubled_s(config, self.probe_failures, draw)
        self.again = False

    def fault_reports(self, message: str, at_s: float) -> tuple[JobReport, ...]:
        """The source cannot be reached: every job says so, once, until it can be again."""
        if self.fault == message:
            return ()
        self.fault = message
        reports = []
        for job in self.jobs:
            if job.runnable and not job.flight and not job.faults:
                version = job.row.watermark.version
                status = JobStatus(version, version, at_s, at_s, ErrorCode.STORAGE, message)
                reports.append(job.report(JobState.ERROR, Reason.RETRYING, status))
        return tuple(reports)

    def recovery_reports(self) -> tuple[JobReport, ...]:
        if not self.fault:
            return ()
        self.fault = ""
        told = (job for job in self.jobs if job.runnable and not job.faults and job.told_state is JobState.ERROR)
        return tuple(job.report(JobState.COMPLETED, Reason.NONE) for job in told)

    def news(self, at_s: float, every_s: float) -> SourceSeen | None:
        """What is known of the source: when it moved, when a lag begins or ends, and every now and then."""
        if self.seen is None or self.fault or not self.looked_at_s:
            return None
        lag_s = self._lag_s(self.seen, self.looked_at_s)
        told = self.told
        if (
            told is not None
            and told.source_version == self.seen.version
            and (told.lag_s > 0) == (lag_s > 0)
            and 0 <= at_s - told.checked_at_s < every_s
        ):
            return None
        self.told = SourceSeen(self.shard, self.seen.version, self.looked_at_s, lag_s)
        return self.told

    def _lag_s(self, seen: ProbeState, at_s: float) -> float:
        """The age of the oldest commit not applied by some job that is built and not paused; 0 if there is none."""
        slowest = None
        for job in self.jobs:
            mark = job.row.watermark
            if mark.version >= 0 and (slowest is None or mark.version < slowest.version) and not job.row.paused:
                slowest = mark
        if slowest is None or slowest.version >= seen.version:
            self.behind_at_s = 0.0
            return 0.0
        # What is outstanding was committed after what is applied, and with the last change at the latest.
        self.behind_at_s = max(self.behind_at_s or seen.since_s or at_s, slowest.at_s)
        return max(0.001, at_s - self.behind_at_s)
