"""An AdminService in memory: keeps jobs, request ids and a history, and fails as the test sets."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from iscp.model.api.api_requests import (
    Action,
    ChangeOutcome,
    ChangeVerb,
    CheckedJob,
    ClusterView,
    ExplainRequest,
    JobChange,
    JobFilter,
    JobName,
    JobView,
    LeftOutJob,
    LeftOutRows,
    NodeView,
    RegisterRequest,
    RegisterResult,
    ResyncRequest,
    ShardView,
    UpdateRequest,
)
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.job.start_rule import Comparison, VerifyReport
from iscp.model.query_plan import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.model.spec.spec_parsing import changed_spec, parse_spec
from iscp.model.values.errors import InvalidRequest, JobFailed, JobNotFound, TableNotFound, TimedOut
from iscp.model.values.progress import TableSize

CREATED_AT_S = 1_700_000_000.0
CHECKPOINT_AT_S = 1_700_000_500.0
MISSING = "/missing"
ALIVE_S = 0.02
"""How often a wait sees whether its client is still there."""

EXPLANATION = QueryExplanation(
    operators=(
        ExplainedOperator(
            0,
            "sum(total) by name",
            OperatorUpkeep.STATE,
            state="one row for each group",
            costs=(ChangeCost("orders", 1_000, 0),),
        ),
        ExplainedOperator(
            1,
            "full outer join",
            OperatorUpkeep.TOUCHED,
            reason="either side may lack rows",
            remedy="Join inner",
            costs=(ChangeCost("orders", 1_000, 150_000),),
        ),
        ExplainedOperator(2, "orders", OperatorUpkeep.LINEAR, costs=(ChangeCost("orders", 1_000, 0),)),
    ),
    columns={"name": "string", "total": "decimal(20,2)"},
    notes=("Sums of doubles are exact.",),
    sizes={"orders": TableSize(150_000, 2_500_000)},
    kept=(KeptTable("/x/totals", "the result", TableSize(-1, 400)),),
)
"""What is said of every view, but for its tables."""


def table_id_of(table: str) -> str:
    return f"id-of-{table}"


@dataclass
class FakeAdmin:
    """Every table exists but those below MISSING; `source_version` is that of all tables.

    `comparisons` are what is found at jobs of these names; all others are equal. `failures` are raised by the next
    calls, one each, after a change was made if `fail_late` (a lost answer). `before` runs at the start of each
    call with its verb. `asked` counts calls by verb. `warning` is in the answers to registrations.
    `waiting`: how many waits are under way. `absent`: further tables that do not exist.
    `left_out`: rows that each job leaves out. `versions_wanted`: of the last wait. `refreshed`: what entries of the
    history say besides.
    """

    source_version: int = 7
    failures: list[Exception] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    fail_late: bool = False
    before: Callable[[str], object] = lambda verb: None
    asked: dict[str, int] = field(default_factory=dict)
    request_ids: list[str] = field(default_factory=list)
    interrupted: list[JobName] = field(default_factory=list)
    warning: str = ""
    waiting: int = 0
    versions_wanted: dict[str, int] = field(default_factory=dict)
    refreshed: dict[str, Any] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    left_out: LeftOutRows = field(default_factory=LeftOutRows)

    def __post_init__(self) -> None:
        self._moved = threading.Condition()
        self._jobs: dict[tuple[str, str, str], JobView] = {}
        self._answers: dict[str, RegisterResult | bool] = {}
        self._history: dict[str, list[HistoryEntry]] = {}
        self._registered = 0

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        self._enter("register")
        for number, request in enumerate(requests):
            if self._is_missing(request.job.table):
                raise TableNotFound(
                    f"there is no Delta table at {request.job.table}",
                    about=f"requests[{number}].table",
                    remedy="Give the path of a directory that has a _delta_log",
                )
            if not parse_spec(request.spec_json).consumer.target:
                raise InvalidRequest(
                    "is missing", field="spec.iteration.consumer.target", remedy="Say where the replica is kept"
                )
        with self._moved:
            results = [self._register(request) for request in requests]
        self._leave()
        return results

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        for verb in dict.fromkeys(change.verb for change in changes):
            self._enter(verb)
        with self._moved:
            outcomes = [self._change(change) for change in changes]
            self._moved.notify_all()
        self._leave()
        return outcomes

    def _change(self, change: JobChange) -> ChangeOutcome:
        def unregister() -> bool:
            return self._jobs.pop(self._key(change.job), None) is not None

        def set_reason() -> bool:
            found = self._find(change.job)
            reason = Reason.PAUSED if change.verb is ChangeVerb.PAUSE else Reason.NONE
            self._jobs[self._key(change.job)] = replace(found, reason=reason, condition="")
            return found.reason is not reason

        gone = (ChangeVerb.UNREGISTER, ChangeVerb.DELETE_TARGET)
        try:
            if change.verb is ChangeVerb.RESYNC:
                return bool(self._resync(ResyncRequest(change.job, request_id=change.request_id)))
            return self._once(change.request_id, unregister if change.verb in gone else set_reason)
        except JobNotFound as error:
            return error

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        self._enter("check")
        with self._moved:
            return [self._check(request) for request in requests]

    def _check(self, request: RegisterRequest) -> CheckedJob:
        if self._is_missing(request.job.table):
            return CheckedJob(error=TableNotFound(f"there is no Delta table at {request.job.table}", about="table"))
        wanted = parse_spec(request.spec_json)
        made = CheckedJob(Action.CREATE, table_id_of(request.job.table), wanted.to_json())
        there = self._jobs.get(self._key(request.job))
        if there is None:
            return made
        before = parse_spec(there.spec_json)
        kept = Action.UNCHANGED if before == wanted else Action.UPDATE
        action = kept if before.consumer == wanted.consumer else Action.RESYNC
        return replace(made, action=action, job_id=there.job_id, there_id=there.table_id, there_json=before.to_json())

    def resync(self, request: ResyncRequest) -> RegisterResult:
        self._enter("resync")
        with self._moved:
            result = self._resync(request)
        self._leave()
        return result

    def _resync(self, request: ResyncRequest) -> RegisterResult:
        self.request_ids.append(request.request_id)
        if isinstance(earlier := self._answers.get(request.request_id), RegisterResult):
            return earlier
        found = self._find(request.job)
        self._registered += 1
        table = request.table or found.table
        view = replace(
            found,
            table=table,
            table_id=table_id_of(table),
            job_id=f"job-{self._registered}",
            spec_json=request.spec_json or found.spec_json,
            applied_version=-1,
        )
        del self._jobs[self._key(request.job)]
        self._jobs[self._key(replace(request.job, table=table))] = view
        result = self._answers[request.request_id] = RegisterResult(True, view.job_id, view.table_id, self.warning)
        return result

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        self._enter("update")
        with self._moved:
            outcomes = [self._update(request) for request in requests]
            self._moved.notify_all()
        self._leave()
        return outcomes

    def _update(self, request: UpdateRequest) -> ChangeOutcome:
        def change_spec() -> bool:
            found = self._find(request.job)
            spec = changed_spec(found.spec_json, request.changes_json)
            self._jobs[self._key(request.job)] = replace(found, spec_json=spec.to_json())
            self.interrupted += [request.job] * request.interrupt
            return spec != parse_spec(found.spec_json)

        try:
            return self._once(request.request_id, change_spec)
        except InvalidRequest as error:
            return error

    def list_jobs(self, wanted: JobFilter) -> list[JobView]:
        self._enter("list")
        with self._moved:
            return self._matching(wanted)[: wanted.limit]

    def count_jobs(self, wanted: JobFilter) -> int:
        self._enter("count")
        with self._moved:
            return len(self._matching(wanted))

    def status(self, job: JobName) -> JobView:
        self._enter("status")
        with self._moved:
            return self._find(job)

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        self._enter("wait")
        self.versions_wanted = dict(versions or {})
        end_s = time.monotonic() + timeout_s
        with self._moved:
            self.waiting += 1
            try:
                wanted = self.source_version if version is None else version
                while (found := self._find(job)).applied_version < wanted:
                    if found.reason is Reason.PAUSED:
                        raise JobFailed("the job is paused", remedy="Resume it")
                    left_s = end_s - time.monotonic()
                    if left_s <= 0 or not alive():
                        raise TimedOut(f"version {wanted} is not applied yet", remedy="Wait longer")
                    self._moved.wait(min(left_s, ALIVE_S))
                return found
            finally:
                self.waiting -= 1

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        self._enter("verify")
        with self._moved:
            found = self._find(job)
        comparison = self.comparisons.get(found.name, Comparison(rows_source=10, rows_target=10, ranges=1))
        repaired = repair and not comparison.equal
        return VerifyReport(found.applied_version, found.seq + repaired, comparison, repaired=repaired)

    def explain(self, request: ExplainRequest) -> QueryExplanation:
        self._enter("explain")
        with self._moved:
            spec_json = request.spec_json or self._find(request.job).spec_json
        consumer = parse_spec(spec_json).consumer
        if consumer.kind != "view":
            raise InvalidRequest("keeps no query", about="spec.iteration.consumer.kind")
        return replace(EXPLANATION, tables=consumer.options["tables"])

    def dead_letters(self, job: JobName, limit: int) -> LeftOutRows:
        self._enter("dead-letters")
        with self._moved:
            self._find(job)
        return replace(self.left_out, rows=self.left_out.rows[:limit])

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        self._enter("history")
        with self._moved:
            return self._history.get(self._find(job).job_id, [])[::-1][:limit]

    def notify(self, table: str, account: str = "") -> int:
        self._enter("notify")
        with self._moved:
            return len(self._matching(JobFilter(table=table)))

    def cluster(self) -> ClusterView:
        self._enter("cluster")
        with self._moved:
            jobs = list(self._jobs.values())
        tables = sorted(Counter((job.table_id, job.table) for job in jobs).items())
        return ClusterView(
            owner="n1",
            owner_rev=3,
            nodes=(NodeView("n1", 4711, "127.0.0.1:7430", 5, "0.1.0", "running", len(tables), 2, 1, 0.5, 3),),
            shards=tuple(ShardView(table_id, table, "n1", "running", count) for (table_id, table), count in tables),
            jobs=len(jobs),
            lag_max_s=1.5,
            lag_max_least_s=0.5,
            counters={"submitted": 9, "completed": 8, "failed": 1},
            checkpoint_at_s=CHECKPOINT_AT_S,
            left_out=(LeftOutJob("/t", "a", "paused"),),
            left_out_count=12,
            moving=4,
        )

    def delay(self, table: str, name: str, account: str = "default") -> None:
        """The job is past its target lag."""
        with self._moved:
            key = self._key(JobName(table, name, account))
            self._jobs[key] = replace(self._jobs[key], late=True, condition="")

    def show(self, table: str, name: str, account: str = "default", **fields: Any) -> None:
        """The job is as these fields of its view say; its lag is known exactly where one is given alone."""
        if "lag_s" in fields:
            fields = {"lag_least_s": fields["lag_s"]} | fields
        with self._moved:
            key = self._key(JobName(table, name, account))
            self._jobs[key] = replace(self._jobs[key], **{"condition": "", **fields})

    def apply(self, table: str, name: str, version: int, account: str = "default", **status: Any) -> None:
        """An iteration of the job ends at `version`."""
        with self._moved:
            job = self._find(JobName(table, name, account))
            ended = JobStatus(
                job.applied_version, version, CREATED_AT_S, CREATED_AT_S + 1, rows=10, bytes=100, **status
            )
            now = replace(job, applied_version=version, seq=job.seq + 1, status=ended, lag_s=0.0, condition="")
            self._jobs[self._key(JobName(table, name, account))] = now
            self._history.setdefault(job.job_id, []).append(replace(_entry(job, now), **self.refreshed))
            self._moved.notify_all()

    def _is_missing(self, table: str) -> bool:
        return table.startswith(MISSING) or table in self.absent

    def _enter(self, verb: str) -> None:
        with self._moved:
            self.asked[verb] = self.asked.get(verb, 0) + 1
        self.before(verb)
        if not self.fail_late:
            self._leave()

    def _leave(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _once(self, request_id: str, change: Callable[[], bool]) -> bool:
        self.request_ids.append(request_id)
        if request_id not in self._answers:
            self._answers[request_id] = change()
        return bool(self._answers[request_id])

    def _register(self, request: RegisterRequest) -> RegisterResult:
        self.request_ids.append(request.request_id)
        if isinstance(earlier := self._answers.get(request.request_id), RegisterResult):
            return earlier
        job, table_id = request.job, table_id_of(request.job.table)
        if found := self._jobs.get(self._key(job)):
            return RegisterResult(False, found.job_id, table_id)
        self._registered += 1
        view = JobView(
            account=job.account,
            table_id=table_id,
            table=job.table,
            name=job.name,
            job_id=f"job-{self._registered}",
            spec_json=request.spec_json,
            state=JobState.COMPLETED,
            reason=Reason.NONE,
            applied_version=-1,
            applied_at_s=0.0,
            source_version=self.source_version,
            checked_at_s=CREATED_AT_S,
            lag_s=-1.0,
            lag_least_s=-1.0,
            seq=0,
            status=JobStatus(),
            create_at_s=CREATED_AT_S,
            node_id="n1",
        )
        self._jobs[self._key(job)] = view
        result = RegisterResult(True, view.job_id, table_id, self.warning)
        if request.request_id:
            self._answers[request.request_id] = result
        return result

    def _find(self, job: JobName) -> JobView:
        if found := self._jobs.get(self._key(job)):
            return found
        raise JobNotFound(
            f"there is no job {job.name!r} on {job.table}", about="job", remedy="See `iscp-admin job list`"
        )

    @staticmethod
    def _key(job: JobName) -> tuple[str, str, str]:
        return (job.account, job.table.removeprefix(table_id_of("")), job.name)

    def _matching(self, wanted: JobFilter) -> list[JobView]:
        return [
            job
            for _, job in sorted(self._jobs.items())
            if wanted.account in ("", job.account)
            and wanted.table in ("", job.table, job.table_id)
            and wanted.state in (None, job.state)
            and wanted.reason in (None, job.reason)
            and (job.late or not wanted.late)
            and fnmatchcase(job.table, wanted.table_pattern or "*")
            and fnmatchcase(job.name, wanted.name_pattern or "*")
        ]


def _entry(before: JobView, after: JobView) -> HistoryEntry:
    return HistoryEntry(
        account=after.account,
        table_id=after.table_id,
        job_name=after.name,
        job_id=after.job_id,
        seq=after.seq,
        from_version=before.applied_version,
        to_version=after.applied_version,
        start_at_s=after.status.start_at_s,
        end_at_s=after.status.end_at_s,
        source_commit_at_s=CREATED_AT_S,
        error_code=0,
        error_msg="",
        rows=after.status.rows,
        bytes=after.status.bytes,
        data_type="tail",
        node_id=after.node_id,
    )
