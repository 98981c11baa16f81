"""What a node says, as fields of protobuf's messages and back: Syncs, answers to dispatches, checkpoints."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from iscp.adapters.grpc.codec.convert import REASON_FROM_WIRE, REASON_TO_WIRE, STATE_FROM_WIRE, STATE_TO_WIRE
from iscp.adapters.grpc.codec.quarantine import Quarantine
from iscp.adapters.grpc.codec.wire_builds import build_from_wire, build_to_wire
from iscp.adapters.grpc.codec.wire_marks import marks_from_wire, marks_to_wire
from iscp.adapters.grpc.codec.wire_values import (
    Fields,
    counts,
    key_fields,
    key_of,
    placement_fields,
    shard_fields,
    shard_of,
    table_epoch_of,
    version_of,
    watermark_fields,
    watermark_of,
)
from iscp.coordination.protocol.messages import (
    SYNC_PARTS_MAX,
    Checkpoint,
    DispatchTableResponse,
    FurtherSeen,
    NodeShard,
    NodeShardState,
    ShardCheckpoint,
    SourceSeen,
    Sync,
    exact_seen,
)
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport, JobStatus
from iscp.core.job.report_validation import exact_entry, exact_report
from iscp.core.values.ids import ShardId
from iscp.core.values.untrusted_values import exact_int
from iscp.wire.v1 import admin_pb2
from iscp.wire.v1 import node_pb2 as pb

_SHARD_STATE_TO_WIRE = {state: pb.ShardState.Value(f"SHARD_STATE_{state.name}") for state in NodeShardState}
_SHARD_STATE_FROM_WIRE = {number: state for state, number in _SHARD_STATE_TO_WIRE.items()}

# Fields that have the same names on the wire, in the order of the dataclass.
_STATUS_NAMES = tuple(field.name for field in fields(JobStatus) if field.name not in ("sources", "build"))
_status_values = attrgetter(*_STATUS_NAMES)
_HISTORY_NAMES = tuple(field.name for field in fields(HistoryEntry))
_history_values = attrgetter(*_HISTORY_NAMES)


def sync_fields(message: Sync) -> Fields:
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


def sync_of(wire: pb.Sync) -> Sync:
    """As a whole or not at all: what is missing in it would count as not running there."""
    owner_rev, epoch, number, recorded = counts(wire, "owner_rev", "epoch", "number", "recorded")
    parts = exact_int(wire.parts, "parts", 1, SYNC_PARTS_MAX)
    return Sync(
        owner_rev,
        epoch,
        version_of(wire),
        number,
        exact_int(wire.part, "part", 0, parts - 1),
        parts,
        recorded,
        tuple([_held_of(held, owner_rev) for held in wire.shards]),
        exact_int(wire.wire_format, "wire_format"),
    )


def _held(held: NodeShard) -> Fields:
    return {**placement_fields(held.shard, held.table_epoch), "state": _SHARD_STATE_TO_WIRE[held.state]}


def _held_of(wire: pb.HeldShard, owner_rev: int) -> NodeShard:
    return NodeShard(
        shard_of(wire),
        table_epoch_of(wire, owner_rev),
        _SHARD_STATE_FROM_WIRE[wire.state],
    )


def response_fields(message: DispatchTableResponse) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        **placement_fields(message.shard, message.table_epoch),
        "state": _SHARD_STATE_TO_WIRE[message.state],
    }


def response_of(wire: pb.DispatchTableResponse) -> DispatchTableResponse:
    owner_rev, epoch = counts(wire, "owner_rev", "epoch")
    return DispatchTableResponse(
        owner_rev,
        epoch,
        table_epoch_of(wire, owner_rev),
        shard_of(wire),
        _SHARD_STATE_FROM_WIRE[wire.state],
    )


def checkpoint_fields(message: Checkpoint) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "number": message.number,
        "shards": [_shard_checkpoint(item) for item in message.shards],
    }


def checkpoint_of(wire: pb.Checkpoint, quarantine: Quarantine) -> Checkpoint:
    owner_rev, epoch, number = counts(wire, "owner_rev", "epoch", "number")
    shards = quarantine.each(lambda item: _shard_checkpoint_of(item, quarantine), wire.shards, "shard")
    return Checkpoint(owner_rev, epoch, number, shards)


def _shard_checkpoint(item: ShardCheckpoint) -> Fields:
    return {
        **shard_fields(item.shard),
        "reports": [_report(report) for report in item.reports],
        "history": [dict(zip(_HISTORY_NAMES, _history_values(entry), strict=True)) for entry in item.history],
        "seen": _seen(item.seen) if item.seen is not None else None,
    }


def _shard_checkpoint_of(wire: pb.ShardCheckpoint, quarantine: Quarantine) -> ShardCheckpoint:
    seen = quarantine.each(_seen_of, [wire.seen], "source") if wire.HasField("seen") else ()
    return ShardCheckpoint(
        shard_of(wire),
        quarantine.each(_report_of, wire.reports, "report"),
        quarantine.each(_entry_of, wire.history, "history"),
        seen[0] if seen else None,
    )


def _entry_of(wire: admin_pb2.HistoryEntry) -> HistoryEntry:
    return exact_entry(HistoryEntry(*_history_values(wire)))


def _report(report: JobReport) -> Fields:
    status = report.status
    return {
        **key_fields(report.key),
        "job_id": report.job_id,
        "watermark": watermark_fields(report.watermark),
        "seq": report.seq,
        "state": STATE_TO_WIRE[report.state] if report.state is not None else None,
        "reason": REASON_TO_WIRE[report.reason] if report.reason is not None else None,
        "status": _status(status) if status is not None else None,
    }


def _report_of(wire: pb.JobReport) -> JobReport:
    report = JobReport(
        key_of(wire),
        wire.job_id,
        watermark_of(wire.watermark),
        wire.seq,
        STATE_FROM_WIRE[wire.state] if wire.state else None,
        REASON_FROM_WIRE[wire.reason] if wire.reason else None,
        _status_of(wire.status) if wire.HasField("status") else None,
    )
    return exact_report(report)


def _status(status: JobStatus) -> Fields:
    values = dict(zip(_STATUS_NAMES, _status_values(status), strict=True))
    build = {"build": build_to_wire(status.build)} if status.build else {}
    return values | build | ({"sources": marks_to_wire(status.sources)} if status.sources else {})


def _status_of(wire: pb.Status) -> JobStatus:
    return JobStatus(
        **dict(zip(_STATUS_NAMES, _status_values(wire), strict=True)),
        sources=marks_from_wire(wire.sources),
        build=build_from_wire(wire),
    )


def _seen(seen: SourceSeen) -> Fields:
    return {
        **shard_fields(seen.shard),
        "source_version": seen.source_version,
        "checked_at_s": seen.checked_at_s,
        "lag_s": seen.lag_s,
        "further": [{"uri": each.uri, "version": each.version, "lag_s": each.lag_s} for each in seen.further],
        "repair_version": seen.repair_version,
        "unreached": seen.unreached,
    }


def _seen_of(wire: pb.SourceSeen) -> SourceSeen:
    further = tuple(FurtherSeen(each.uri, each.version, each.lag_s) for each in wire.further)
    shard = ShardId(wire.table_id, wire.range_id)
    source = wire.source_version, wire.checked_at_s, wire.lag_s
    return exact_seen(SourceSeen(shard, *source, further, wire.repair_version, wire.unreached))
