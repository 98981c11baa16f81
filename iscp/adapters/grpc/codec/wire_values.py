"""Values that owner and nodes say, as fields of protobuf's messages and back; numbers that cannot be are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from iscp.core.job.report_validation import exact_shard
from iscp.core.rows.key_ranges import WHOLE
from iscp.core.values.ids import JobKey, ShardId, TableEpoch
from iscp.core.values.untrusted_values import NAME_CHARS_MAX, exact_int, printable
from iscp.core.values.watermark import Watermark
from iscp.wire.v1 import node_pb2 as pb

Fields = dict[str, Any]


def watermark_fields(watermark: Watermark) -> Fields:
    return {
        "version": watermark.version,
        "at_s": watermark.at_s,
        "step": watermark.step,
        "steps": watermark.steps,
    }


def watermark_of(wire: pb.Watermark) -> Watermark:
    return Watermark(wire.version, wire.at_s, wire.step, wire.steps)


def counts(wire: Message, *names: str) -> Iterator[int]:
    return (exact_int(getattr(wire, name), name) for name in names)


def shard_fields(shard: ShardId) -> Fields:
    return {"table_id": shard.table_id, "range_id": shard.range_id}


def shard_of(wire: Any) -> ShardId:
    """Of a message with both of its fields. Raises ValueError."""
    return exact_shard(ShardId(wire.table_id, wire.range_id))


def key_fields(key: JobKey) -> Fields:
    return {
        "account": key.account,
        "table_id": key.table_id,
        "job_name": key.job_name,
        "range_id": key.range_id,
    }


def key_of(wire: pb.JobRow | pb.JobReport) -> JobKey:
    """Of a message that may be older than ranges: without one it is of the whole table."""
    return JobKey(wire.account, wire.table_id, wire.job_name, wire.range_id or WHOLE)


def placement_fields(shard: ShardId, table_epoch: TableEpoch) -> Fields:
    return {"dispatch_rev": table_epoch.owner_rev, "counter": table_epoch.counter, **shard_fields(shard)}


def table_epoch_of(wire: pb.DispatchTable | pb.DispatchTableResponse | pb.HeldShard, owner_rev: int) -> TableEpoch:
    """Of this term or one before: a later one's would fence all that this owner says from now on."""
    return TableEpoch(exact_int(wire.dispatch_rev, "dispatch_rev", 0, owner_rev), exact_int(wire.counter, "counter"))


def version_of(wire: pb.Announce | pb.Sync) -> str:
    return printable(wire.version, NAME_CHARS_MAX)
