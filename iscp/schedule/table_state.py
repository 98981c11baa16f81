"""The state that the schedule stores of each table.

The table decides how a source's answers change the pace at which it is probed, and what is reported of it; when tables
are visited is the schedule's business. A hundred thousand of these lie idle in one node: slots, and nothing that can be
derived.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isfinite

from iscp.model.job.job_row import JobReport, JobState, JobStatus, Reason
from iscp.model.job.start_rule import TARGET_LAG_S, ProbeState, TargetQuery
from iscp.model.protocol.messages import SourceSeen
from iscp.model.settings.config import BackoffConfig, ProbeConfig, doubled_s, jittered_s
from iscp.model.values.errors import ErrorCode
from iscp.model.values.ids import ShardId
from iscp.schedule.lag import BehindVersions, FurtherAnswer, FurtherTables, ProbeTimes, SeveralTables, commit_time_s
from iscp.schedule.reports import JobEvent
from iscp.schedule.schedule_events import Probe, TargetAnswer
from iscp.schedule.tracked_job import TrackedJob

GRIDS_PER_INTERVAL = 20
"""Times within the shortest interval at which sources are probed: those due about the same time go together."""


PROBE_LEAST_S = 0.1
"""Least seconds between two probes of a source, however small a target lag is."""


TARGETS_EVERY_S = 86_400.0
"""Seconds that a table may stay without an iteration; then one checks its targets, and renews what their logs will
lose: far less than logs are retained.
"""


RECREATED_AFTER_S = 60.0
"""Seconds by which a commit's file may be younger than its commit, which has its time from another clock; beyond it the
source counts as recreated.
"""


def target_lag_s(job: TrackedJob) -> float:
    return TARGET_LAG_S if job.target_lag_s is None else job.target_lag_s


class TrackedTable:
    """The jobs of one shard on one URI, and what is known of that source.

    Invariants: `probing` while a Probe is unanswered; `due_s` is the time at which the table is visited (inf: not
    before something happens); `in_flight` counts iterations that have not ended. `wake`: it has to be decided again
    what starts. `waiting`: some job may have to wait for a time. `deletes`: one may have to delete its target.
    `again`: what is probed now may be answered from before a change. `ran_since_probe`: an iteration ended since the
    source was probed. `behind`: what is known of the versions beyond which some job has not come (None: there is none).
    `target_lag_s`: the smallest of its jobs' (inf: none runs).
    `probed_s`: monotonic time of the last probe that was answered (-inf: none was); `reported_s` of the one that was
    reported last.
    `targets_at_s`: when the targets are doubted, if the source does not move until then (0: it has moved ever since).
    `rested`: the source had not moved when it was last probed; the targets are probed with it then.
    `fault`: why it could not be probed, or cannot (empty: it can). `overdue`: what is probed now should have been
    answered by now.
    """

    __slots__ = (
        "again",
        "behind",
        "deletes",
        "due_s",
        "fault",
        "further",
        "in_flight",
        "interval_s",
        "jobs",
        "overdue",
        "probe_at_s",
        "probe_failures",
        "probe_sent_s",
        "probed_s",
        "probing",
        "ran_since_probe",
        "reported",
        "reported_s",
        "rested",
        "seen",
        "shard",
        "target_lag_s",
        "targets_at_s",
        "uri",
        "waiting",
        "wake",
    )

    def __init__(self, shard: ShardId, uri: str) -> None:
        self.shard = shard
        self.uri = uri
        self.jobs: tuple[TrackedJob, ...] = ()
        self.seen: ProbeState | None = None
        self.interval_s = 0.0
        self.probe_at_s = 0.0
        self.due_s = inf
        self.probing = False
        self.probe_sent_s = 0.0
        self.probed_s = -inf
        self.again = False
        self.overdue = False
        self.wake = False
        self.deletes = False
        self.waiting = False
        self.ran_since_probe = False
        self.rested = False
        self.in_flight = 0
        self.probe_failures = 0
        self.fault = ""
        self.behind: BehindVersions | None = None
        self.target_lag_s = inf
        self.targets_at_s = 0.0
        self.reported: SourceSeen | None = None
        self.reported_s = -inf
        self.further: FurtherTables | None = None

    @property
    def top(self) -> int:
        return max((job.row.watermark.version for job in self.jobs), default=-1)

    @property
    def newest(self) -> int | None:
        return self.seen.version if self.seen else None

    @property
    def unreachable(self) -> bool:
        """Return whether the storage does not answer: what is started would wait for it as well."""
        return self.overdue and bool(self.fault)

    def retry_at_s(self) -> float:
        """Return when the next job may run that has to wait for a time; inf if none does."""
        at_s = inf
        if self.waiting:
            for job in self.jobs:
                if 0.0 < job.wakes_at_s < at_s and not job.in_flight and (job.runnable or job.ends_with_target):
                    at_s = job.wakes_at_s
            self.waiting = at_s < inf
        return at_s

    def bring_back(self, config: ProbeConfig, now_s: float) -> None:
        """Probe at once, and often again, after something has happened."""
        self.interval_s = config.interval_min_s
        self.probe_at_s = now_s
        self.wake = True
        self.again = self.probing
        self.rested = False

    def update_target_lag(self) -> None:
        """Compute what follows from the jobs, after they have changed."""
        self.target_lag_s = min((target_lag_s(job) for job in self.jobs if job.runnable), default=inf)
        self.deletes = any(job.ends_with_target for job in self.jobs)
        several = self.jobs_of_several()
        self.further = (self.further or FurtherTables()) if several else None
        if self.further:
            self.further.keep(several)

    def jobs_of_several(self) -> list[SeveralTables]:
        return [job.several for job in self.jobs if job.several]

    def deadline_s(self, jobs: Sequence[TrackedJob], now_s: float, at_s: float) -> float:
        """Return the Unix time by which an iteration of these jobs should have applied what is outstanding for them."""
        since_s = self._since_s(min(job.row.watermark.version for job in jobs))
        return (at_s - now_s + since_s if isfinite(since_s) else at_s) + min(map(target_lag_s, jobs))

    def outstanding_since_s(self, job: TrackedJob, now_s: float, at_s: float) -> float:
        """Return the Unix time of the oldest commit that the job may not have applied; `at_s` where none is known."""
        known = [self._since_s(job.row.watermark.version)]
        if self.further and job.several:
            known += [self.further.since_s(uri, job.several.version(uri)) for uri in job.several.further]
        return at_s - now_s + min(filter(isfinite, known), default=now_s)

    def _since_s(self, version: int) -> float:
        """Return when the oldest commit after `version` was made: inf if there is none, -inf if nobody knows."""
        if self.newest is None or self.newest <= version:
            return inf
        return self.behind.since_s(version, -inf) if self.behind else -inf

    def begin_probe(self, now_s: float) -> Probe:
        self.probing, self.again, self.ran_since_probe = True, False, False
        self.probe_sent_s = now_s
        idle = [job for job in self.jobs if job.idle] if self.rested else ()
        queries = tuple([TargetQuery(job.row, job.target) for job in idle])
        account, further = self.jobs[0].row.key.account, self.further.queries() if self.further else ()
        return Probe(self.shard, self.uri, self.seen, account, queries, further)

    def note_answer(
        self, state: ProbeState | None, further: Sequence[FurtherAnswer], now_s: float, at_s: float
    ) -> None:
        """Note an answer: the source was so when it was probed, and perhaps not any more when the answer came."""
        self.probing = self.overdue = False
        if state is None:
            return
        if self.further:
            self.further.note_probed(further, ProbeTimes(self.probe_sent_s, now_s, at_s))
        if state is not self.seen and self.seen is not None:
            self._note_version(self.seen.version, state, ProbeTimes(self.probe_sent_s, now_s, at_s))
        self.probed_s = self.probe_sent_s

    def _note_version(self, before: int, state: ProbeState, times: ProbeTimes) -> None:
        if state.version < before:  # it is another table
            self.behind = None
        elif state.version > before:
            self.behind = self.behind or BehindVersions()
            self.behind.note(before, commit_time_s(times.of_unix(state.since_s), self.probed_s, times.now_s))

    def take_targets(self, answers: Sequence[TargetAnswer], at_s: float) -> list[JobReport]:
        """Take what was found at targets, and return reports; jobs whose target is in doubt have to run."""
        found = {answer.job_id: answer for answer in answers}
        taken = [job.take_target(found[job.row.job_id], at_s) for job in self.jobs if job.row.job_id in found]
        reports = [report for report in taken if report]
        self.wake |= bool(reports)
        return reports

    def take_further(self, answers: Sequence[FurtherAnswer], config: ProbeConfig) -> None:
        """Take what was found at further tables that have moved: their jobs have to run, and the tables are probed
        often again.
        """
        if self.further is None:
            return
        doubted = self.further.take(answers, self.jobs_of_several(), ran_since_probe=self.ran_since_probe)
        for job in self.jobs:
            job.stale |= job.several is not None and not doubted.isdisjoint(job.several.further)
            job.end_wait()
        if any(answer.state for answer in answers):
            self.interval_s = config.interval_min_s
        self.wake = True

    def rest(self, config: ProbeConfig, now_s: float, draw: float) -> None:
        """The source has not moved; probe ever more rarely, but twice at least within the smallest target lag."""
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
        # At first at a time of its own, as all tables of a node come to rest together.
        wait_s = TARGETS_EVERY_S * (1.0 if self.targets_at_s else (1 + draw) / 2)
        if self.targets_at_s:
            self.doubt_targets()
        self.targets_at_s = now_s + wait_s

    def doubt_targets(self) -> None:
        """Every job has to run, even if the source does not move: an iteration begins by checking the target."""
        self.wake = True
        for job in self.jobs:
            job.stale = True

    def heed_move(self, config: BackoffConfig, now_s: float) -> None:
        for job in self.jobs:
            job.heed_move(config, now_s)
        self.note_seen(now_s)

    def note_seen(self, now_s: float) -> None:
        """Note which jobs have something to apply of the source as it was seen last."""
        for job in self.jobs:
            job.note_seen(self.newest, now_s)

    def take_state(self, state: ProbeState, config: ProbeConfig, now_s: float, draw: float) -> None:
        seen, self.seen = self.seen, state
        self.probe_failures = 0
        behind = state.version < self.top and not self.ran_since_probe
        recreated = seen is not None and seen.stamp and seen.stamp != state.stamp and state.version <= seen.version
        if behind or recreated or (seen is not None and not seen.stamp and self._looks_recreated(state)):
            self.doubt_targets()
        self.interval_s = config.interval_min_s
        if not self.again:
            self.rest(config, now_s, draw)
        self.again, self.wake, self.rested = False, True, False

    def _looks_recreated(self, state: ProbeState) -> bool:
        """Return whether, at a first probe, the version that was applied last was written long after it was applied.

        No probe ran while the source may have been recreated. A copied file seems recreated too, which costs one
        iteration.
        """
        marks = [job.row.watermark for job in self.jobs]
        applied_at_s = max((mark.at_s for mark in marks if mark.version == state.version), default=0.0)
        return applied_at_s > 0 and state.since_s > applied_at_s + RECREATED_AFTER_S

    def note_unreachable(self, config: BackoffConfig, now_s: float, draw: float) -> None:
        self.probe_failures += 1
        if not self.again:
            self.probe_at_s = now_s + doubled_s(config, self.probe_failures, draw)
        self.again = False

    def note_fault(self, message: str, at_s: float) -> tuple[JobReport, ...]:
        """Note that the source cannot be reached: every job reports so, once, until it can be again."""
        if self.fault == message:
            return ()
        self.fault = message
        return self._fault_reports(self.jobs, at_s)

    def fault_reports(self, at_s: float) -> tuple[JobReport, ...]:
        """Return reports of the table's fault for jobs that came later."""
        return self._fault_reports([job for job in self.jobs if job.reported_state is not JobState.ERROR], at_s)

    def _fault_reports(self, jobs: Sequence[TrackedJob], at_s: float) -> tuple[JobReport, ...]:
        reports = []
        for job in jobs:
            if job.runnable and not job.in_flight and not job.faults:
                version = job.row.watermark.version
                status = JobStatus(version, version, at_s, at_s, ErrorCode.STORAGE, self.fault)
                reports.append(job.report(JobEvent.FAIL, Reason.RETRYING, status))
        return tuple(reports)

    def recovery_reports(self) -> tuple[JobReport, ...]:
        if not self.fault:
            return ()
        self.fault = ""
        failed = (job for job in self.jobs if job.runnable and not job.faults and job.reported_state is JobState.ERROR)
        return tuple(job.report(JobEvent.RECOVER, Reason.NONE) for job in failed)
