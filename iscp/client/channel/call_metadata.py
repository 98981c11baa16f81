"""Calls between nodes: what their metadata say, who refuses it, and the channels.

Decides whether a call has reached whom it means: an address may have been given to another node, or to another
cluster, since it was read.

The context of a trace travels with a call as the metadata `traceparent`, after W3C Trace Context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

import grpc

from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.model.values.ids import TRACE_KEY, WIRE_FORMAT, trace_of, understands
from iscp.ports.system import current_trace
from iscp.system.tls.renewing_channel import secure_channel
from iscp.system.tls.tls_files import MESSAGE_BYTES_MAX, TlsSource

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
