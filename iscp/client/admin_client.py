"""The Python client: the verbs of `Admin` with typed results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from iscp.adapters.grpc.channel.caller_token import GivenToken
from iscp.adapters.grpc.channel.retrying_caller import Caller, listing
from iscp.adapters.grpc.codec.cluster_messages import cluster_from_wire
from iscp.adapters.grpc.codec.message_codec import to_message
from iscp.adapters.grpc.codec.request_messages import (
    CHECKED_JOB,
    JOB_CHANGE,
    JOB_NAME,
    JOB_UPDATE,
    REGISTER_RESULT,
    REGISTRATION,
    RESYNC,
    outcome_from_wire,
)
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.adapters.tls.tls_files import GivenTls
from iscp.client.access_client import AccessClient
from iscp.client.build_client import BuildClient
from iscp.client.job_reader import JobReader
from iscp.client.operator_client import OperatorClient
from iscp.client.request_parts import new_request_id, require_all, with_ids
from iscp.core.api.api_requests import (
    ChangeOutcome,
    JobChange,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api.api_views import CheckedJob, ClusterView, RegisterResult
from iscp.core.spec.spec_fields import RunFields, to_json, to_spec_json
from iscp.core.spec.view_fields import ViewFields
from iscp.core.values.argument_checks import column_names, require, require_seconds
from iscp.core.values.errors import IscpError
from iscp.wire.v1 import admin_pb2 as pb


class Client(JobReader):
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
    those for first snapshots that all nodes build in `builds`, and those for tokens and the audit in `access`. `token`:
    a text, or the path of a file that has it (by default ISCP_TOKEN, ISCP_TOKEN_FILE).
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
        super().__init__(
            Caller(endpoint, timeout_s=timeout_s, tls=tls, token=token, notice=notice, wait_for_ready=wait_for_ready)
        )
        self.operator = OperatorClient(self._caller)
        self.builds = BuildClient(self._caller)
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
        """Create a job; `created` is False where there was one of that name, which is left as it is.

        `adopt_from`: the target is there and holds the source's rows at this version. The first iteration compares
        them; if they differ nothing is written, and the job has failed: `wait` raises JobFailed with the difference.

        `run`: trigger, every, target_lag, priority, … (see iscp.core.spec.spec_fields.RunFields).
        """
        lists = {"key": column_names(key, "key") or None, "columns": column_names(columns, "columns") or None}
        keep = {"consumer": consumer, "target": target, **lists}
        spec_json = to_spec_json({**keep, "where": where or None, "options": options, "adopt_from": adopt_from, **run})
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
        account: str = "",
        **run: Unpack[RunFields],
    ) -> RegisterResult:
        """Create a job that maintains the result of `sql` at `target`; otherwise as `register`.

        `tables` has the place of each table in the query; the job is registered on the first. `refresh`: auto (the
        default), incremental, strict or full. `deletion_vectors`: the target may have them, so that a change rewrites
        none of its files; not all who read Delta tables know them. `hold`: seconds, at most 30 days, for which the
        tables themselves are altered to retain removed files and old commits, until the view is dropped. `every` alone
        makes it periodic. Raises InvalidRequest for a query that cannot be maintained.
        """
        require(tables, Mapping, "tables", "places by the names of the query's tables")
        view = ViewFields(sql, tables, target, refresh, run, deletion_vectors, require_seconds(hold, "hold"))
        return self.register_many([RegisterRequest(JobName(view.table, name, account), view.spec_json())])[0]

    def register_many(self, requests: Iterable[RegisterRequest]) -> list[RegisterResult]:
        """Create several jobs, all or none; the results run parallel to `requests`."""
        named = with_ids(requests, RegisterRequest)
        request = to_message(
            pb.RegisterRequest,
            format_version=FORMAT_VERSION,
            registrations=[REGISTRATION.to_wire(one) for one in named],
        )
        response = self._caller.call(self._admin.Register, request, changes=True)
        return [REGISTER_RESULT.from_wire(one) for one in response.results]

    def check_many(self, requests: Iterable[RegisterRequest], *, timeout_s: float | None = None) -> list[CheckedJob]:
        """Check the jobs as a registration does, and return what each of `requests` would lead to; nothing is
        written.
        """
        request = to_message(
            pb.RegisterRequest,
            format_version=FORMAT_VERSION,
            registrations=[REGISTRATION.to_wire(one) for one in require_all(requests, RegisterRequest)],
        )
        response = self._caller.call(self._admin.Check, request, timeout_s=timeout_s)
        return [CHECKED_JOB.from_wire(one) for one in response.checked]

    def unregister(self, table: str, name: str, *, account: str = "") -> bool:
        """Drop a job; False if there is none."""
        return self._change(self._admin.Unregister, JobName(table, name, account))

    def pause(self, table: str, name: str, *, account: str = "") -> bool:
        """False if it was paused already; raises JobNotFound."""
        return self._change(self._admin.Pause, JobName(table, name, account))

    def resume(self, table: str, name: str, *, account: str = "") -> bool:
        """Go on at once; False if it is neither paused nor failing. Raises JobNotFound."""
        return self._change(self._admin.Resume, JobName(table, name, account))

    def resync(
        self,
        table: str,
        name: str,
        *,
        new_table: str = "",
        spec: str | Mapping[str, Any] = "",
        account: str = "",
    ) -> RegisterResult:
        """Rebuild the job's target, from `new_table` if its source is there now, with `spec` if that is to change.

        Readers of the target see its old rows until the new ones are published. The job goes on under the new job_id
        in the answer, a failed one too; a paused one stays so, and is built when it is resumed. Raises JobNotFound.
        """
        spec_json = spec if isinstance(spec, str) else to_json(spec)
        request = ResyncRequest(JobName(table, name, account), new_table, spec_json, new_request_id())
        response = self._caller.call(
            self._admin.Resync, RESYNC.to_wire(request, format_version=FORMAT_VERSION), changes=True
        )
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
        None for the default. `interrupt`: an iteration that runs or waits by the spec before is cancelled, and starts
        over; otherwise it ends first.
        """
        changes_json = to_spec_json(run) if changes is None else to_json(changes)
        (outcome,) = self.update_many([UpdateRequest(JobName(table, name, account), changes_json, interrupt)])
        if isinstance(outcome, IscpError):
            raise outcome
        return outcome

    def update_many(self, requests: Iterable[UpdateRequest]) -> list[ChangeOutcome]:
        """Change many jobs' specs, each for itself; as `change_many`."""
        named = with_ids(requests, UpdateRequest)
        request = to_message(
            pb.UpdateJobsRequest, format_version=FORMAT_VERSION, updates=[JOB_UPDATE.to_wire(one) for one in named]
        )
        response = self._caller.call(self._admin.UpdateJobs, request, changes=True)
        return [outcome_from_wire(one) for one in response.outcomes]

    def change_many(self, changes: Iterable[JobChange]) -> list[ChangeOutcome]:
        """Unregister, pause, resume and resync many jobs, each for itself; the outcomes run parallel to `changes`.

        Raises OutcomeUnknown where some may have been made: give request ids to be able to repeat the call.
        """
        named = with_ids(changes, JobChange)
        request = to_message(
            pb.ChangeJobsRequest, format_version=FORMAT_VERSION, changes=[JOB_CHANGE.to_wire(one) for one in named]
        )
        response = self._caller.call(self._admin.ChangeJobs, request, changes=True)
        return [outcome_from_wire(one) for one in response.outcomes]

    def notify(self, table: str) -> int:
        """Report that the table has just changed, so that it is probed at once; returns how many jobs read it."""
        return int(
            self._caller.call(
                self._admin.Notify, to_message(pb.NotifyRequest, format_version=FORMAT_VERSION, table=table)
            ).jobs
        )

    def cluster(self) -> ClusterView:
        request = to_message(pb.GetClusterRequest, format_version=FORMAT_VERSION)
        return cluster_from_wire(self._caller.call(listing(self._admin.GetCluster), request))

    def _change(self, method: Callable[..., Any], job: JobName) -> bool:
        request = to_message(
            pb.ChangeJobRequest,
            format_version=FORMAT_VERSION,
            job=JOB_NAME.to_wire(job),
            request_id=new_request_id(),
        )
        return bool(self._caller.call(method, request, changes=True).changed)
