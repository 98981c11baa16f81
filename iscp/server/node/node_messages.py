"""The messages of owner and nodes as bytes and back; both ways lose nothing that can be.

A message of another node whose numbers cannot be is refused here as a whole; the jobs, reports and history in it are
refused each by itself (see Quarantine). The codec has to be quick, as ten thousand shards are dispatched within a
second: JSON stays the text that it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar, assert_never

from google.protobuf.message import DecodeError

from iscp.client.codec.api_messages import BUILD_REQUEST, DELETION, REASONS, SOURCE_MARKS, STATES, USAGE
from iscp.client.codec.message_codec import Codec, EnumCodec, FieldCodec, Fields
from iscp.model.job.iteration import HistoryEntry, exact_entry, exact_report, exact_shard, refuse_absurd_row
from iscp.model.job.job_row import JobReport, JobRow, JobStatus
from iscp.model.protocol.messages import (
    SYNC_PARTS_MAX,
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
    exact_seen,
)
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import PermanentError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.untrusted_values import NAME_CHARS_MAX, exact_int, exact_name, named_error, printable, shown
from iscp.model.values.watermark import Watermark
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import node_pb2 as pb

log = logging.getLogger(__name__)
W = TypeVar("W")
V = TypeVar("V")


class Quarantine:
    """Leaves out items of another node's message that cannot be true, logs and counts them, so that the rest counts.

    Such an item would be sent again and again, and all that came with it would wait for ever. `count`: parts of
    messages that were dead-lettered.
    """

    def __init__(self) -> None:
        self.count = 0

    def each(self, build: Callable[[W], V], items: Iterable[W], what: str) -> tuple[V, ...]:
        """Return the results of `build` for those items for which it raises neither ValueError nor PermanentError."""
        found: list[V] = []
        for item in items:
            try:
                found.append(build(item))
            except (ValueError, PermanentError) as error:
                self.count += 1
                log.error("message.quarantined", extra={"what": what, "item": shown(item), "error": named_error(error)})
        return tuple(found)


def _existing(row: JobRow) -> JobRow:
    refuse_absurd_row(row)
    return row


SHARD = Codec(ShardId, pb.ShardId, check=exact_shard)
_KEY = Codec(JobKey, pb.JobRow, absent={"range_id": WHOLE})  # without one it is of wire format 1: of the whole table
_WATERMARK = Codec(Watermark, pb.Watermark)
_TABLE_EPOCH = FieldCodec(
    lambda epoch: {"dispatch_rev": epoch.owner_rev, "counter": epoch.counter},
    lambda wire: TableEpoch(exact_int(wire.dispatch_rev, "dispatch_rev"), exact_int(wire.counter, "counter")),
)
_SHARD_STATES = EnumCodec(NodeShardState, pb.ShardState, "state {} of a shard")

_ROW = Codec(JobRow, pb.JobRow, key=_KEY, state=STATES, reason=REASONS, watermark=_WATERMARK, check=_existing)
_STATUS = Codec(JobStatus, pb.Status, sources=SOURCE_MARKS, build=BUILD_REQUEST, deletion=DELETION)
_REPORT = Codec(
    JobReport,
    pb.JobReport,
    key=_KEY,
    watermark=_WATERMARK,
    state=STATES,
    reason=REASONS,
    status=_STATUS,
    check=exact_report,
)
_ENTRY = Codec(HistoryEntry, admin_pb2.HistoryEntry, check=exact_entry, usage=USAGE)
_AGES = Codec(VersionAge, pb.VersionAge)
_SEEN = Codec(
    SourceSeen,
    pb.SourceSeen,
    shard=Codec(ShardId, pb.ShardId),
    further=Codec(FurtherSeen, pb.FurtherSeen, ages=_AGES),
    ages=_AGES,
    check=exact_seen,
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


def decode_owner(raw: bytes, quarantine: Quarantine) -> OwnerMessage:
    """Raises ValueError for what is no message, or one that only a newer node knows."""
    try:
        wire = pb.OwnerMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "dispatch":
                _refuse_negative(wire.dispatch, "owner_rev", "epoch")
                jobs = quarantine.each(_ROW.from_wire, wire.dispatch.jobs, "job")
                dispatch = _DISPATCH.from_wire(wire.dispatch, jobs=jobs)
                _refuse_later(dispatch.table_epoch, dispatch.owner_rev)
                return dispatch
            case "acknowledge":
                _refuse_negative(wire.acknowledge, "owner_rev", "epoch", "sync_number", "recorded")
                return _ACKNOWLEDGE.from_wire(wire.acknowledge)
            case "announce":
                _refuse_negative(wire.announce, "owner_rev", "election_revision", "wire_format")
                announce = _ANNOUNCE.from_wire(wire.announce)
                owner_id, version = exact_name(announce.owner_id, "owner_id"), _version(announce.version)
                return replace(announce, owner_id=owner_id, version=version)
    except (DecodeError, PermanentError, ValueError) as error:
        raise ValueError(f"an owner's message cannot be read: {error!r}") from error
    raise ValueError("an owner's message is of an unknown kind")


def decode_node(raw: bytes, quarantine: Quarantine) -> NodeMessage:
    """Raises ValueError, as `decode_owner` does."""
    try:
        wire = pb.NodeMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "alive":
                _refuse_negative(wire.alive, "owner_rev", "epoch")
                return _ALIVE.from_wire(wire.alive)
            case "response":
                _refuse_negative(wire.response, "owner_rev", "epoch")
                response = _RESPONSE.from_wire(wire.response)
                _refuse_later(response.table_epoch, response.owner_rev)
                return response
            case "checkpoint":
                _refuse_negative(wire.checkpoint, "owner_rev", "epoch", "number")
                shards = quarantine.each(lambda each: _checkpoint_of(each, quarantine), wire.checkpoint.shards, "shard")
                return _CHECKPOINT.from_wire(wire.checkpoint, shards=shards)
            case "sync":
                return _sync_from_wire(wire.sync)
    except (DecodeError, PermanentError, ValueError) as error:
        raise ValueError(f"a node's message cannot be read: {error!r}") from error
    raise ValueError("a node's message is of an unknown kind")


def _checkpoint_of(wire: pb.ShardCheckpoint, quarantine: Quarantine) -> ShardCheckpoint:
    seen = quarantine.each(_SEEN.from_wire, [wire.seen], "source") if wire.HasField("seen") else ()
    return _SHARD_CHECKPOINT.from_wire(
        wire,
        reports=quarantine.each(_REPORT.from_wire, wire.reports, "report"),
        history=quarantine.each(_ENTRY.from_wire, wire.history, "history"),
        seen=seen[0] if seen else None,
    )


def _sync_from_wire(wire: pb.Sync) -> Sync:
    """Read it whole or not at all: what is missing in it would count as not running there."""
    _refuse_negative(wire, "owner_rev", "epoch", "number", "recorded", "wire_format")
    exact_int(wire.part, "part", 0, exact_int(wire.parts, "parts", 1, SYNC_PARTS_MAX) - 1)
    sync = _SYNC.from_wire(wire)
    for each in sync.shards:
        _refuse_later(each.table_epoch, sync.owner_rev)
    return replace(sync, version=_version(sync.version))


def _refuse_negative(wire: object, *names: str) -> None:
    """Raise ValueError where one of these fields is no count."""
    for name in names:
        exact_int(getattr(wire, name), name)


def _refuse_later(epoch: TableEpoch, owner_rev: int) -> None:
    """Raise ValueError for an epoch of a later term: it would fence all that this owner says from now on."""
    exact_int(epoch.owner_rev, "dispatch_rev", 0, owner_rev)


def _version(text: str) -> str:
    return printable(text, NAME_CHARS_MAX)


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
