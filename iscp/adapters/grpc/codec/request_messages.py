"""Requests of users and operators to `Admin` and `Operator`, and their results, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from iscp.adapters.grpc.channel.grpc_errors import detail_of, error_of
from iscp.adapters.grpc.codec.job_messages import REASONS, STATES
from iscp.adapters.grpc.codec.message_codec import Codec, EnumCodec, FieldCodec
from iscp.core.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    NodeVerb,
    RegisterRequest,
    ResyncRequest,
    ShardVerb,
    UpdateRequest,
)
from iscp.core.api.api_views import Action, CheckedJob, RegisterResult
from iscp.core.values.errors import InvalidRequest, PermanentError
from iscp.core.values.ids import DEFAULT_ACCOUNT
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import operator_pb2


def _refusal_from_wire(detail: pb.ErrorDetail) -> PermanentError:
    error = error_of(detail)
    if isinstance(error, PermanentError) and (error.message or error.field):
        return error
    permanent = PermanentError.from_error(error)
    if not error.message:
        permanent.message, permanent.field_is_subject = "the answer is of a newer kind", False
    return permanent


_REFUSAL = FieldCodec(detail_of, _refusal_from_wire)
_VERBS = EnumCodec(ChangeVerb, pb.ChangeVerb, "verb {}")

NODE_VERBS = EnumCodec(NodeVerb, operator_pb2.NodeVerb, "verb {}")
SHARD_VERBS = EnumCodec(ShardVerb, operator_pb2.ShardVerb, "verb {}")

JOB_NAME = Codec(JobName, pb.JobName, absent={"account": DEFAULT_ACCOUNT})
REGISTRATION = Codec(RegisterRequest, pb.Registration, job=JOB_NAME)
REGISTER_RESULT = Codec(RegisterResult, pb.RegisterResult)
CHECKED_JOB = Codec(CheckedJob, pb.Checked, action=EnumCodec(Action, pb.Action, "action {}"), error=_REFUSAL)
RESYNC = Codec(ResyncRequest, pb.ResyncRequest, job=JOB_NAME)
JOB_UPDATE = Codec(UpdateRequest, pb.JobUpdate, job=JOB_NAME)
JOB_CHANGE = Codec(JobChange, pb.JobChange, verb=_VERBS, job=JOB_NAME)
JOB_FILTER = Codec(JobFilter, pb.JobFilter, state=STATES, reason=REASONS)


def changes_from_wire(messages: Iterable[pb.JobChange]) -> list[JobChange]:
    """Raises InvalidRequest for a verb that this node does not know."""
    changes = []
    for number, message in enumerate(messages):
        if message.verb not in _VERBS.known:
            raise InvalidRequest(
                f"{message.verb} is not known", about=f"changes[{number}].verb", remedy=f"Use {', '.join(ChangeVerb)}"
            )
        changes.append(JOB_CHANGE.from_wire(message))
    return changes


def outcome_to_wire(outcome: ChangeOutcome) -> pb.ChangeOutcome:
    if isinstance(outcome, PermanentError):
        return pb.ChangeOutcome(error=detail_of(outcome))
    return pb.ChangeOutcome(changed=outcome)


def outcome_from_wire(message: pb.ChangeOutcome) -> ChangeOutcome:
    return message.changed if message.HasField("changed") else _refusal_from_wire(message.error)


def filter_from_wire(message: pb.JobFilter, limit: int) -> JobFilter:
    """Raises InvalidRequest for a state or reason that this node does not know; `limit` 0 is the default."""
    for name, known in (("state", STATES.known), ("reason", REASONS.known)):
        if (number := getattr(message, name)) and number not in known:
            raise InvalidRequest(
                f"{number} is not known here", about=f"filter.{name}", remedy="Is the client newer than the nodes?"
            )
    return JOB_FILTER.from_wire(message, limit=limit or JobFilter().limit)
