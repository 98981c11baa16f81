"""Errors of iscp as gRPC statuses with a detail of our own, and back into the same classes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from iscp.model.values import errors as core
from iscp.model.values.errors import ErrorCode, IscpError, OutcomeUnknown
from iscp.model.values.untrusted_values import one_line
from iscp.system.tls.renewing_channel import REFUSED_REMEDY, handshake_fault, may_be_refused
from iscp.system.tls.tls_files import FORMAT_VERSION
from iscp.wire.v1 import admin_pb2 as pb

log = logging.getLogger(__name__)

DETAIL_KEY = "iscp-error-bin"

MESSAGE_BYTES_MAX = 3_000
"""Bytes of an error's message in an answer; the rest is cut off. Detail and status text share the 8 KiB that gRPC
grants trailing metadata (base64, percent-encoded).
"""

REMEDY_BYTES_MAX = 1_000
"""Bytes of an error's remedy in an answer; the rest is cut off."""

FIELD_BYTES_MAX = 500
"""Bytes of the name of the field that an error is about; the rest is cut off."""

STATUS_BYTES_MAX = 300
"""Bytes of gRPC's own status text, for clients that do not read the detail; the rest is cut off."""

_KINDS = {name: kind for name, kind in vars(core).items() if isinstance(kind, type) and issubclass(kind, IscpError)}

# Nodes of 0.1 do not say whether a message goes on from its field: it does if it begins with one of these.
_VERBS_OF_0_1 = frozenset(
    {"are", "cannot", "changes", "do", "does", "ends", "excludes", "gives", "goes", "has", "have", "holds", "is"}
    | {"leave", "leaves", "lies", "must", "names", "says", "stands", "wants", "was", "would"}
)

# Looked up along the class's bases, so a class without a line of its own has its parent's.
_STATUSES: dict[type, grpc.StatusCode] = {
    core.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    core.TableNotFound: grpc.StatusCode.NOT_FOUND,
    core.JobNotFound: grpc.StatusCode.NOT_FOUND,
    core.NotAuthorized: grpc.StatusCode.PERMISSION_DENIED,
    core.NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    core.PermanentError: grpc.StatusCode.FAILED_PRECONDITION,
    core.TemporaryError: grpc.StatusCode.UNAVAILABLE,
    core.OutcomeUnknown: grpc.StatusCode.UNKNOWN,
    core.Conflict: grpc.StatusCode.ABORTED,
    core.Canceled: grpc.StatusCode.CANCELLED,
    core.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    core.QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    core.IscpError: grpc.StatusCode.INTERNAL,
}

# gRPC says so when it never reached the other side: then nothing was sent, and nothing can have been done.
_UNRESOLVED = "errors resolving", "DNS resolution failed"
_NEVER_SENT = "failed to connect", *_UNRESOLVED
_NOBODY_THERE = "Connection refused", "No route to host", "Network is unreachable", *_UNRESOLVED


def status_of(error: IscpError) -> grpc.StatusCode:
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def _bounded(text: str, bytes_max: int) -> str:
    return one_line(text, bytes_max).encode()[:bytes_max].decode(errors="ignore")


def detail_of(error: IscpError) -> pb.ErrorDetail:
    """Return the details by which the client raises the same error; over-long texts are cut."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return pb.ErrorDetail(
        format_version=FORMAT_VERSION,
        code=int(error.code),
        kind=kind,
        field=_bounded(error.field, FIELD_BYTES_MAX),
        remedy=_bounded(error.remedy, REMEDY_BYTES_MAX),
        message=_bounded(error.message, MESSAGE_BYTES_MAX),
        field_is_subject=error.field_is_subject,
    )


def abort(context: grpc.ServicerContext, error: IscpError) -> NoReturn:
    """End the call with `error`; always raises, as gRPC's abort does."""
    context.set_trailing_metadata(((DETAIL_KEY, detail_of(error).SerializeToString()),))
    context.abort(status_of(error), _bounded(str(error), STATUS_BYTES_MAX))
    raise AssertionError("abort returned")


@contextmanager
def translate_errors(context: grpc.ServicerContext, verb: str, service: str = "admin") -> Iterator[None]:
    """Turn every error into a status; an error that nobody foresaw is logged and becomes INTERNAL."""
    try:
        yield
    except IscpError as error:
        log.info(f"{service}.refused", extra={"verb": verb, "code": int(error.code), "field": error.field})
        abort(context, error)
    except Exception as error:
        log.exception(f"{service}.failed", extra={"verb": verb})
        unforeseen = IscpError(f"unforeseen {type(error).__name__}: {error}", remedy="See the node's log")
        abort(context, unforeseen)


@contextmanager
def answering(request: Any, context: grpc.ServicerContext, verb: str) -> Iterator[None]:
    """Refuse a request of a newer format to a method for users, and turn every error of it into a status."""
    with translate_errors(context, verb):
        if request.format_version > FORMAT_VERSION:
            raise core.InvalidRequest(
                f"{request.format_version} is newer than this node's {FORMAT_VERSION}",
                about="format_version",
                remedy="Upgrade the nodes before the clients",
            )
        yield


def error_of(detail: pb.ErrorDetail) -> IscpError:
    """Return the error that a detail describes; of an unknown kind (a newer node's) at least whose move is next."""
    code: ErrorCode | None
    try:
        code = ErrorCode(detail.code)
    except ValueError:
        code = None
    temporary = 0 < detail.code < core.PERMANENT_FROM
    kind = _KINDS.get(detail.kind) or (core.TemporaryError if temporary else core.PermanentError)
    error = kind(detail.message, remedy=detail.remedy, code=code)
    error.field = detail.field
    said = detail.HasField("field_is_subject")
    error.field_is_subject = detail.field_is_subject if said else detail.message.partition(" ")[0] in _VERBS_OF_0_1
    return error


def never_sent(error: grpc.RpcError) -> bool:
    """Return whether a failed call has certainly not arrived."""
    # A node that answers may have gRPC's words for this in its message, as where it cannot reach the owner.
    unavailable = error.code() is grpc.StatusCode.UNAVAILABLE and not said_by_node(error)
    return unavailable and _has_words(error, _NEVER_SENT)


def nobody_there(error: grpc.RpcError) -> bool:
    """Return whether there is no node, or no host, by that name, so that a call can only be repeated until one
    comes.
    """
    return never_sent(error) and _has_words(error, _NOBODY_THERE)


def said_by_node(error: grpc.RpcError) -> bool:
    """Return whether the error is a node's answer, and not of gRPC's own making."""
    return any(key == DETAIL_KEY for key, _ in error.trailing_metadata() or ())


def _has_words(error: grpc.RpcError, words: Iterable[str]) -> bool:
    text = error.details() or ""
    return any(each in text for each in words)


def from_rpc(error: grpc.RpcError, endpoint: str, *, changes: bool) -> IscpError:
    """Translate a failed call.

    Without a detail gRPC itself has failed. Then, for a call that `changes` something and may have arrived, the answer
    is OutcomeUnknown (with code TIMEOUT where time ran out).
    """
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY:
            return error_of(pb.ErrorDetail.FromString(value))
    text = error.details() or ""
    if fault := handshake_fault(text):
        return core.ConfigurationError(f"no TLS with {endpoint}: {fault[0]} ({text})", about="tls", remedy=fault[1])
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if changes and not never_sent(error):
            return OutcomeUnknown(f"{endpoint} went away before it answered ({text})", remedy="Check the job's status")
        case grpc.StatusCode.UNAVAILABLE:
            return _no_answer(endpoint, text)
        case grpc.StatusCode.DEADLINE_EXCEEDED if changes:
            return OutcomeUnknown(
                f"{endpoint} did not answer in time", remedy="Check the job's status", code=ErrorCode.TIMEOUT
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return core.TimedOut(f"{endpoint} did not answer in time", remedy="Allow more time, or check the node")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in text:
            return core.InvalidRequest(f"the message is too large ({text})", remedy="Send fewer at a time")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return core.QueueFull(f"{endpoint} has too much to do ({text})", remedy="Retry later")
        case grpc.StatusCode.CANCELLED:
            return core.Canceled(f"the call was cancelled ({text})")
        case grpc.StatusCode.UNIMPLEMENTED:
            return core.PermanentError(
                f"{endpoint} does not know this call", about="endpoint", remedy="Is it a node of iscp, and new enough?"
            )
        case code:
            return IscpError(f"{endpoint} failed: {code.name} ({text})", remedy="See the node's log")


def _no_answer(endpoint: str, text: str) -> core.Unavailable:
    if may_be_refused(text):
        return core.Unavailable(
            f"{endpoint} accepts connections and closes them ({text})",
            about="tls",
            remedy=f"{REFUSED_REMEDY}, in a context (`iscp-admin context set`) or by ISCP_CA_FILE, ISCP_CERT_FILE and "
            "ISCP_KEY_FILE",
        )
    return core.Unavailable(
        f"{endpoint} does not answer ({text})",
        about="endpoint",
        remedy="See whether a node runs there and has started (`iscp up` starts one); or name another by --endpoint or "
        "ISCP_ENDPOINT",
    )
