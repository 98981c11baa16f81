"""gRPC calls of clients and of nodes: errors of iscp as gRPC statuses and back, and what the metadata of calls say.

The metadata of a call between nodes say whom the call means, and those of any call which trace the call belongs to. The
channels between nodes are opened here too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import grpc

from iscp.model.values import errors as core
from iscp.model.values.errors import ConfigurationError, ErrorCode, IscpError, OutcomeUnknown, Unavailable
from iscp.model.values.ids import TRACE_KEY, WIRE_FORMAT, trace_of, understands
from iscp.model.values.untrusted_values import one_line
from iscp.ports.system import current_trace
from iscp.system.tls.renewing_channel import REFUSED_REMEDY, handshake_fault, may_be_refused, secure_channel
from iscp.system.tls.tls_files import FORMAT_VERSION, MESSAGE_BYTES_MAX, TlsSource
from iscp.wire.v1 import admin_pb2 as pb

log = logging.getLogger(__name__)


# --- errors -----------------------------------------------------------------------------------------------------------
# An error of iscp becomes a gRPC status with a detail of iscp's own, and becomes an error of the same class again.

DETAIL_KEY = "iscp-error-bin"

ERROR_BYTES_MAX = 3_000
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
        message=_bounded(error.message, ERROR_BYTES_MAX),
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


# --- calls between nodes ----------------------------------------------------------------------------------------------
# The node that is called decides whether the call has reached whom it means: an address may have been given to another
# node, or to another cluster, since it was read.

CLUSTER_KEY = "iscp-cluster"
NODE_KEY = "iscp-node"
OWNER_KEY = "iscp-owner"
WIRE_FORMAT_KEY = "iscp-wire-format"
FORWARDED_KEY = "iscp-forwarded"
"""A node passes on the call; the value says whose it is."""

CALLER_KEY = "iscp-caller"
"""Whose call a node's own gateway makes; of nobody else is it read."""

KEEPALIVE_MS = 3_000
"""Pings on a connection to a node come so often. A frozen or unreachable node is noticed after this and
KEEPALIVE_TIMEOUT_MS.
"""

KEEPALIVE_TIMEOUT_MS = 4_000
"""How long a node may leave a ping unanswered; then the connection is closed, and opened again."""

SERVER_KEEPALIVE_MS = 10_000
"""Pings of a node to its clients come so often; they need not be fast."""

SERVER_KEEPALIVE_TIMEOUT_MS = 10_000
"""How long a client may leave a node's ping unanswered; then its connection is closed."""

PING_INTERVAL_MIN_MS = 1_000
"""Least time between a client's pings. A client that sends them faster has its connection closed with too_many_pings.
"""

CONNECT_MAX_MS = 3_000
"""How long a node may take to accept a connection; then the attempt has failed."""

RECONNECT_FIRST_MS = 100
"""Pause before a connection is opened again for the first time; it doubles up to RECONNECT_MAX_MS."""

RECONNECT_MAX_MS = 1_000
"""Longest pause before a connection is opened again."""


def keepalive(time_ms: int, timeout_ms: int) -> tuple[tuple[str, int], ...]:
    """The options by which a peer that is frozen or cut off is noticed after the sum of both."""
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # gRPC pings for other reasons too, and then sends no second one but waits for the first, by default a minute.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


SERVER_OPTIONS = (
    *keepalive(SERVER_KEEPALIVE_MS, SERVER_KEEPALIVE_TIMEOUT_MS),
    # Also of clients that make no call: who does not answer pings goes.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
)
_CHANNEL_OPTIONS = (
    *keepalive(KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_FIRST_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MAX_MS),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)

Metadata = tuple[tuple[str, str], ...]


def open_channel(address: str, tls: TlsSource | None) -> grpc.Channel:
    """Return a channel to another node; it connects when it is first used."""
    if tls is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    channel: grpc.Channel = secure_channel(grpc, address, tls, _CHANNEL_OPTIONS)
    return channel


@dataclass(frozen=True, slots=True)
class Meant:
    """Whom a call means: a node's life in a cluster; and who calls."""

    cluster: str
    node_id: str
    epoch: int
    owner_id: str
    wire_format: int = WIRE_FORMAT

    def to_metadata(self) -> Metadata:
        return (
            (CLUSTER_KEY, quote(self.cluster)),
            (NODE_KEY, f"{self.node_id}/{self.epoch}"),
            (OWNER_KEY, self.owner_id),
            (WIRE_FORMAT_KEY, str(self.wire_format)),
        )


def meant_of(metadata: Iterable[tuple[str, str | bytes]]) -> Meant:
    """Raises ConfigurationError where a call does not say whom it means."""
    found = dict(metadata)
    try:
        node_id, _, epoch = str(found[NODE_KEY]).rpartition("/")
        cluster, owner_id = unquote(str(found[CLUSTER_KEY])), str(found[OWNER_KEY])
        return Meant(cluster, node_id, int(epoch), owner_id, int(found[WIRE_FORMAT_KEY]))
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            "the call does not say whom it means", remedy="Only nodes of iscp call this service"
        ) from error


def refuse_other(meant: Meant, cluster: str, node_id: str, epoch: int, wire_format: int = WIRE_FORMAT) -> None:
    """Raise unless it is this node that is meant; Unavailable where it is another life of it."""
    if meant.cluster != cluster:
        raise ConfigurationError(
            f"this is a node of the cluster {cluster!r}, not of {meant.cluster!r}",
            about="advertise",
            remedy=f"Have {meant.node_id} advertise an address that leads to itself",
        )
    if meant.node_id != node_id:
        raise ConfigurationError(
            f"this is the node {node_id!r}, not {meant.node_id!r}",
            about="advertise",
            remedy=f"Have {meant.node_id} advertise an address that leads to itself",
        )
    if not understands(meant.wire_format, wire_format):
        raise ConfigurationError(
            f"{meant.owner_id} speaks wire format {meant.wire_format}, and {node_id} {wire_format}",
            about="wire_format",
            remedy="Upgrade the nodes so that no two of them are more than one wire format apart",
        )
    if meant.epoch != epoch:
        raise Unavailable(f"this is {node_id} in epoch {epoch}, not {meant.epoch}", remedy="Read the members again")


# --- the context of a trace -------------------------------------------------------------------------------------------
# The context travels with a call as the metadata `traceparent`, after W3C Trace Context.

Pairs = tuple[tuple[str, str | bytes], ...]


def trace_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the context with which a call came; empty if it came without one."""
    return next((trace for key, value in metadata if key == TRACE_KEY and (trace := trace_of(value))), "")


def with_trace(metadata: Pairs) -> Pairs:
    """Return the metadata of a call that is a part of the current context, whatever context they had before."""
    trace = current_trace()
    return (*(each for each in metadata if each[0] != TRACE_KEY), (TRACE_KEY, trace)) if trace else metadata


def traced_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that a client adds to a call: the context of the program's own span, if it has one now.

    A program that traces has imported OpenTelemetry itself; for others it is not imported.
    """
    trace = current_trace() or _trace_of_program()
    return ((TRACE_KEY, trace),) if trace else ()


def _trace_of_program() -> str:
    library = sys.modules.get("opentelemetry.trace")
    if library is None:
        return ""
    about = library.get_current_span().get_span_context()
    return trace_of(f"00-{about.trace_id:032x}-{about.span_id:016x}-{int(about.trace_flags) & 1:02x}")
