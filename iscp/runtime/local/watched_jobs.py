"""The jobs of a watch as whoever views its page is shown them: their rows, their tables, their last iterations."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iscp.coordination.protocol.events import Reports, Seen
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.api.api_views import JobView
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason, apply_report
from iscp.core.run.run_result import RunResult
from iscp.core.values.errors import JobNotFound
from iscp.core.values.ids import JobKey, ShardId
from iscp.core.values.watermark import Position
from iscp.ports.system import Clock
from iscp.runtime.admin.job_views import view_of
from iscp.runtime.local.local_run import RequestedJob

HISTORY_MAX = 40
"""Iterations of one job that are remembered, the newest ones."""

ENTRIES_MAX = 40_000
"""Iterations that are remembered of all jobs together. Of more than a thousand jobs each has fewer than HISTORY_MAX,
though at least one.
"""


@dataclass(frozen=True, slots=True)
class _JobKnown:
    """All that is known of one job: `row` and `seen` once it is taken in, before that what was wrong with it."""

    job: RequestedJob
    row: JobRow | None
    seen: SourceSeen | None
    fault: RunResult | None
    again: bool


class WatchedJobs:
    """The jobs by their numbers in the plan. Safe for threads; nothing in it waits.

    `node_id` is the name by which iterations call this process, and for `silent_s` seconds nothing need be heard of a
    table that does not move. `retained_s` says for how long a job's sources retain what was removed.
    """

    def __init__(
        self,
        jobs: Mapping[int, RequestedJob],
        node_id: str,
        clock: Clock,
        retained_s: Callable[[JobRow], float] = lambda row: 0.0,
    ) -> None:
        self.node_id = node_id
        self._jobs = jobs
        self._named: dict[str, list[int]] = {}
        for number, job in sorted(jobs.items()):
            self._named.setdefault(job.planned.name, []).append(number)
        self._clock = clock
        self._retained_s = retained_s
        self._began_at_s = clock.now_s()
        self._history_max = max(1, min(HISTORY_MAX, ENTRIES_MAX // max(1, len(jobs))))
        self._faults: dict[int, tuple[RunResult, bool]] = {}
        self._keys: dict[int, JobKey] = {}
        self._rows: dict[JobKey, JobRow] = {}
        self._seen: dict[ShardId, SourceSeen] = {}
        self._history: dict[JobKey, deque[HistoryEntry]] = {}
        self._lock = threading.Lock()

    # --- what the watch says ---------------------------------------------------------------------------------------

    def refuse(self, number: int, fault: RunResult, *, again: bool) -> None:
        """Note why a job could not be taken in. `again`: that is tried again."""
        with self._lock:
            self._faults[number] = fault, again

    def take(self, number: int, row: JobRow, position: Position | None = None) -> None:
        """Note that a job is taken in. `position` is what its target said, from which the job goes on."""
        if position is not None and row.watermark.version >= 0:
            status = JobStatus(dead_letters=position.dead.rows, sources=position.sources)
            row = row._replace(status_json=status.to_json())
        with self._lock:
            self._faults.pop(number, None)
            self._keys[number], self._rows[row.key] = row.key, row
            self._history[row.key] = deque(maxlen=self._history_max)

    def hear_seen(self, news: Seen) -> None:
        """Note what the schedule has seen of a table."""
        with self._lock:
            self._seen[news.seen.shard] = news.seen

    def hear_reports(self, news: Reports) -> None:
        """Note what the schedule reports of jobs, and of their iterations."""
        with self._lock:
            for report in news.reports:
                if (row := self._rows.get(report.key)) is not None:
                    self._rows[report.key] = apply_report(row, report) or row
            for entry in news.history:
                key = JobKey(entry.account, entry.table_id, entry.job_name)
                if key in self._history:
                    self._history[key].append(entry)

    # --- what is shown ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._jobs)

    def views(self) -> list[JobView]:
        """Return all jobs, in the order in which they are written."""
        numbers = sorted(self._jobs)
        with self._lock:
            known = [self._known(number) for number in numbers]
        return list(map(self._view, numbers, known))

    def view(self, table: str, name: str, account: str) -> JobView:
        """Return one job, by the id, the name or the place of its table. Raises JobNotFound."""
        with self._lock:
            number = self._number(table, name, account)
            known = self._known(number)
        return self._view(number, known)

    def row(self, table: str, name: str, account: str) -> JobRow | None:
        """Return the job's row, by which its target is read; None as long as it is not taken in. Raises JobNotFound."""
        with self._lock:
            key = self._keys.get(self._number(table, name, account))
            return None if key is None else self._rows[key]

    def rows(self) -> list[JobRow]:
        """Return the rows of all jobs that are taken in, in the order in which they are written."""
        with self._lock:
            return [self._rows[self._keys[number]] for number in sorted(self._keys)]

    def at(self, target: str) -> list[JobRow]:
        """Return the rows of the jobs that keep the target at this place, as it is normalized."""
        with self._lock:
            numbers = [number for number in sorted(self._keys) if self._jobs[number].planned.target == target]
            return [self._rows[self._keys[number]] for number in numbers]

    def lagging(self, least_s: float) -> list[JobRow]:
        """Return the rows of the jobs that lag by so many seconds at least, those that lag most first."""
        lags = {view.job_id: view.lag_s for view in self.views() if view.applied_version >= 0}
        found = [row for row in self.rows() if lags.get(row.job_id, -1.0) >= least_s]
        return sorted(found, key=lambda row: lags[row.job_id], reverse=True)

    def requested(self, table: str, name: str, account: str) -> RequestedJob:
        """Return the job as files want it. Raises JobNotFound."""
        with self._lock:
            return self._jobs[self._number(table, name, account)]

    def history(self, table: str, name: str, account: str, limit: int) -> Sequence[HistoryEntry]:
        """Return the job's last iterations, the newest first. Raises JobNotFound."""
        with self._lock:
            key = self._keys.get(self._number(table, name, account))
            return [] if key is None else list(reversed(self._history[key]))[:limit]

    def _number(self, table: str, name: str, account: str) -> int:
        for number in self._named.get(name, ()):
            job, key = self._jobs[number], self._keys.get(number)
            tables = {job.planned.reads[0], job.request.job.table, key.table_id if key is not None else ""}
            if table in tables and account in ("", job.planned.account):
                return number
        raise JobNotFound(f"is none of the jobs of this run: {name!r}", field="job", remedy="See the list of jobs")

    def _known(self, number: int) -> _JobKnown:
        key, (fault, again) = self._keys.get(number), self._faults.get(number, (None, True))
        row, seen = (None, None) if key is None else (self._rows[key], self._seen.get(key.shard))
        return _JobKnown(self._jobs[number], row, seen, fault, again)

    def _view(self, number: int, known: _JobKnown) -> JobView:
        """Return the view; it takes long for ten thousand jobs, and so is made while nobody waits for the lock."""
        if known.row is not None:
            view = view_of(known.row, known.seen, self.node_id, self._clock.now_s())
            return replace(view, retained_s=self._retained_s(known.row))
        job, fault, again = known.job, known.fault, known.again
        status = JobStatus(error_code=fault.error_code, error_msg=fault.error) if fault is not None else JobStatus()
        table = job.planned.reads[0]
        return JobView(
            account=job.planned.account,
            table_id=table,
            table=table,
            name=job.planned.name,
            job_id=f"job-{number}",  # there is none, and boards need what distinguishes it
            spec_json=job.request.spec_json,
            state=JobState.COMPLETED if again else JobState.ERROR,
            reason=Reason.RETRYING if fault is not None and again else Reason.NONE,
            applied_version=-1,
            applied_at_s=0.0,
            source_version=-1,
            checked_at_s=0.0,
            lag_s=-1.0,
            lag_least_s=-1.0,
            seq=0,
            status=status,
            create_at_s=self._began_at_s,
            node_id=self.node_id,
        )
