"""The part of the Python client that reads: jobs and their history, waits for them, comparisons, searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iscp.adapters.grpc.channel.retrying_caller import Caller, listing
from iscp.adapters.grpc.codec.job_messages import HISTORY_ENTRY, JOB, VERIFY_REPORT
from iscp.adapters.grpc.codec.message_codec import to_message
from iscp.adapters.grpc.codec.query_messages import explanation_from_wire
from iscp.adapters.grpc.codec.request_messages import JOB_FILTER, JOB_NAME
from iscp.adapters.grpc.codec.search_messages import answer_from_wire, search_to_wire
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.client.request_parts import (
    SEARCH_ANSWER_S,
    answer_within_s,
    job_filter,
    require_positive,
    search_request,
    with_wait,
)
from iscp.core.api.api_requests import (
    JobFilter,
    JobName,
)
from iscp.core.api.api_views import JobView
from iscp.core.api.search_views import WAIT_S, SearchAnswer, SearchWeights
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobState, Reason
from iscp.core.job.name_patterns import is_pattern
from iscp.core.job.verification import VerifyReport
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.spec.spec_fields import to_json
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.argument_checks import require
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from iscp.wire.v1 import search_pb2_grpc

VIEWS_MAX = 1_000_000
"""Jobs among which views are searched; those beyond are not found."""

EXPLAIN_TIMEOUT_S = 120.0
"""How long a node may take to explain a query, which Spark analyses; then the call fails with TimedOut."""


class JobReader:
    """Changes nothing: every call may be repeated."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._admin = pb_grpc.AdminStub(caller.channel)
        self._search = search_pb2_grpc.SearchStub(caller.channel)

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
        request = to_message(
            pb.ListJobsRequest, format_version=FORMAT_VERSION, filter=JOB_FILTER.to_wire(wanted), limit=limit
        )
        pages = self._caller.call(listing(self._admin.ListJobs), request)
        return [JOB.from_wire(job) for page in pages for job in page.jobs]

    def views(self, name: str = "", *, table: str = "", account: str = "") -> list[JobView]:
        """Return the jobs that maintain materialized views, all or those of this name; several tables may have one of
        it each.
        """
        require(name, str, "name", "a text")
        named = "" if is_pattern(name) else name
        jobs = self.jobs(table=table, account=account, name_pattern=named, limit=VIEWS_MAX)
        return [job for job in jobs if name in ("", job.name) and view_of(job.spec_json) is not None]

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
        """Return how many jobs match, as in `jobs`."""
        wanted = JOB_FILTER.to_wire(job_filter(account, table, state, reason, table_pattern, name_pattern, late))
        request = to_message(pb.CountJobsRequest, format_version=FORMAT_VERSION, filter=wanted)
        return int(self._caller.call(self._admin.CountJobs, request).jobs)

    def status(self, table: str, name: str, *, account: str = "") -> JobView:
        """Return the job. Raises JobNotFound."""
        job = JOB_NAME.to_wire(JobName(table, name, account))
        return JOB.from_wire(
            self._caller.call(self._admin.GetJob, to_message(pb.GetJobRequest, format_version=FORMAT_VERSION, job=job))
        )

    def wait(
        self,
        table: str,
        name: str,
        version: int | None = None,
        *,
        versions: Mapping[str, int] | None = None,
        timeout_s: float = 60.0,
        account: str = "",
    ) -> JobView:
        """Return once the job has applied `version` (None: the table's newest at the call).

        `versions` are for a job of several tables, by the names that its spec gives them or by URI; for tables that are
        left out it is the newest. Raises TimedOut after `timeout_s`, JobFailed where it cannot come to that,
        JobNotFound.
        """
        job = JOB_NAME.to_wire(JobName(table, name, account))
        require(versions, (Mapping, type(None)), "versions", "versions by the names of tables")
        named = (versions or {}).items()
        wanted = [to_message(pb.TableVersion, table=each, version=number) for each, number in named]
        request = to_message(
            pb.WaitJobRequest, format_version=FORMAT_VERSION, job=job, version=version, versions=wanted
        )
        within_s = answer_within_s(timeout_s, "timeout_s")
        return JOB.from_wire(self._caller.call(with_wait(self._admin.WaitJob), request, timeout_s=within_s))

    def verify(
        self,
        table: str,
        name: str,
        *,
        repair: bool = False,
        timeout_s: float = 600.0,
        account: str = "",
    ) -> VerifyReport:
        """Compare the job's target with its source at the job's watermark; `repair` makes it equal.

        Raises TimedOut after `timeout_s`, and the comparison is given up then; JobFailed where there is nothing to
        compare, PermanentError where that cannot be known, JobNotFound.
        """
        job = JOB_NAME.to_wire(JobName(table, name, account))
        request = to_message(pb.VerifyJobRequest, format_version=FORMAT_VERSION, job=job, repair=repair)
        within_s = answer_within_s(timeout_s, "timeout_s")
        return VERIFY_REPORT.from_wire(self._caller.call(with_wait(self._admin.VerifyJob), request, timeout_s=within_s))

    def explain(
        self,
        table: str = "",
        name: str = "",
        *,
        spec: str | Mapping[str, Any] = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
        account: str = "",
    ) -> QueryExplanation:
        """Return how a job maintains the result of its query, or a consumer with this job_spec would, operator by
        operator.

        Raises InvalidRequest for a query that cannot be maintained, and where the consumer has none; JobNotFound.
        """
        request = to_message(
            pb.ExplainConsumerRequest,
            format_version=FORMAT_VERSION,
            job=JOB_NAME.to_wire(JobName(table, name, account)),
            spec_json=spec if isinstance(spec, str) else to_json(spec),
        )
        within_s = answer_within_s(timeout_s, "timeout_s")
        return explanation_from_wire(self._caller.call(self._admin.ExplainConsumer, request, timeout_s=within_s))

    def explain_view(
        self, sql: str, tables: Mapping[str, str], *, refresh: str = "", timeout_s: float = EXPLAIN_TIMEOUT_S
    ) -> QueryExplanation:
        """Return how `create_view` of this query would maintain its result, as `explain` does."""
        require(tables, Mapping, "tables", "places by the names of the query's tables")
        return self.explain(spec=ViewFields(sql, tables, refresh=refresh).spec_json(), timeout_s=timeout_s)

    def history(self, table: str, name: str, *, limit: int = 20, account: str = "") -> list[HistoryEntry]:
        """Return the job's iterations, newest first."""
        job = JOB_NAME.to_wire(JobName(table, name, account))
        require_positive(limit, "limit")
        request = to_message(pb.HistoryRequest, format_version=FORMAT_VERSION, job=job, limit=limit)
        pages = self._caller.call(listing(self._admin.History), request)
        return [HISTORY_ENTRY.from_wire(entry) for page in pages for entry in page.entries]

    def search(
        self,
        uri: str,
        text: str = "",
        *,
        vector: Sequence[float] = (),
        k: int = 10,
        filter: str = "",  # noqa: A002  (as the library names it)
        min_version: int | None = None,
        wait_s: float = WAIT_S,
        columns: Sequence[str] | None = None,
        highlight: bool = False,
        explain: bool = False,
        weights: SearchWeights | None = None,
        account: str = "",
    ) -> SearchAnswer:
        """Return the best `k` rows of the index at `uri`, the target of a job, for a text, a vector, or both.

        `filter` is a SQL condition on stored columns, and `columns` are those that hits show (None: all). With
        `min_version` the call waits up to `wait_s` seconds until the index has this version of its source. Keys and
        columns are as JSON has them. Raises TableNotFound where no job maintains an index there, InvalidRequest for a
        search that it cannot answer, TimedOut, JobFailed.
        """
        wanted = search_request(uri, text, vector, k, filter, min_version, wait_s, columns, highlight, explain, weights)
        within_s = answer_within_s(wait_s, "wait_s", SEARCH_ANSWER_S)
        method = with_wait(self._search.Search, SEARCH_ANSWER_S)
        return answer_from_wire(self._caller.call(method, search_to_wire(wanted, account), timeout_s=within_s))
