"""Calls of all services of a node at random: messages that are none, or spoilt, in any number, with any metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st

from iscp.client.channel.grpc_calls import CALLER_KEY, FORWARDED_KEY, Meant
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, feeds_pb2, node_pb2, operator_pb2, search_pb2
from tests.fakes.attacked_node import AttackedNode
from tests.fakes.wire_faults import TEXTS_ODD, encode_field, fill, odd_values, paths, with_value, wrong_values

FILES = (admin_pb2, operator_pb2, builds_pb2, search_pb2, feeds_pb2, access_pb2, node_pb2, health_pb2, reflection_pb2)
METHODS: Sequence[MethodDescriptor] = [
    method for file in FILES for service in file.DESCRIPTOR.services_by_name.values() for method in service.methods
]
OF_NODES = node_pb2.DESCRIPTOR.services_by_name["Node"].full_name
FRAMED: Sequence[tuple[FieldDescriptor, Descriptor]] = [
    (field, field.message_type)
    for message in (node_pb2.OwnerMessage, node_pb2.NodeMessage)
    for field in message.DESCRIPTOR.fields
    if field.message_type is not None
]
"""What a message between owner and nodes may be."""

MESSAGES_MAX = 4
TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class RandomCall:
    """One call."""

    method: str
    messages: tuple[bytes, ...]
    metadata: tuple[tuple[str, str | bytes], ...]

    def make(self, channel: grpc.Channel) -> tuple[grpc.StatusCode, str]:
        """How it ends, and in which words."""
        call: Any = channel.stream_stream(self.method)(iter(self.messages), timeout=TIMEOUT_S, metadata=self.metadata)
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        return call.code(), call.details() or ""


@st.composite
def spoilt_messages(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """One whose fields are wrong or odd, several of them, some twice; or which is cut off, or was never one."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=64))
    request = fill(kind, {"table": "/lake/0", "name": "copy", "verb": 1, "limit": 1, "node_id": "n0"})
    raw = bytes(request.SerializeToString())
    ways = list(paths(kind))
    for path in draw(st.lists(st.sampled_from(ways), max_size=3)) if ways else ():
        value = draw(st.sampled_from([*wrong_values(path[-1]), *odd_values(path[-1])]))
        raw += with_value(request, path, value)
    if draw(st.integers(0, 2)):
        return raw
    return raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=8))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Of the stream between owner and nodes: messages in any order, and parts that begin or end nowhere."""
    kinds = draw(st.lists(st.sampled_from(FRAMED), max_size=3))
    said = [encode_field(field, draw(spoilt_messages(kind))) for field, kind in kinds]
    part = draw(st.just(b"") | st.binary(max_size=40))
    return bytes(node_pb2.Frame(messages=said, part=part, last=draw(st.booleans())).SerializeToString())


def metadata_of(node: AttackedNode, of_nodes: bool) -> st.SearchStrategy[tuple[tuple[str, str | bytes], ...]]:
    keys = st.sampled_from(
        ["iscp-cluster", "iscp-node", "authorization", "x", CALLER_KEY, FORWARDED_KEY, "grpc-timeout"]
    )
    texts = st.sampled_from([text for text in TEXTS_ODD if text.isascii() and text.isprintable()])
    odd = st.tuples(keys, texts) | st.tuples(st.just("x-bin"), st.binary(max_size=40))
    more = st.lists(odd, max_size=3).map(tuple)
    if not of_nodes:
        return more
    meant = Meant(node.cluster, node.node_id, node.epoch, "stranger").to_metadata()
    return st.just(meant) | more.map(lambda given: (*meant, *given)) | more


@st.composite
def random_calls(draw: st.DrawFn, node: AttackedNode) -> RandomCall:
    method = draw(st.sampled_from(METHODS))
    service = method.containing_service.full_name
    message = frames() if method.client_streaming and service == OF_NODES else spoilt_messages(method.input_type)
    several = draw(st.integers(0, 3)) == 0 or method.client_streaming
    count = draw(st.integers(0, MESSAGES_MAX)) if several else 1
    return RandomCall(
        f"/{service}/{method.name}",
        tuple(draw(message) for _ in range(count)),
        draw(metadata_of(node, service == OF_NODES)),
    )
