"""Between the values of `api_requests` and the messages of `Admin`. Decides nothing; both ways lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from iscp.adapters.grpc.channel.grpc_errors import detail_of, error_of
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.core.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api.api_views import (
    Action,
    CheckedJob,
    RegisterResult,
)
from iscp.core.job.job_row import JobState, Reason
from iscp.core.values.errors import InvalidRequest, PermanentError
from iscp.core.values.ids import DEFAULT_ACCOUNT
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
_RESULT_FIELDS = tuple(field.name for field in pb.RegisterResult.DESCRIPTOR.fields)


class Sized(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802  (protobuf's name)


M = TypeVar("M", bound=Sized)
P = ParamSpec("P")

_EXPECTED = {
    FieldDescriptor.CPPTYPE_STRING: "a text that UTF-8 can hold",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of at most 63 bits",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 2^32 - 1",
}


def to_message(kind: Callable[P, M], *args: P.args, **fields: P.kwargs) -> M:
    """A message with these fields. Raises InvalidRequest, with the field, for a value that has no place in it."""
    try:
        return kind(*args, **fields)
    except (TypeError, ValueError, OverflowError) as error:
        described: Any = kind
        for name, value in fields.items():
            try:
                described(**{name: value})
            except (TypeError, ValueError, OverflowError):
                expected = _EXPECTED.get(described.DESCRIPTOR.fields_by_name[name].cpp_type, "as the wire has it")
                raise InvalidRequest(
                    f"is {value!r:.100}: must be {expected}", field=name, remedy="Give another"
                ) from error
        raise


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
    return to_message(pb.JobName, table=job.table, name=job.name, account=job.account)


def name_from_wire(message: pb.JobName) -> JobName:
    return JobName(message.table, message.name, message.account or DEFAULT_ACCOUNT)


def registration_to_wire(request: RegisterRequest) -> pb.Registration:
    return to_message(
        pb.Registration, job=name_to_wire(request.job), spec_json=request.spec_json, request_id=request.request_id
    )


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
    return to_message(
        pb.ResyncRequest,
        format_version=FORMAT_VERSION,
        job=name_to_wire(request.job),
        table=request.table,
        spec_json=request.spec_json,
        request_id=request.request_id,
    )


def resync_from_wire(message: pb.ResyncRequest) -> ResyncRequest:
    return ResyncRequest(name_from_wire(message.job), message.table, message.spec_json, message.request_id)


def update_to_wire(request: UpdateRequest) -> pb.JobUpdate:
    return to_message(
        pb.JobUpdate,
        job=name_to_wire(request.job),
        changes_json=request.changes_json,
        interrupt=request.interrupt,
        request_id=request.request_id,
    )


def update_from_wire(message: pb.JobUpdate) -> UpdateRequest:
    return UpdateRequest(name_from_wire(message.job), message.changes_json, message.interrupt, message.request_id)


def change_to_wire(change: JobChange) -> pb.JobChange:
    return to_message(
        pb.JobChange, verb=_VERB_TO_WIRE[change.verb], job=name_to_wire(change.job), request_id=change.request_id
    )


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
    return to_message(
        pb.JobFilter,
        account=wanted.account,
        table=wanted.table,
        state=STATE_TO_WIRE[wanted.state] if wanted.state else pb.JOB_STATE_UNSPECIFIED,
        reason=REASON_TO_WIRE[wanted.reason] if wanted.reason else pb.REASON_UNSPECIFIED,
        table_pattern=wanted.table_pattern,
        name_pattern=wanted.name_pattern,
        late=wanted.late,
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
        late=message.late,
    )
    for name, known in (("state", wanted.state), ("reason", wanted.reason)):
        if getattr(message, name) and known is None:
            raise InvalidRequest(
                f"{getattr(message, name)} is not known here",
                field=f"filter.{name}",
                remedy="Is the client newer than the nodes?",
            )
    return wanted
