"""The Python client: the verbs of `Admin` with typed results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from uuid import uuid4

from iscp.adapters.grpc.admin import convert
from iscp.adapters.grpc.channel.endpoint import FORMAT_VERSION, Tls
from iscp.adapters.grpc.channel.retrying_caller import Caller, listing
from iscp.client.operator_client import OperatorClient
from iscp.core.api_requests import (
    ChangeOutcome,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api_views import CheckedJob, ClusterView, JobView, RegisterResult
from iscp.core.errors import (
    InvalidRequest,
    IscpError,
)
from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobState, Reason
from iscp.core.spec_fields import RunFields, to_spec_json
from iscp.core.verification import VerifyReport
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc

E = TypeVar("E", bound=StrEnum)
Asked = TypeVar("Asked", RegisterRequest, UpdateRequest, JobChange)

WAIT_MARGIN_S = 5.0
"""What the answer to a wait may take beyond the wait itself; then the call has failed."""


class Client:
    """Speaks to one node; may be used by several threads at a time.

    `endpoint` is HOST:PORT (by default ISCP_ENDPOINT, else 127.0.0.1:7430); `timeout_s` bounds each call, its
    retries included. Tables are paths, URIs, `db.table` or table ids, as the node sees them: give absolute paths.
    All methods raise the errors of iscp.core.errors that the node raised; Unavailable if it cannot be reached,
    TimedOut, and OutcomeUnknown where a change may or may not have been made. What concerns nodes and shards is in
    `operator`.
    """

    def __init__(self, endpoint: str | None = None, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        self._caller = Caller(endpoint, timeout_s=timeout_s, tls=tls)
        self._admin = pb_grpc.AdminStub(self._caller.channel)
        self.operator = OperatorClient(self._caller)

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def register(
        self,
        table: str,
        name: str,
        consumer: str = "replica",
        *,
        target: str = "",
        key: Sequence[str] = (),
        columns: Sequence[str] = (),
        where: str = "",
        options: Mapping[str, Any] | None = None,
        adopt_from: int | None = None,
        account: str = DEFAULT_ACCOUNT,
        **run: Unpack[RunFields],
    ) -> RegisterResult:
        """Create a job; `created` is False where there was one of that name, which is left as it is.

        `adopt_from`: the target is there and holds the source's rows at this version. The first iteration compares
        them; if they differ nothing is written, and the job has failed: `wait` raises JobFailed with the difference.

        `run`: trigger, every, target_lag, priority, … (see iscp.core.spec_fields.RunFields).
        """
        keep = {"consumer": consumer, "target": target, "key": list(key) or None, "columns": list(columns) or None}
        spec_json = to_spec_json({**keep, "where": where or None, "options": options, "adopt_from": adopt_from, **run})
        return self.register_many([RegisterRequest(JobName(table, name, account), spec_json)])[0]

    def register_many(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        """Create several jobs, all or none; the results run parallel to `requests`."""
        named = _with_ids(requests)
        request = pb.RegisterRequest(
            format_version=FORMAT_VERSION, registrations=[convert.registration_to_wire(one) for one in named]
        )
        response = self._caller.call(self._admin.Register, request, changes=True)
        return [convert.result_from_wire(one) for one in response.results]

    def check_many(self, requests: Sequence[RegisterRequest], *, timeout_s: float | None = None) -> list[CheckedJob]:
        """What it takes to have the jobs as `requests` say, checked as a registration is; nothing is written."""
        request = pb.RegisterRequest(
            format_version=FORMAT_VERSION, registrations=[convert.registration_to_wire(one) for one in requests]
        )
        response = self._caller.call(self._admin.Check, request, timeout_s=timeout_s)
        return [convert.checked_from_wire(one) for one in response.checked]

    def unregister(self, table: str, name: str, *, account: str = DEFAULT_ACCOUNT) -> bool:
        """Drop a job; False if there is none."""
        return self._change(self._admin.Unregister, JobName(table, name, account))

    def pause(self, table: str, name: str, *, account: str = DEFAULT_ACCOUNT) -> bool:
        """False if it was paused already; raises JobNotFound."""
        return self._change(self._admin.Pause, JobName(table, name, account))

    def resume(self, table: str, name: str, *, account: str = DEFAULT_ACCOUNT) -> bool:
        """False if it was not paused, quarantined or failed; raises JobNotFound."""
        return self._change(self._admin.Resume, JobName(table, name, account))

    def resync(
        self,
        table: str,
        name: str,
        *,
        new_table: str = "",
        spec: str | Mapping[str, Any] = "",
        account: str = DEFAULT_ACCOUNT,
    ) -> RegisterResult:
        """Build the job's target anew, from `new_table` if its source is there now, with `spec` if that is to change.

        Readers of the target see its old rows until the new ones are published. The job goes on under the new job_id
        in the answer, a failed one too; a paused one stays so, and is built when it is resumed. Raises JobNotFound.
        """
        spec_json = spec if isinstance(spec, str) else json.dumps(spec)
        request = ResyncRequest(JobName(table, name, account), new_table, spec_json, _request_id())
        response = self._caller.call(self._admin.Resync, convert.resync_to_wire(request), changes=True)
        return RegisterResult(True, response.job_id, response.table_id, response.warning)

    def update(
        self,
        table: str,
        name: str,
        changes: Mapping[str, Any] | None = None,
        *,
        interrupt: bool = False,
        account: str = DEFAULT_ACCOUNT,
        **run: Unpack[RunFields],
    ) -> bool:
        """Change what is given of a job's spec; False if it is so already. Raises JobNotFound, InvalidRequest.

        `run` are the fields as in `register`; `changes` may be given instead: a job_spec with the fields to change,
        None for the default. `interrupt`: an iteration that runs or waits by the spec before is cancelled, and starts
        over; otherwise it ends first.
        """
        changes_json = to_spec_json(run) if changes is None else json.dumps(changes)
        (outcome,) = self.update_many([UpdateRequest(JobName(table, name, account), changes_json, interrupt)])
        if isinstance(outcome, IscpError):
            raise outcome
        return outcome

    def update_many(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        """Change many jobs' specs, each for itself; as `change_many`."""
        named = _with_ids(requests)
        request = pb.UpdateJobsRequest(
            format_version=FORMAT_VERSION, updates=[convert.update_to_wire(one) for one in named]
        )
        response = self._caller.call(self._admin.UpdateJobs, request, changes=True)
        return [convert.outcome_from_wire(one) for one in response.outcomes]

    def change_many(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        """Unregister, pause, resume and resync many jobs, each for itself; the outcomes run parallel to `changes`.

        Raises OutcomeUnknown where some may have been made: give request ids to be able to repeat the call.
        """
        named = _with_ids(changes)
        request = pb.ChangeJobsRequest(
            format_version=FORMAT_VERSION, changes=[convert.change_to_wire(one) for one in named]
        )
        response = self._caller.call(self._admin.ChangeJobs, request, changes=True)
        return [convert.outcome_from_wire(one) for one in response.outcomes]

    def jobs(
        self,
        *,
        state: JobState | str | None = None,
        reason: Reason | str | None = None,
        table: str = "",
        account: str = "",
        table_pattern: str = "",
        name_pattern: str = "",
        limit: int = JobFilter().limit,
    ) -> list[JobView]:
        """The jobs that match all that is given, `limit` at the most; patterns are shell-style, as `sales.*`."""
        wanted = _filter(account, table, state, reason, table_pattern, name_pattern)
        request = pb.ListJobsRequest(format_version=FORMAT_VERSION, filter=convert.filter_to_wire(wanted), limit=limit)
        pages = self._caller.call(listing(self._admin.ListJobs), request)
        return [convert.job_from_wire(job) for page in pages for job in page.jobs]

    def count(
        self,
        *,
        state: JobState | str | None = None,
        reason: Reason | str | None = None,
        table: str = "",
        account: str = "",
        table_pattern: str = "",
        name_pattern: str = "",
    ) -> int:
        """How many jobs match, as in `jobs`."""
        wanted = convert.filter_to_wire(_filter(account, table, state, reason, table_pattern, name_pattern))
        request = pb.CountJobsRequest(format_version=FORMAT_VERSION, filter=wanted)
        return int(self._caller.call(self._admin.CountJobs, request).jobs)

    def status(self, table: str, name: str, *, account: str = DEFAULT_ACCOUNT) -> JobView:
        """Raises JobNotFound."""
        job = convert.name_to_wire(JobName(table, name, account))
        return convert.job_from_wire(
            self._caller.call(self._admin.GetJob, pb.GetJobRequest(format_version=FORMAT_VERSION, job=job))
        )

    def wait(
        self,
        table: str,
        name: str,
        version: int | None = None,
        *,
        timeout_s: float = 60.0,
        account: str = DEFAULT_ACCOUNT,
    ) -> JobView:
        """Return once the job has applied `version` (None: the table's newest at the call).

        Raises TimedOut after `timeout_s`, JobFailed where it cannot come to that, JobNotFound.
        """
        job = convert.name_to_wire(JobName(table, name, account))

        def attempt(request: pb.WaitJobRequest, *, timeout: float) -> Any:
            request.timeout_s = max(0.0, timeout - WAIT_MARGIN_S)
            return self._admin.WaitJob(request, timeout=timeout)

        request = pb.WaitJobRequest(format_version=FORMAT_VERSION, job=job, version=version)
        return convert.job_from_wire(self._caller.call(attempt, request, timeout_s=timeout_s + WAIT_MARGIN_S))

    def verify(
        self,
        table: str,
        name: str,
        *,
        repair: bool = False,
        timeout_s: float = 600.0,
        account: str = DEFAULT_ACCOUNT,
    ) -> VerifyReport:
        """Compare the job's target with its source at the job's watermark; with `repair` make it equal.

        Raises TimedOut after `timeout_s`, and the comparison is given up then; JobFailed where there is nothing to
        compare, PermanentError where nobody can tell, JobNotFound.
        """
        job = convert.name_to_wire(JobName(table, name, account))

        def attempt(request: pb.VerifyJobRequest, *, timeout: float) -> Any:
            request.timeout_s = max(0.0, timeout - WAIT_MARGIN_S)
            return self._admin.VerifyJob(request, timeout=timeout)

        request = pb.VerifyJobRequest(format_version=FORMAT_VERSION, job=job, repair=repair)
        return convert.report_from_wire(self._caller.call(attempt, request, timeout_s=timeout_s + WAIT_MARGIN_S))

    def history(self, table: str, name: str, *, limit: int = 20, account: str = DEFAULT_ACCOUNT) -> list[HistoryEntry]:
        """The job's iterations, newest first."""
        job = convert.name_to_wire(JobName(table, name, account))
        request = pb.HistoryRequest(format_version=FORMAT_VERSION, job=job, limit=limit)
        pages = self._caller.call(listing(self._admin.History), request)
        return [convert.history_from_wire(entry) for page in pages for entry in page.entries]

    def notify(self, table: str) -> int:
        """Tell that the table has just changed; answers how many jobs are on it."""
        return int(
            self._caller.call(self._admin.Notify, pb.NotifyRequest(format_version=FORMAT_VERSION, table=table)).jobs
        )

    def cluster(self) -> ClusterView:
        request = pb.GetClusterRequest(format_version=FORMAT_VERSION)
        return convert.cluster_from_wire(self._caller.call(listing(self._admin.GetCluster), request))

    def _change(self, method: Callable[..., Any], job: JobName) -> bool:
        request = pb.ChangeJobRequest(
            format_version=FORMAT_VERSION, job=convert.name_to_wire(job), request_id=_request_id()
        )
        return bool(self._caller.call(method, request, changes=True).changed)


def _request_id() -> str:
    return uuid4().hex


def _with_ids(asked: Sequence[Asked]) -> list[Asked]:
    """Each with a request id, so that a retry gets the first answer."""
    return [one if one.request_id else replace(one, request_id=_request_id()) for one in asked]


def _filter(
    account: str,
    table: str,
    state: JobState | str | None,
    reason: Reason | str | None,
    table_pattern: str,
    name_pattern: str,
) -> JobFilter:
    return JobFilter(
        account=account,
        table=table,
        state=_member(JobState, state, "state") if state else None,
        reason=_member(Reason, reason, "reason") if reason else None,
        table_pattern=table_pattern,
        name_pattern=name_pattern,
    )


def _member(kind: type[E], value: str, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{value!r} is not known", field=field, remedy=f"Use {', '.join(kind)}") from None
