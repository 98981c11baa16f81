"""The messages of owner and nodes as bytes and back; both ways lose nothing.

The certificate of a node and the format of the wire say who speaks, so that no value is doubted here: a node checks the
reports of foreign code before it sends them (`WorkerLoop.report`). The codec has to be quick, as ten thousand shards
are dispatched within a second: JSON stays the text that it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from google.protobuf.message import DecodeError

from iscp.client.codec.api_messages import BUILD_REQUEST, DELETION, REASONS, SOURCE_MARKS, STATES, USAGE
from iscp.client.codec.message_codec import Codec, EnumCodec, FieldCodec, Fields
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow, JobStatus
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    FurtherSeen,
    NodeMessage,
    NodeShard,
    NodeShardState,
    OwnerMessage,
    ShardCheckpoint,
    SourceSeen,
    Sync,
    VersionAge,
)
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import PermanentError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import node_pb2 as pb

log = logging.getLogger(__name__)
SHARD = Codec(ShardId, pb.ShardId)
_KEY = Codec(JobKey, pb.JobRow, absent={"range_id": WHOLE})  # without one it is of wire format 1: of the whole table
_WATERMARK = Codec(Watermark, pb.Watermark)
_TABLE_EPOCH = FieldCodec(
    lambda epoch: {"dispatch_rev": epoch.owner_rev, "counter": epoch.counter},
    lambda wire: TableEpoch(wire.dispatch_rev, wire.counter),
)
_SHARD_STATES = EnumCodec(NodeShardState, pb.ShardState, "state {} of a shard")

_ROW = Codec(JobRow, pb.JobRow, key=_KEY, state=STATES, reason=REASONS, watermark=_WATERMARK)
_STATUS = Codec(JobStatus, pb.Status, sources=SOURCE_MARKS, build=BUILD_REQUEST, deletion=DELETION)
_REPORT = Codec(
    JobReport,
    pb.JobReport,
    key=_KEY,
    watermark=_WATERMARK,
    state=STATES,
    reason=REASONS,
    status=_STATUS,
)
_ENTRY = Codec(HistoryEntry, admin_pb2.HistoryEntry, usage=USAGE)
_AGES = Codec(VersionAge, pb.VersionAge)
_SEEN = Codec(
    SourceSeen,
    pb.SourceSeen,
    shard=SHARD,
    further=Codec(FurtherSeen, pb.FurtherSeen, ages=_AGES),
    ages=_AGES,
)
_SHARD_CHECKPOINT = Codec(ShardCheckpoint, pb.ShardCheckpoint, shard=SHARD, reports=_REPORT, history=_ENTRY, seen=_SEEN)

_ANNOUNCE = Codec(Announce, pb.Announce)
_ACKNOWLEDGE = Codec(Acknowledge, pb.Acknowledge)
_DISPATCH = Codec(DispatchTable, pb.DispatchTable, jobs=_ROW, shard=SHARD, table_epoch=_TABLE_EPOCH)
_ALIVE = Codec(Alive, pb.Alive)
_RESPONSE = Codec(
    DispatchTableResponse, pb.DispatchTableResponse, state=_SHARD_STATES, shard=SHARD, table_epoch=_TABLE_EPOCH
)
_CHECKPOINT = Codec(Checkpoint, pb.Checkpoint, shards=_SHARD_CHECKPOINT)
_SYNC = Codec(
    Sync, pb.Sync, shards=Codec(NodeShard, pb.HeldShard, state=_SHARD_STATES, shard=SHARD, table_epoch=_TABLE_EPOCH)
)


def encode_owner(message: OwnerMessage) -> bytes:
    return pb.OwnerMessage(**_owner_fields(message)).SerializeToString()


def encode_node(message: NodeMessage) -> bytes:
    return pb.NodeMessage(**_node_fields(message)).SerializeToString()


def decode_owner(raw: bytes) -> OwnerMessage:
    """Raises ValueError for what is no message, or one that only a newer node knows."""
    with _readable():
        wire = pb.OwnerMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "dispatch":
                return _DISPATCH.from_wire(wire.dispatch)
            case "acknowledge":
                return _ACKNOWLEDGE.from_wire(wire.acknowledge)
            case "announce":
                return _ANNOUNCE.from_wire(wire.announce)
            case _:
                raise ValueError("an owner's message is of an unknown kind")


def decode_node(raw: bytes) -> NodeMessage:
    """Raises ValueError, as `decode_owner` does."""
    with _readable():
        wire = pb.NodeMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "alive":
                return _ALIVE.from_wire(wire.alive)
            case "response":
                return _RESPONSE.from_wire(wire.response)
            case "checkpoint":
                return _CHECKPOINT.from_wire(wire.checkpoint)
            case "sync":
                return _SYNC.from_wire(wire.sync)
            case _:
                raise ValueError("a node's message is of an unknown kind")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (DecodeError, PermanentError) as error:
        raise ValueError(f"a message cannot be read: {error!r}") from error


def _owner_fields(message: OwnerMessage) -> Fields:
    match message:
        case DispatchTable():
            return {"dispatch": _DISPATCH.fields(message)}
        case Acknowledge():
            return {"acknowledge": _ACKNOWLEDGE.fields(message)}
        case Announce():
            return {"announce": _ANNOUNCE.fields(message)}
        case _:
            assert_never(message)


def _node_fields(message: NodeMessage) -> Fields:
    match message:
        case DispatchTableResponse():
            return {"response": _RESPONSE.fields(message)}
        case Checkpoint():
            return {"checkpoint": _CHECKPOINT.fields(message)}
        case Sync():
            return {"sync": _SYNC.fields(message)}
        case Alive():
            return {"alive": _ALIVE.fields(message)}
        case _:
            assert_never(message)
