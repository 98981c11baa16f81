"""Between the values of iscp.core.api_requests and the messages of `Admin`. Decides nothing; both ways lose nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from iscp.adapters.grpc.admin.maintenance_codec import upkeep_from_wire, upkeep_to_wire
from iscp.adapters.grpc.channel.endpoint import FORMAT_VERSION
from iscp.adapters.grpc.channel.grpc_errors import detail_of, error_of
from iscp.core.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api_views import (
    Action,
    CheckedJob,
    ClusterView,
    JobView,
    LeftOutJob,
    NodeView,
    RegisterResult,
    ShardView,
)
from iscp.core.errors import InvalidRequest, PermanentError
from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobState, JobStatus, Reason
from iscp.core.verification import Comparison, Sample, VerifyReport
from iscp.wire.v1 import admin_pb2 as pb

PAGE_BYTES_MAX = 512 * 1024
"""Bytes in one page of an answer, unless a single item has more; the others follow in further pages."""

PAGE_ITEMS_MAX = 1_000
"""Items in one page of an answer; the others follow in further pages."""

STATE_TO_WIRE = {state: pb.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState}
STATE_FROM_WIRE = {number: state for state, number in STATE_TO_WIRE.items()}
REASON_TO_WIRE = {reason: pb.Reason.Value(f"REASON_{reason.name}") for reason in Reason}
REASON_FROM_WIRE = {number: reason for reason, number in REASON_TO_WIRE.items()}

_VERB_TO_WIRE = {verb: pb.ChangeVerb.Value(f"CHANGE_VERB_{verb.name}") for verb in ChangeVerb}
_VERB_FROM_WIRE = {number: verb for verb, number in _VERB_TO_WIRE.items()}

_ACTION_TO_WIRE = {action: pb.Action.Value(f"ACTION_{action.name}") for action in Action}
_ACTION_FROM_WIRE = {number: action for action, number in _ACTION_TO_WIRE.items()}

_CHECKED_FIELDS = ("table_id", "spec_json", "job_id", "there_id", "there_json")
_STATUS_FIELDS = (
    "from_version",
    "to_version",
    "start_at_s",
    "end_at_s",
    "error_code",
    "error_msg",
    "rows",
    "bytes",
    "dead_letters",
    "warning",
)
_JOB_FIELDS = (
    "account",
    "table_id",
    "table",
    "name",
    "job_id",
    "spec_json",
    "applied_version",
    "applied_at_s",
    "source_version",
    "checked_at_s",
    "lag_s",
    "seq",
    "create_at_s",
    "node_id",
    "late",
    "ranges",
)
_HISTORY_FIELDS = tuple(field.name for field in pb.HistoryEntry.DESCRIPTOR.fields)
_REPORT_FIELDS = ("version", "seq", "void", "repaired")
_COMPARISON_FIELDS = (
    "rows_source",
    "rows_target",
    "ranges",
    "ranges_differing",
    "missing",
    "extra",
    "different",
    "shared",
)
_NODE_FIELDS = tuple(field.name for field in pb.Node.DESCRIPTOR.fields)
_SHARD_FIELDS = tuple(field.name for field in pb.Shard.DESCRIPTOR.fields)
_LEFT_OUT_FIELDS = tuple(field.name for field in pb.LeftOut.DESCRIPTOR.fields)
_RESULT_FIELDS = tuple(field.name for field in pb.RegisterResult.DESCRIPTOR.fields)


class Sized(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802  (protobuf's name)


M = TypeVar("M", bound=Sized)


def fields_of(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """What a message, or a value of the same fields, holds under these names."""
    return {name: getattr(value, name) for name in names}


def pages(messages: Iterable[M]) -> Iterator[list[M]]:
    """Cut into pages of at most PAGE_ITEMS_MAX items and PAGE_BYTES_MAX bytes, but at least one item each."""
    page: list[M] = []
    page_bytes = 0
    for message in messages:
        message_bytes = message.ByteSize()
        if page and (len(page) >= PAGE_ITEMS_MAX or page_bytes + message_bytes > PAGE_BYTES_MAX):
            yield page
            page, page_bytes = [], 0
        page.append(message)
        page_bytes += message_bytes
    if page:
        yield page


def name_to_wire(job: JobName) -> pb.JobName:
    return pb.JobName(table=job.table, name=job.name, account=job.account)


def name_from_wire(message: pb.JobName) -> JobName:
    return JobName(message.table, message.name, message.account or DEFAULT_ACCOUNT)


def registration_to_wire(request: RegisterRequest) -> pb.Registration:
    return pb.Registration(job=name_to_wire(request.job), spec_json=request.spec_json, request_id=request.request_id)


def registration_from_wire(message: pb.Registration) -> RegisterRequest:
    return RegisterRequest(name_from_wire(message.job), message.spec_json, message.request_id)


def result_to_wire(result: RegisterResult) -> pb.RegisterResult:
    return pb.RegisterResult(**fields_of(result, _RESULT_FIELDS))


def result_from_wire(message: pb.RegisterResult) -> RegisterResult:
    return RegisterResult(**fields_of(message, _RESULT_FIELDS))


def checked_to_wire(checked: CheckedJob) -> pb.Checked:
    message = pb.Checked(action=_ACTION_TO_WIRE[checked.action], **fields_of(checked, _CHECKED_FIELDS))
    if checked.error is not None:
        message.error.CopyFrom(detail_of(checked.error))
    return message


def checked_from_wire(message: pb.Checked) -> CheckedJob:
    """Raises PermanentError where the node is newer and speaks of an action unknown here."""
    action = _ACTION_FROM_WIRE.get(message.action)
    if action is None:
        raise PermanentError(f"action {message.action} is not known here", remedy="Use a client as new as the node")
    error = _refusal(message.error) if message.HasField("error") else None
    return CheckedJob(action=action, error=error, **fields_of(message, _CHECKED_FIELDS))


def resync_to_wire(request: ResyncRequest) -> pb.ResyncRequest:
    return pb.ResyncRequest(
        format_version=FORMAT_VERSION,
        job=name_to_wire(request.job),
        table=request.table,
        spec_json=request.spec_json,
        request_id=request.request_id,
    )


def resync_from_wire(message: pb.ResyncRequest) -> ResyncRequest:
    return ResyncRequest(name_from_wire(message.job), message.table, message.spec_json, message.request_id)


def update_to_wire(request: UpdateRequest) -> pb.JobUpdate:
    return pb.JobUpdate(
        job=name_to_wire(request.job),
        changes_json=request.changes_json,
        interrupt=request.interrupt,
        request_id=request.request_id,
    )


def update_from_wire(message: pb.JobUpdate) -> UpdateRequest:
    return UpdateRequest(name_from_wire(message.job), message.changes_json, message.interrupt, message.request_id)


def change_to_wire(change: JobChange) -> pb.JobChange:
    return pb.JobChange(verb=_VERB_TO_WIRE[change.verb], job=name_to_wire(change.job), request_id=change.request_id)


def changes_from_wire(messages: Iterable[pb.JobChange]) -> list[JobChange]:
    """Raises InvalidRequest for a verb that this node does not know."""
    changes = []
    for number, message in enumerate(messages):
        verb = _VERB_FROM_WIRE.get(message.verb)
        if verb is None:
            raise InvalidRequest(
                f"{message.verb} is not known", field=f"changes[{number}].verb", remedy=f"Use {', '.join(ChangeVerb)}"
            )
        changes.append(JobChange(verb, name_from_wire(message.job), message.request_id))
    return changes


def outcome_to_wire(outcome: ChangeOutcome) -> pb.ChangeOutcome:
    if isinstance(outcome, PermanentError):
        return pb.ChangeOutcome(error=detail_of(outcome))
    return pb.ChangeOutcome(changed=outcome)


def outcome_from_wire(message: pb.ChangeOutcome) -> ChangeOutcome:
    if message.HasField("changed"):
        return message.changed
    return _refusal(message.error)


def _refusal(detail: pb.ErrorDetail) -> PermanentError:
    error = error_of(detail)
    if isinstance(error, PermanentError):
        return error
    return PermanentError(error.message or "the answer is of a newer kind", field=error.field, remedy=error.remedy)


def filter_to_wire(wanted: JobFilter) -> pb.JobFilter:
    return pb.JobFilter(
        account=wanted.account,
        table=wanted.table,
        state=STATE_TO_WIRE[wanted.state] if wanted.state else pb.JOB_STATE_UNSPECIFIED,
        reason=REASON_TO_WIRE[wanted.reason] if wanted.reason else pb.REASON_UNSPECIFIED,
        table_pattern=wanted.table_pattern,
        name_pattern=wanted.name_pattern,
    )


def filter_from_wire(message: pb.JobFilter, limit: int) -> JobFilter:
    """Raises InvalidRequest for a state or reason that this node does not know; `limit` 0 is the default."""
    wanted = JobFilter(
        account=message.account,
        table=message.table,
        state=STATE_FROM_WIRE.get(message.state),
        reason=REASON_FROM_WIRE.get(message.reason),
        limit=limit or JobFilter().limit,
        table_pattern=message.table_pattern,
        name_pattern=message.name_pattern,
    )
    for name, known in (("state", wanted.state), ("reason", wanted.reason)):
        if getattr(message, name) and known is None:
            raise InvalidRequest(f"{getattr(message, name)} is not known here", field=f"filter.{name}")
    return wanted


def job_to_wire(job: JobView) -> pb.Job:
    return pb.Job(
        state=STATE_TO_WIRE[job.state],
        reason=REASON_TO_WIRE[job.reason],
        status=pb.JobStatus(**fields_of(job.status, _STATUS_FIELDS)),
        upkeep=upkeep_to_wire(job.upkeep),
        **fields_of(job, _JOB_FIELDS),
    )


def job_from_wire(message: pb.Job) -> JobView:
    """Raises PermanentError where the node is newer and speaks of states unknown here."""
    state, reason = STATE_FROM_WIRE.get(message.state), REASON_FROM_WIRE.get(message.reason)
    if state is None or reason is None:
        raise PermanentError(
            f"the node reports state {message.state}, reason {message.reason}, which are not known here",
            remedy="Use a client as new as the node",
        )
    return JobView(
        state=state,
        reason=reason,
        status=JobStatus(**fields_of(message.status, _STATUS_FIELDS)),
        upkeep=upkeep_from_wire(message.upkeep),
        **fields_of(message, _JOB_FIELDS),
    )


def history_to_wire(entry: HistoryEntry) -> pb.HistoryEntry:
    return pb.HistoryEntry(**fields_of(entry, _HISTORY_FIELDS))


def history_from_wire(message: pb.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(**fields_of(message, _HISTORY_FIELDS))


def report_to_wire(report: VerifyReport) -> pb.VerifyReport:
    samples = [pb.VerifySample(fault=one.fault, key=one.key, columns=one.columns) for one in report.comparison.samples]
    return pb.VerifyReport(
        **fields_of(report, _REPORT_FIELDS), **fields_of(report.comparison, _COMPARISON_FIELDS), samples=samples
    )


def report_from_wire(message: pb.VerifyReport) -> VerifyReport:
    samples = tuple(Sample(one.fault, one.key, tuple(one.columns)) for one in message.samples)
    comparison = Comparison(**fields_of(message, _COMPARISON_FIELDS), samples=samples)
    return VerifyReport(**fields_of(message, _REPORT_FIELDS), comparison=comparison)


def cluster_to_wire(cluster: ClusterView) -> Iterator[pb.ClusterPage]:
    """The first page tells everything but the shards, which follow in as many as it takes."""
    head = pb.Cluster(
        format_version=FORMAT_VERSION,
        owner=cluster.owner,
        owner_rev=cluster.owner_rev,
        nodes=[pb.Node(**fields_of(node, _NODE_FIELDS)) for node in cluster.nodes],
        jobs=cluster.jobs,
        lag_max_s=cluster.lag_max_s,
        counters=cluster.counters,
        checkpoint_at_s=cluster.checkpoint_at_s,
        left_out=[pb.LeftOut(**fields_of(each, _LEFT_OUT_FIELDS)) for each in cluster.left_out],
        left_out_count=cluster.left_out_count,
        moving=cluster.moving,
    )
    yield pb.ClusterPage(cluster=head)
    for page in pages(pb.Shard(**fields_of(shard, _SHARD_FIELDS)) for shard in cluster.shards):
        yield pb.ClusterPage(shards=page)


def cluster_from_wire(messages: Iterable[pb.ClusterPage]) -> ClusterView:
    head = pb.Cluster()
    shards: list[ShardView] = []
    for message in messages:
        if message.HasField("cluster"):
            head = message.cluster
        shards += (ShardView(**fields_of(shard, _SHARD_FIELDS)) for shard in message.shards)
    return ClusterView(
        owner=head.owner,
        owner_rev=head.owner_rev,
        nodes=tuple(NodeView(**fields_of(node, _NODE_FIELDS)) for node in head.nodes),
        shards=tuple(shards),
        jobs=head.jobs,
        lag_max_s=head.lag_max_s,
        counters=dict(head.counters),
        checkpoint_at_s=head.checkpoint_at_s,
        left_out=tuple(LeftOutJob(**fields_of(each, _LEFT_OUT_FIELDS)) for each in head.left_out),
        left_out_count=head.left_out_count,
        moving=head.moving,
    )
