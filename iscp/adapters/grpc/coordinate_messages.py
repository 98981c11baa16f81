"""The messages of owner and nodes as bytes and back; both ways lose nothing.

Decides nothing, and knows no streams. It is written for speed, as ten thousand shards are dispatched within a second:
protobuf is given dicts, since it would copy messages that stand in messages, and JSON stays the text that it is.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, assert_never

from google.protobuf.message import DecodeError

from iscp.adapters.grpc.convert import REASON_FROM_WIRE, REASON_TO_WIRE, STATE_FROM_WIRE, STATE_TO_WIRE
from iscp.coordination.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShard,
    NodeShardState,
    OwnerMessage,
    ShardCheckpoint,
    SourceSeen,
    Sync,
)
from iscp.core.ids import JobKey, ShardId, TableEpoch
from iscp.core.iteration import HistoryEntry
from iscp.core.job import JobReport, JobRow, JobStatus
from iscp.core.watermark import Watermark
from iscp.wire.v1 import node_pb2 as pb

_SHARD_STATE_TO_WIRE = {state: pb.ShardState.Value(f"SHARD_STATE_{state.name}") for state in NodeShardState}
_SHARD_STATE_FROM_WIRE = {number: state for state, number in _SHARD_STATE_TO_WIRE.items()}

# Fields that have the same names on the wire, in the order of the dataclass.
_STATUS_NAMES = tuple(field.name for field in fields(JobStatus))
_status_values = attrgetter(*_STATUS_NAMES)
_HISTORY_NAMES = tuple(field.name for field in fields(HistoryEntry))
_history_values = attrgetter(*_HISTORY_NAMES)

Fields = dict[str, Any]


def encode_owner(message: OwnerMessage) -> bytes:
    return pb.OwnerMessage(**_owner_fields(message)).SerializeToString()


def encode_node(message: NodeMessage) -> bytes:
    return pb.NodeMessage(**_node_fields(message)).SerializeToString()


def decode_owner(raw: bytes) -> OwnerMessage:
    """Raises ValueError for what is no message, or one that only a newer node knows."""
    try:
        wire = pb.OwnerMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "dispatch":
                return _dispatch_of(wire.dispatch)
            case "acknowledge":
                return _acknowledge_of(wire.acknowledge)
            case "announce":
                return _announce_of(wire.announce)
    except (DecodeError, KeyError) as error:
        raise ValueError(f"an owner's message cannot be read: {error!r}") from error
    raise ValueError("an owner's message is of an unknown kind")


def decode_node(raw: bytes) -> NodeMessage:
    """As `decode_owner`."""
    try:
        wire = pb.NodeMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "alive":
                return Alive(wire.alive.owner_rev, wire.alive.epoch)
            case "response":
                return _response_of(wire.response)
            case "checkpoint":
                return _checkpoint_of(wire.checkpoint)
            case "sync":
                return _sync_of(wire.sync)
    except (DecodeError, KeyError) as error:
        raise ValueError(f"a node's message cannot be read: {error!r}") from error
    raise ValueError("a node's message is of an unknown kind")


# --- of the owner ----------------------------------------------------------------------------------------------


def _owner_fields(message: OwnerMessage) -> Fields:
    match message:
        case DispatchTable():
            return {"dispatch": _dispatch(message)}
        case Acknowledge():
            return {"acknowledge": _acknowledge(message)}
        case Announce():
            return {"announce": _announce(message)}
        case _:
            assert_never(message)


def _announce(message: Announce) -> Fields:
    return {
        "owner_id": message.owner_id,
        "owner_rev": message.owner_rev,
        "election_revision": message.election_revision,
        "version": message.version,
        "wire_format": message.wire_format,
    }


def _announce_of(wire: pb.Announce) -> Announce:
    return Announce(wire.owner_id, wire.owner_rev, wire.election_revision, wire.version, wire.wire_format)


def _acknowledge(message: Acknowledge) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "sync_number": message.sync_number,
        "recorded": message.recorded,
    }


def _acknowledge_of(wire: pb.Acknowledge) -> Acknowledge:
    return Acknowledge(wire.owner_rev, wire.epoch, wire.sync_number, wire.recorded)


def _dispatch(message: DispatchTable) -> Fields:
    table_epoch, shard = message.table_epoch, message.shard
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "dispatch_rev": table_epoch.owner_rev,
        "counter": table_epoch.counter,
        "table_id": shard.table_id,
        "range_id": shard.range_id,
        "is_delete": message.is_delete,
        "jobs": [_row(row) for row in message.jobs],
    }


def _dispatch_of(wire: pb.DispatchTable) -> DispatchTable:
    return DispatchTable(
        wire.owner_rev,
        wire.epoch,
        TableEpoch(wire.dispatch_rev, wire.counter),
        ShardId(wire.table_id, wire.range_id),
        wire.is_delete,
        tuple([_row_of(row) for row in wire.jobs]),
    )


def _row(row: JobRow) -> Fields:
    key = row.key
    return {
        "account": key.account,
        "table_id": key.table_id,
        "job_name": key.job_name,
        "job_id": row.job_id,
        "spec_json": row.spec_json,
        "table_name": row.table_name,
        "table_uri": row.table_uri,
        "state": STATE_TO_WIRE[row.state],
        "reason": REASON_TO_WIRE[row.reason],
        "watermark": _watermark(row.watermark),
        "seq": row.seq,
        "status_json": row.status_json,
        "create_at_s": row.create_at_s,
        "drop_at_s": row.drop_at_s,
        "range_id": key.range_id,
        "origin": row.origin,
    }


def _row_of(wire: pb.JobRow) -> JobRow:
    return JobRow(
        JobKey(wire.account, wire.table_id, wire.job_name, wire.range_id or 1),
        wire.job_id,
        wire.spec_json,
        wire.table_name,
        wire.table_uri,
        STATE_FROM_WIRE[wire.state],
        REASON_FROM_WIRE[wire.reason],
        _watermark_of(wire.watermark),
        wire.seq,
        wire.status_json,
        wire.create_at_s,
        wire.drop_at_s if wire.HasField("drop_at_s") else None,
        wire.origin,
    )


def _watermark(watermark: Watermark) -> Fields:
    return {
        "version": watermark.version,
        "at_s": watermark.at_s,
        "step": watermark.step,
        "steps": watermark.steps,
    }


def _watermark_of(wire: pb.Watermark) -> Watermark:
    return Watermark(wire.version, wire.at_s, wire.step, wire.steps)


# --- of a node -------------------------------------------------------------------------------------------------


def _node_fields(message: NodeMessage) -> Fields:
    match message:
        case DispatchTableResponse():
            return {"response": _response(message)}
        case Checkpoint():
            return {"checkpoint": _checkpoint(message)}
        case Sync():
            return {"sync": _sync(message)}
        case Alive(owner_rev, epoch):
            return {"alive": {"owner_rev": owner_rev, "epoch": epoch}}
        case _:
            assert_never(message)


def _sync(message: Sync) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "version": message.version,
        "number": message.number,
        "part": message.part,
        "parts": message.parts,
        "recorded": message.recorded,
        "shards": [_held(held) for held in message.shards],
        "wire_format": message.wire_format,
    }


def _sync_of(wire: pb.Sync) -> Sync:
    return Sync(
        wire.owner_rev,
        wire.epoch,
        wire.version,
        wire.number,
        wire.part,
        wire.parts,
        wire.recorded,
        tuple([_held_of(held) for held in wire.shards]),
        wire.wire_format,
    )


def _held(held: NodeShard) -> Fields:
    return {
        "table_id": held.shard.table_id,
        "range_id": held.shard.range_id,
        "dispatch_rev": held.table_epoch.owner_rev,
        "counter": held.table_epoch.counter,
        "state": _SHARD_STATE_TO_WIRE[held.state],
    }


def _held_of(wire: pb.HeldShard) -> NodeShard:
    return NodeShard(
        ShardId(wire.table_id, wire.range_id),
        TableEpoch(wire.dispatch_rev, wire.counter),
        _SHARD_STATE_FROM_WIRE[wire.state],
    )


def _response(message: DispatchTableResponse) -> Fields:
    table_epoch, shard = message.table_epoch, message.shard
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "dispatch_rev": table_epoch.owner_rev,
        "counter": table_epoch.counter,
        "table_id": shard.table_id,
        "range_id": shard.range_id,
        "state": _SHARD_STATE_TO_WIRE[message.state],
    }


def _response_of(wire: pb.DispatchTableResponse) -> DispatchTableResponse:
    return DispatchTableResponse(
        wire.owner_rev,
        wire.epoch,
        TableEpoch(wire.dispatch_rev, wire.counter),
        ShardId(wire.table_id, wire.range_id),
        _SHARD_STATE_FROM_WIRE[wire.state],
    )


def _checkpoint(message: Checkpoint) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "number": message.number,
        "shards": [_shard_checkpoint(item) for item in message.shards],
    }


def _checkpoint_of(wire: pb.Checkpoint) -> Checkpoint:
    shards = tuple([_shard_checkpoint_of(item) for item in wire.shards])
    return Checkpoint(wire.owner_rev, wire.epoch, wire.number, shards)


def _shard_checkpoint(item: ShardCheckpoint) -> Fields:
    return {
        "table_id": item.shard.table_id,
        "range_id": item.shard.range_id,
        "reports": [_report(report) for report in item.reports],
        "history": [dict(zip(_HISTORY_NAMES, _history_values(entry), strict=True)) for entry in item.history],
        "seen": _seen(item.seen) if item.seen is not None else None,
    }


def _shard_checkpoint_of(wire: pb.ShardCheckpoint) -> ShardCheckpoint:
    return ShardCheckpoint(
        ShardId(wire.table_id, wire.range_id),
        tuple([_report_of(report) for report in wire.reports]),
        tuple([HistoryEntry(*_history_values(entry)) for entry in wire.history]),
        _seen_of(wire.seen) if wire.HasField("seen") else None,
    )


def _report(report: JobReport) -> Fields:
    key, status = report.key, report.status
    return {
        "account": key.account,
        "table_id": key.table_id,
        "job_name": key.job_name,
        "job_id": report.job_id,
        "watermark": _watermark(report.watermark),
        "seq": report.seq,
        "state": STATE_TO_WIRE[report.state] if report.state is not None else None,
        "reason": REASON_TO_WIRE[report.reason] if report.reason is not None else None,
        "status": dict(zip(_STATUS_NAMES, _status_values(status), strict=True)) if status is not None else None,
        "range_id": key.range_id,
    }


def _report_of(wire: pb.JobReport) -> JobReport:
    return JobReport(
        JobKey(wire.account, wire.table_id, wire.job_name, wire.range_id or 1),
        wire.job_id,
        _watermark_of(wire.watermark),
        wire.seq,
        STATE_FROM_WIRE[wire.state] if wire.state else None,
        REASON_FROM_WIRE[wire.reason] if wire.reason else None,
        JobStatus(*_status_values(wire.status)) if wire.HasField("status") else None,
    )


def _seen(seen: SourceSeen) -> Fields:
    return {
        "table_id": seen.shard.table_id,
        "range_id": seen.shard.range_id,
        "source_version": seen.source_version,
        "checked_at_s": seen.checked_at_s,
        "lag_s": seen.lag_s,
    }


def _seen_of(wire: pb.SourceSeen) -> SourceSeen:
    return SourceSeen(ShardId(wire.table_id, wire.range_id), wire.source_version, wire.checked_at_s, wire.lag_s)
