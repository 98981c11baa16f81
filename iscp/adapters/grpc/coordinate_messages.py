"""The messages of owner and nodes as bytes and back; both ways lose nothing that can be.

What a node may not believe of another one it refuses here: a message whose numbers cannot be, as a whole; of the jobs,
reports and history in it each by itself (see Quarantine). It is written for speed, as ten thousand shards are
dispatched within a second: protobuf is given dicts, since it would copy messages that stand in messages, and JSON stays
the text that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, assert_never

from google.protobuf.message import DecodeError, Message

from iscp.adapters.grpc.convert import REASON_FROM_WIRE, REASON_TO_WIRE, STATE_FROM_WIRE, STATE_TO_WIRE
from iscp.adapters.grpc.quarantine import Quarantine
from iscp.coordination.messages import (
    SYNC_PARTS_MAX,
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
    exact_seen,
)
from iscp.core.believed import exact_entry, exact_report, exact_shard, refuse_absurd_row
from iscp.core.foreign import NAME_CHARS_MAX, exact_int, exact_name, printable
from iscp.core.ids import JobKey, ShardId, TableEpoch
from iscp.core.iteration import HistoryEntry
from iscp.core.job import JobReport, JobRow, JobStatus
from iscp.core.watermark import Watermark
from iscp.wire.v1 import admin_pb2
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


def decode_owner(raw: bytes, quarantine: Quarantine) -> OwnerMessage:
    """Raises ValueError for what is no message, or one that only a newer node knows."""
    try:
        wire = pb.OwnerMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "dispatch":
                return _dispatch_of(wire.dispatch, quarantine)
            case "acknowledge":
                return _acknowledge_of(wire.acknowledge)
            case "announce":
                return _announce_of(wire.announce)
    except (DecodeError, KeyError, ValueError) as error:
        raise ValueError(f"an owner's message cannot be read: {error!r}") from error
    raise ValueError("an owner's message is of an unknown kind")


def decode_node(raw: bytes, quarantine: Quarantine) -> NodeMessage:
    """As `decode_owner`."""
    try:
        wire = pb.NodeMessage.FromString(raw)
        match wire.WhichOneof("message"):
            case "alive":
                return Alive(*_counts(wire.alive, "owner_rev", "epoch"))
            case "response":
                return _response_of(wire.response)
            case "checkpoint":
                return _checkpoint_of(wire.checkpoint, quarantine)
            case "sync":
                return _sync_of(wire.sync)
    except (DecodeError, KeyError, ValueError) as error:
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
    owner_rev, revision, wire_format = _counts(wire, "owner_rev", "election_revision", "wire_format")
    return Announce(exact_name(wire.owner_id, "owner_id"), owner_rev, revision, _version(wire), wire_format)


def _acknowledge(message: Acknowledge) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "sync_number": message.sync_number,
        "recorded": message.recorded,
    }


def _acknowledge_of(wire: pb.Acknowledge) -> Acknowledge:
    return Acknowledge(*_counts(wire, "owner_rev", "epoch", "sync_number", "recorded"))


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


def _dispatch_of(wire: pb.DispatchTable, quarantine: Quarantine) -> DispatchTable:
    owner_rev, epoch = _counts(wire, "owner_rev", "epoch")
    return DispatchTable(
        owner_rev,
        epoch,
        _table_epoch_of(wire, owner_rev),
        exact_shard(ShardId(wire.table_id, wire.range_id)),
        wire.is_delete,
        quarantine.each(_row_of, wire.jobs, "job"),
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
    row = JobRow(
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
    refuse_absurd_row(row)
    return row


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
    """As a whole or not at all: what is missing in it would count as not running there."""
    owner_rev, epoch, number, recorded = _counts(wire, "owner_rev", "epoch", "number", "recorded")
    parts = exact_int(wire.parts, "parts", 1, SYNC_PARTS_MAX)
    return Sync(
        owner_rev,
        epoch,
        _version(wire),
        number,
        exact_int(wire.part, "part", 0, parts - 1),
        parts,
        recorded,
        tuple([_held_of(held, owner_rev) for held in wire.shards]),
        exact_int(wire.wire_format, "wire_format"),
    )


def _held(held: NodeShard) -> Fields:
    return {
        "table_id": held.shard.table_id,
        "range_id": held.shard.range_id,
        "dispatch_rev": held.table_epoch.owner_rev,
        "counter": held.table_epoch.counter,
        "state": _SHARD_STATE_TO_WIRE[held.state],
    }


def _held_of(wire: pb.HeldShard, owner_rev: int) -> NodeShard:
    return NodeShard(
        exact_shard(ShardId(wire.table_id, wire.range_id)),
        _table_epoch_of(wire, owner_rev),
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
    owner_rev, epoch = _counts(wire, "owner_rev", "epoch")
    return DispatchTableResponse(
        owner_rev,
        epoch,
        _table_epoch_of(wire, owner_rev),
        exact_shard(ShardId(wire.table_id, wire.range_id)),
        _SHARD_STATE_FROM_WIRE[wire.state],
    )


def _checkpoint(message: Checkpoint) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "number": message.number,
        "shards": [_shard_checkpoint(item) for item in message.shards],
    }


def _checkpoint_of(wire: pb.Checkpoint, quarantine: Quarantine) -> Checkpoint:
    owner_rev, epoch, number = _counts(wire, "owner_rev", "epoch", "number")
    shards = quarantine.each(lambda item: _shard_checkpoint_of(item, quarantine), wire.shards, "shard")
    return Checkpoint(owner_rev, epoch, number, shards)


def _shard_checkpoint(item: ShardCheckpoint) -> Fields:
    return {
        "table_id": item.shard.table_id,
        "range_id": item.shard.range_id,
        "reports": [_report(report) for report in item.reports],
        "history": [dict(zip(_HISTORY_NAMES, _history_values(entry), strict=True)) for entry in item.history],
        "seen": _seen(item.seen) if item.seen is not None else None,
    }


def _shard_checkpoint_of(wire: pb.ShardCheckpoint, quarantine: Quarantine) -> ShardCheckpoint:
    seen = quarantine.each(_seen_of, [wire.seen], "source") if wire.HasField("seen") else ()
    return ShardCheckpoint(
        exact_shard(ShardId(wire.table_id, wire.range_id)),
        quarantine.each(_report_of, wire.reports, "report"),
        quarantine.each(_entry_of, wire.history, "history"),
        seen[0] if seen else None,
    )


def _entry_of(wire: admin_pb2.HistoryEntry) -> HistoryEntry:
    return exact_entry(HistoryEntry(*_history_values(wire)))


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
    report = JobReport(
        JobKey(wire.account, wire.table_id, wire.job_name, wire.range_id or 1),
        wire.job_id,
        _watermark_of(wire.watermark),
        wire.seq,
        STATE_FROM_WIRE[wire.state] if wire.state else None,
        REASON_FROM_WIRE[wire.reason] if wire.reason else None,
        JobStatus(*_status_values(wire.status)) if wire.HasField("status") else None,
    )
    return exact_report(report)


def _seen(seen: SourceSeen) -> Fields:
    return {
        "table_id": seen.shard.table_id,
        "range_id": seen.shard.range_id,
        "source_version": seen.source_version,
        "checked_at_s": seen.checked_at_s,
        "lag_s": seen.lag_s,
    }


def _seen_of(wire: pb.SourceSeen) -> SourceSeen:
    return exact_seen(
        SourceSeen(ShardId(wire.table_id, wire.range_id), wire.source_version, wire.checked_at_s, wire.lag_s)
    )


def _counts(wire: Message, *names: str) -> Iterator[int]:
    return (exact_int(getattr(wire, name), name) for name in names)


def _table_epoch_of(wire: pb.DispatchTable | pb.DispatchTableResponse | pb.HeldShard, owner_rev: int) -> TableEpoch:
    """Of this term or one before: a later one's would fence all that this owner says from now on."""
    return TableEpoch(exact_int(wire.dispatch_rev, "dispatch_rev", 0, owner_rev), exact_int(wire.counter, "counter"))


def _version(wire: pb.Announce | pb.Sync) -> str:
    return printable(wire.version, NAME_CHARS_MAX)
