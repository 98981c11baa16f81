"""The part of the Python client that reads: jobs and their history, waits for them, comparisons."""

from __future__ import annotations

from iscp.adapters.grpc.admin import convert, convert_views
from iscp.adapters.grpc.channel.endpoint import FORMAT_VERSION
from iscp.adapters.grpc.channel.retrying_caller import Caller, listing
from iscp.client.request_parts import answer_within_s, job_filter, require_positive, with_wait
from iscp.core.api_requests import (
    JobFilter,
    JobName,
)
from iscp.core.api_views import JobView
from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobState, Reason
from iscp.core.verification import VerifyReport
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc


class JobReader:
    """Changes nothing: every call may be repeated."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._admin = pb_grpc.AdminStub(caller.channel)

    def jobs(
        self,
        *,
        state: JobState | str | None = None,
        reason: Reason | str | None = None,
        table: str = "",
        account: str = "",
        table_pattern: str = "",
        name_pattern: str = "",
        late: bool = False,
        limit: int = JobFilter().limit,
    ) -> list[JobView]:
        """The jobs that match all that is given, `limit` at the most; patterns are shell-style, as `sales.*`.

        `late`: only those that lag by more than their target lag.
        """
        require_positive(limit, "limit")
        wanted = job_filter(account, table, state, reason, table_pattern, name_pattern, late)
        request = convert.to_message(
            pb.ListJobsRequest, format_version=FORMAT_VERSION, filter=convert.filter_to_wire(wanted), limit=limit
        )
        pages = self._caller.call(listing(self._admin.ListJobs), request)
        return [convert_views.job_from_wire(job) for page in pages for job in page.jobs]

    def count(
        self,
        *,
        state: JobState | str | None = None,
        reason: Reason | str | None = None,
        table: str = "",
        account: str = "",
        table_pattern: str = "",
        name_pattern: str = "",
        late: bool = False,
    ) -> int:
        """How many jobs match, as in `jobs`."""
        wanted = convert.filter_to_wire(job_filter(account, table, state, reason, table_pattern, name_pattern, late))
        request = convert.to_message(pb.CountJobsRequest, format_version=FORMAT_VERSION, filter=wanted)
        return int(self._caller.call(self._admin.CountJobs, request).jobs)

    def status(self, table: str, name: str, *, account: str = DEFAULT_ACCOUNT) -> JobView:
        """Raises JobNotFound."""
        job = convert.name_to_wire(JobName(table, name, account))
        return convert_views.job_from_wire(
            self._caller.call(
                self._admin.GetJob, convert.to_message(pb.GetJobRequest, format_version=FORMAT_VERSION, job=job)
            )
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
        request = convert.to_message(pb.WaitJobRequest, format_version=FORMAT_VERSION, job=job, version=version)
        within_s = answer_within_s(timeout_s, "timeout_s")
        return convert_views.job_from_wire(
            self._caller.call(with_wait(self._admin.WaitJob), request, timeout_s=within_s)
        )

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
        compare, PermanentError where that cannot be known, JobNotFound.
        """
        job = convert.name_to_wire(JobName(table, name, account))
        request = convert.to_message(pb.VerifyJobRequest, format_version=FORMAT_VERSION, job=job, repair=repair)
        within_s = answer_within_s(timeout_s, "timeout_s")
        return convert_views.report_from_wire(
            self._caller.call(with_wait(self._admin.VerifyJob), request, timeout_s=within_s)
        )

    def history(self, table: str, name: str, *, limit: int = 20, account: str = DEFAULT_ACCOUNT) -> list[HistoryEntry]:
        """The job's iterations, newest first."""
        job = convert.name_to_wire(JobName(table, name, account))
        require_positive(limit, "limit")
        request = convert.to_message(pb.HistoryRequest, format_version=FORMAT_VERSION, job=job, limit=limit)
        pages = self._caller.call(listing(self._admin.History), request)
        return [convert_views.history_from_wire(entry) for page in pages for entry in page.entries]
