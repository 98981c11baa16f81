"""The messages of owner and nodes as bytes and back; both ways lose nothing that can be.

What a node may not believe of another one it refuses here: a message whose numbers cannot be, as a whole; of the jobs,
reports and history in it each by itself (see Quarantine). It is written for speed, as ten thousand shards are
dispatched within a second: protobuf is given dicts, since it would copy messages that stand in messages, and JSON stays
the text that it is.
"""

from __future__ import annotations

from typing import assert_never

from google.protobuf.message import DecodeError

from iscp.adapters.grpc.codec.node_fields import (
    checkpoint_fields,
    checkpoint_of,
    response_fields,
    response_of,
    sync_fields,
    sync_of,
)
from iscp.adapters.grpc.codec.owner_fields import (
    acknowledge_fields,
    acknowledge_of,
    announce_fields,
    announce_of,
    dispatch_fields,
    dispatch_of,
)
from iscp.adapters.grpc.codec.quarantine import Quarantine
from iscp.adapters.grpc.codec.wire_values import Fields, counts
from iscp.coordination.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    OwnerMessage,
    Sync,
)
from iscp.wire.v1 import node_pb2 as pb


def encode_owner(message: OwnerMessage) -> bytes:
    return pb.OwnerMessage(**_owner_fields(message)).SerializeToString()


def encode_node(message: NodeMessage) -> bytes:
    return pb.NodeMessage(**_node_fields(message)).SerializeToString()


def decode_owner(raw: bytes, quarantine: Quarantine) -> OwnerMessage:
    """Raises ValueError for what is no message, or one that only a newer node knows."""
    try:
        wire = pb.OwnerMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "dispatch":
                return dispatch_of(wire.dispatch, quarantine)
            case "acknowledge":
                return acknowledge_of(wire.acknowledge)
            case "announce":
                return announce_of(wire.announce)
    except (DecodeError, KeyError, ValueError) as error:
        raise ValueError(f"an owner's message cannot be read: {error!r}") from error
    raise ValueError("an owner's message is of an unknown kind")


def decode_node(raw: bytes, quarantine: Quarantine) -> NodeMessage:
    """As `decode_owner`."""
    try:
        wire = pb.NodeMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "alive":
                return Alive(*counts(wire.alive, "owner_rev", "epoch"))
            case "response":
                return response_of(wire.response)
            case "checkpoint":
                return checkpoint_of(wire.checkpoint, quarantine)
            case "sync":
                return sync_of(wire.sync)
    except (DecodeError, KeyError, ValueError) as error:
        raise ValueError(f"a node's message cannot be read: {error!r}") from error
    raise ValueError("a node's message is of an unknown kind")


def _owner_fields(message: OwnerMessage) -> Fields:
    match message:
        case DispatchTable():
            return {"dispatch": dispatch_fields(message)}
        case Acknowledge():
            return {"acknowledge": acknowledge_fields(message)}
        case Announce():
            return {"announce": announce_fields(message)}
        case _:
            assert_never(message)


def _node_fields(message: NodeMessage) -> Fields:
    match message:
        case DispatchTableResponse():
            return {"response": response_fields(message)}
        case Checkpoint():
            return {"checkpoint": checkpoint_fields(message)}
        case Sync():
            return {"sync": sync_fields(message)}
        case Alive(owner_rev, epoch):
            return {"alive": {"owner_rev": owner_rev, "epoch": epoch}}
        case _:
            assert_never(message)
