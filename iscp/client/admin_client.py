"""The Python client: the verbs of `Admin` with typed results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from iscp.client.channel.attempts import GivenToken
from iscp.client.channel.silent_calls import Caller, listing
from iscp.client.codec.api_messages import (
    CHECKED_JOB,
    HISTORY_ENTRY,
    JOB,
    LEFT_OUT_ROWS,
    REGISTER_RESULT,
    VERIFY_REPORT,
    answer_from_wire,
    cluster_from_wire,
    explanation_from_wire,
    outcome_from_wire,
    search_to_wire,
)
from iscp.client.codec.message_codec import to_request
from iscp.client.request_parts import (
    EXPLAIN_TIMEOUT_S,
    SEARCH_ANSWER_S,
    VIEWS_MAX,
    answer_within_s,
    changed_or_raise,
    changes_request,
    consumer_fields,
    deletion,
    job_filter,
    job_message,
    new_request_id,
    registrations,
    require_all,
    require_positive,
    resync_request,
    search_request,
    spec_text,
    updates_request,
    wait_request,
    with_ids,
    with_wait,
)
from iscp.client.service_clients import AccessClient, BuildClient, FeedClient, OperatorClient
from iscp.model.api.api_requests import (
    WAIT_S,
    ChangeOutcome,
    CheckedJob,
    ClusterView,
    JobChange,
    JobFilter,
    JobName,
    JobView,
    LeftOutRows,
    RegisterRequest,
    RegisterResult,
    SearchAnswer,
    SearchWeights,
    UpdateRequest,
)
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobState, Reason
from iscp.model.job.registration_id import is_pattern
from iscp.model.job.start_rule import VerifyReport
from iscp.model.query_plan import QueryExplanation
from iscp.model.spec.spec import RunFields, to_json, to_spec_json
from iscp.model.spec.spec_parsing import ViewFields, view_of
from iscp.model.values.errors import IscpError
from iscp.model.values.untrusted_values import require, require_seconds
from iscp.system.tls.tls_files import GivenTls
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from iscp.wire.v1 import search_pb2_grpc


class Client:
    """Calls one node at a time; several threads may use it.

    `endpoint` is HOST:PORT (by default ISCP_ENDPOINT, else 127.0.0.1:7430), or several with commas between them: where
    one cannot answer, or reach the owner, the next is called, within the time of the call. `timeout_s` bounds each
    call, which is repeated until then while no node answers or the owner changes; a call that may take longer by itself
    is given up after so long without a node. If `wait_for_ready` is false it fails at once where nobody listens, or
    there is no such host. `notice` is called once in a call that goes on for more than a few seconds, with the error
    and the seconds that are left. Tables are paths, URIs, `db.table` or table ids, as the node sees them: give absolute
    paths. An empty account is the caller's own, or, where callers are not authenticated, `default`.

    All methods raise the errors of iscp.errors that the node raised; Unavailable if it cannot be reached, TimedOut, and
    OutcomeUnknown where a change may or may not have been made. The methods for nodes and shards are in `operator`,
    those for first snapshots that all nodes build in `builds`, those that read feeds in `feeds`, those for tokens and
    the audit in `access`. `token`: a text, or the path of a file with it (by default ISCP_TOKEN, ISCP_TOKEN_FILE).
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: GivenTls = None,
        token: GivenToken = None,
        notice: Callable[[IscpError, float], None] = lambda error, left_s: None,
        wait_for_ready: bool = True,
    ) -> None:
        self._caller = Caller(
            endpoint, timeout_s=timeout_s, tls=tls, token=token, notice=notice, wait_for_ready=wait_for_ready
        )
        self._admin = pb_grpc.AdminStub(self._caller.channel)
        self._search = search_pb2_grpc.SearchStub(self._caller.channel)
        self.operator = OperatorClient(self._caller)
        self.builds = BuildClient(self._caller)
        self.feeds = FeedClient(self._caller)
        self.access = AccessClient(self._caller)

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
        account: str = "",
        **run: Unpack[RunFields],
    ) -> RegisterResult:
        """Create a job; `created` is False where there was one of that name, which is left as it is: `warning` says in
        which fields it differs.

        `adopt_from`: the target is there and holds the source's rows at this version. The first iteration compares
        them; if they differ nothing is written, and the job has failed: `wait` raises JobFailed with the difference.

        `run`: trigger, every, target_lag, priority, … (see iscp.model.spec.spec.RunFields).
        """
        fields = consumer_fields(consumer, target, key, columns, where, options)
        spec_json = to_spec_json({**fields, "adopt_from": adopt_from, **run})
        return self.register_many([RegisterRequest(JobName(table, name, account), spec_json)])[0]

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        target: str,
        tables: Mapping[str, str],
        refresh: str = "",
        deletion_vectors: bool = True,
        hold: float = 0.0,
        waits_for: float | None = None,
        account: str = "",
        **run: Unpack[RunFields],
    ) -> RegisterResult:
        """Create a job that maintains the result of `sql` at `target`; otherwise as `register`.

        `tables` has the place of each table in the query; the job is registered on the first. `refresh`: auto (the
        default), incremental, strict or full. `deletion_vectors`: the target may have them, so that a change rewrites
        none of its files; not all who read Delta tables know them. `hold`: seconds, at most 30 days, for which the
        tables themselves are altered to retain removed files and old commits, until the view is dropped. `waits_for`:
        seconds, at most a day, for which the view waits until tables that follow from one table have come to one
        version of it (None: 10). `every` alone makes it periodic. Raises InvalidRequest for a query that cannot be
        maintained.
        """
        require(tables, Mapping, "tables", "places by the names of the query's tables")
        waits_for_s = None if waits_for is None else require_seconds(waits_for, "waits_for")
        hold_s = require_seconds(hold, "hold")
        view = ViewFields(sql, tables, target, refresh, run, deletion_vectors, hold_s, waits_for_s)
        return self.register_many([RegisterRequest(JobName(view.table, name, account), view.spec_json())])[0]

    def register_many(self, requests: Iterable[RegisterRequest]) -> list[RegisterResult]:
        """Create several jobs, all or none; the results run parallel to `requests`."""
        request = registrations(with_ids(requests, RegisterRequest))
        response = self._caller.call(self._admin.Register, request, changes=True)
        return [REGISTER_RESULT.from_wire(one) for one in response.results]

    def check_many(self, requests: Iterable[RegisterRequest], *, timeout_s: float | None = None) -> list[CheckedJob]:
        """Check the jobs as a registration does; return what each would lead to. Nothing is written."""
        request = registrations(require_all(requests, RegisterRequest))
        response = self._caller.call(self._admin.Check, request, timeout_s=timeout_s)
        return [CHECKED_JOB.from_wire(one) for one in response.checked]

    def unregister(self, table: str, name: str, *, delete_target: bool = False, account: str = "") -> bool:
        """Drop a job; False if there is none. With `delete_target` it is there, paused, until its target is gone."""
        if not delete_target:
            return self._change(self._admin.Unregister, table, name, account)
        return changed_or_raise(self.change_many([deletion(table, name, account)])[0])

    def pause(self, table: str, name: str, *, account: str = "") -> bool:
        """False if it was paused already; raises JobNotFound."""
        return self._change(self._admin.Pause, table, name, account)

    def resume(self, table: str, name: str, *, account: str = "") -> bool:
        """Go on at once; False if it is neither paused nor failing. Raises JobNotFound."""
        return self._change(self._admin.Resume, table, name, account)

    def resync(
        self, table: str, name: str, *, new_table: str = "", spec: str | Mapping[str, Any] = "", account: str = ""
    ) -> RegisterResult:
        """Rebuild the job's target, from `new_table` if its source is there now, with `spec` if that is to change.

        Readers of the target see its old rows until the new ones are published. The job goes on under the new job_id
        in the answer, a failed one too; a paused one stays so, and is built when it is resumed. Raises JobNotFound.
        """
        request = resync_request(JobName(table, name, account), new_table, spec_text(spec))
        response = self._caller.call(self._admin.Resync, request, changes=True)
        return RegisterResult(True, response.job_id, response.table_id, response.warning)

    def update(
        self,
        table: str,
        name: str,
        changes: Mapping[str, Any] | None = None,
        *,
        interrupt: bool = False,
        account: str = "",
        **run: Unpack[RunFields],
    ) -> bool:
        """Change what is given of a job's spec; False if it is so already. Raises JobNotFound, InvalidRequest.

        `run` are the fields as in `register`; `changes` may be given instead: a job_spec with the fields to change,
        None for the default. `interrupt`: what runs or waits by the spec before is cancelled, and starts over.
        """
        changes_json = to_spec_json(run) if changes is None else to_json(changes)
        (outcome,) = self.update_many([UpdateRequest(JobName(table, name, account), changes_json, interrupt)])
        return changed_or_raise(outcome)

    def update_many(self, requests: Iterable[UpdateRequest]) -> list[ChangeOutcome]:
        """Change many jobs' specs, each for itself; as `change_many`."""
        response = self._caller.call(self._admin.UpdateJobs, updates_request(requests), changes=True)
        return [outcome_from_wire(one) for one in response.outcomes]

    def change_many(self, changes: Iterable[JobChange]) -> list[ChangeOutcome]:
        """Unregister, pause, resume and resync many jobs, each for itself; the outcomes run parallel to `changes`.

        Raises OutcomeUnknown where some may have been made: give request ids to be able to repeat the call.
        """
        response = self._caller.call(self._admin.ChangeJobs, changes_request(changes), changes=True)
        return [outcome_from_wire(one) for one in response.outcomes]

    def notify(self, table: str) -> int:
        """Report that the table has just changed, so that it is probed at once; returns how many jobs read it."""
        return int(self._caller.call(self._admin.Notify, to_request(pb.NotifyRequest, table=table)).jobs)

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
        request = to_request(pb.ListJobsRequest, filter=wanted, limit=limit)
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
        wanted = job_filter(account, table, state, reason, table_pattern, name_pattern, late)
        request = to_request(pb.CountJobsRequest, filter=wanted)
        return int(self._caller.call(self._admin.CountJobs, request).jobs)

    def status(self, table: str, name: str, *, account: str = "") -> JobView:
        """Return the job. Raises JobNotFound."""
        request = to_request(pb.GetJobRequest, job=job_message(table, name, account))
        return JOB.from_wire(self._caller.call(self._admin.GetJob, request))

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
        request = wait_request(JobName(table, name, account), version, versions)
        within_s = answer_within_s(timeout_s, "timeout_s")
        return JOB.from_wire(self._caller.call(with_wait(self._admin.WaitJob), request, timeout_s=within_s))

    def verify(
        self, table: str, name: str, *, repair: bool = False, timeout_s: float = 600.0, account: str = ""
    ) -> VerifyReport:
        """Compare the job's target with its source at the job's watermark; `repair` makes it equal.

        Raises TimedOut after `timeout_s`, and the comparison is given up then; JobFailed where there is nothing to
        compare, PermanentError where that cannot be known, JobNotFound.
        """
        request = to_request(pb.VerifyJobRequest, job=job_message(table, name, account), repair=repair)
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
        job, spec_json = job_message(table, name, account), spec_text(spec)
        request = to_request(pb.ExplainConsumerRequest, job=job, spec_json=spec_json)
        within_s = answer_within_s(timeout_s, "timeout_s")
        return explanation_from_wire(self._caller.call(self._admin.ExplainConsumer, request, timeout_s=within_s))

    def explain_view(
        self, sql: str, tables: Mapping[str, str], *, refresh: str = "", timeout_s: float = EXPLAIN_TIMEOUT_S
    ) -> QueryExplanation:
        """Return how `create_view` of this query would maintain its result, as `explain` does."""
        require(tables, Mapping, "tables", "places by the names of the query's tables")
        return self.explain(spec=ViewFields(sql, tables, refresh=refresh).spec_json(), timeout_s=timeout_s)

    def dead_letters(self, table: str, name: str, *, limit: int = 20, account: str = "") -> LeftOutRows:
        """Return up to `limit` of the rows that the job leaves out of its target, with why, in no order."""
        require_positive(limit, "limit")
        request = to_request(pb.DeadLettersRequest, job=job_message(table, name, account), limit=limit)
        return LEFT_OUT_ROWS.from_wire(self._caller.call(self._admin.ListDeadLetters, request))

    def history(self, table: str, name: str, *, limit: int = 20, account: str = "") -> list[HistoryEntry]:
        """Return the job's iterations, newest first."""
        require_positive(limit, "limit")
        request = to_request(pb.HistoryRequest, job=job_message(table, name, account), limit=limit)
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

    def cluster(self) -> ClusterView:
        request = to_request(pb.GetClusterRequest)
        return cluster_from_wire(self._caller.call(listing(self._admin.GetCluster), request))

    def _change(self, method: Callable[..., Any], table: str, name: str, account: str) -> bool:
        job = job_message(table, name, account)
        request = to_request(pb.ChangeJobRequest, job=job, request_id=new_request_id())
        return bool(self._caller.call(method, request, changes=True).changed)
