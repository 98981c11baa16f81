"""Nodes that do what an owner requests of them at once, and what there is for them to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import (
    Acknowledge,
    Announce,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShard,
    NodeShardState,
    OwnerMessage,
    Sync,
)
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey, NodeRecord

EPOCH = 1


def node_records(count: int) -> tuple[NodeRecord, ...]:
    """So many nodes, in their first lives."""
    return tuple(NodeRecord(f"n-{number}", EPOCH, f"n-{number}:1") for number in range(count))


def job_rows(count: int) -> Iterator[JobRow]:
    """A job on each of so many tables."""
    for number in range(count):
        spec = JobSpec(ConsumerSpec("replica", f"/lake/targets/{number}", ("id",)))
        source = f"/lake/sources/{number}"
        key = JobKey("default", f"t-{number}", "copy")
        yield JobRow(key, f"{number:012x}", spec.to_json(), source, source, create_at_s=1.6e9 + number)


def answers(message: OwnerMessage, held: tuple[NodeShard, ...] = ()) -> list[NodeMessage]:
    """All that such a node says to it, in order: of a dispatch that it has begun, and that it is done.

    `held`: what it runs already.
    """
    match message:
        case Announce(owner_rev=owner_rev):
            return [Sync(owner_rev, EPOCH, "v", 1, 0, 1, 0, held)]
        case DispatchTable(is_delete=is_delete):
            begun = NodeShardState.REMOVING if is_delete else NodeShardState.ADDING
            reached = NodeShardState.ABSENT if is_delete else NodeShardState.RUNNING
            asked = message.owner_rev, EPOCH, message.table_epoch, message.shard
            return [DispatchTableResponse(*asked, state) for state in (begun, reached)]
        case Acknowledge():
            return []
        case _:
            assert_never(message)
