"""What an owner says, as fields of protobuf's messages and back: announces, acknowledgements and dispatches of jobs."""

from __future__ import annotations

from iscp.adapters.grpc.codec.convert import REASON_FROM_WIRE, REASON_TO_WIRE, STATE_FROM_WIRE, STATE_TO_WIRE
from iscp.adapters.grpc.codec.quarantine import Quarantine
from iscp.adapters.grpc.codec.wire_values import (
    Fields,
    counts,
    key_fields,
    key_of,
    placement_fields,
    shard_of,
    table_epoch_of,
    version_of,
    watermark_fields,
    watermark_of,
)
from iscp.coordination.protocol.messages import Acknowledge, Announce, DispatchTable
from iscp.core.job.job_row import JobRow
from iscp.core.job.report_validation import refuse_absurd_row
from iscp.core.values.untrusted_values import exact_name
from iscp.wire.v1 import node_pb2 as pb


def announce_fields(message: Announce) -> Fields:
    return {
        "owner_id": message.owner_id,
        "owner_rev": message.owner_rev,
        "election_revision": message.election_revision,
        "version": message.version,
        "wire_format": message.wire_format,
    }


def announce_of(wire: pb.Announce) -> Announce:
    owner_rev, revision, wire_format = counts(wire, "owner_rev", "election_revision", "wire_format")
    return Announce(exact_name(wire.owner_id, "owner_id"), owner_rev, revision, version_of(wire), wire_format)


def acknowledge_fields(message: Acknowledge) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        "sync_number": message.sync_number,
        "recorded": message.recorded,
    }


def acknowledge_of(wire: pb.Acknowledge) -> Acknowledge:
    return Acknowledge(*counts(wire, "owner_rev", "epoch", "sync_number", "recorded"))


def dispatch_fields(message: DispatchTable) -> Fields:
    return {
        "owner_rev": message.owner_rev,
        "epoch": message.epoch,
        **placement_fields(message.shard, message.table_epoch),
        "is_delete": message.is_delete,
        "jobs": [_row(row) for row in message.jobs],
    }


def dispatch_of(wire: pb.DispatchTable, quarantine: Quarantine) -> DispatchTable:
    owner_rev, epoch = counts(wire, "owner_rev", "epoch")
    return DispatchTable(
        owner_rev,
        epoch,
        table_epoch_of(wire, owner_rev),
        shard_of(wire),
        wire.is_delete,
        quarantine.each(_row_of, wire.jobs, "job"),
    )


def _row(row: JobRow) -> Fields:
    return {
        **key_fields(row.key),
        "job_id": row.job_id,
        "spec_json": row.spec_json,
        "table_name": row.table_name,
        "table_uri": row.table_uri,
        "state": STATE_TO_WIRE[row.state],
        "reason": REASON_TO_WIRE[row.reason],
        "watermark": watermark_fields(row.watermark),
        "seq": row.seq,
        "status_json": row.status_json,
        "create_at_s": row.create_at_s,
        "drop_at_s": row.drop_at_s,
        "origin": row.origin,
    }


def _row_of(wire: pb.JobRow) -> JobRow:
    row = JobRow(
        key_of(wire),
        wire.job_id,
        wire.spec_json,
        wire.table_name,
        wire.table_uri,
        STATE_FROM_WIRE[wire.state],
        REASON_FROM_WIRE[wire.reason],
        watermark_of(wire.watermark),
        wire.seq,
        wire.status_json,
        wire.create_at_s,
        wire.drop_at_s if wire.HasField("drop_at_s") else None,
        wire.origin,
    )
    refuse_absurd_row(row)
    return row
