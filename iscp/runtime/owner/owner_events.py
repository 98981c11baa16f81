"""The events that an owner's loop gets from its own node, beside the events of its machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iscp.coordination.protocol.messages import NodeMessage
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Leader
from iscp.runtime.loop.inbox import Gathered
from iscp.runtime.owner.log.job_log_writer import LogWriter


@dataclass(frozen=True, slots=True)
class Won:
    leader: Leader


@dataclass(frozen=True, slots=True)
class Lost:
    """The election is lost, or (`writer` given) the log belongs to another term."""

    writer: LogWriter | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The writer has committed. `shards` says whether their jobs were decided again or have only progressed."""

    writer: LogWriter
    shards: Gathered[dict[ShardId, bool]]


@dataclass(frozen=True, slots=True)
class Query:
    read: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Heard:
    """A `Heard` is what one node sent together, and when it came in."""

    node_id: str
    messages: Sequence[NodeMessage]
    came_s: float


@dataclass(frozen=True, slots=True)
class Members:
    """The registered nodes have changed."""


def merge_shards(before: dict[ShardId, bool], now: dict[ShardId, bool]) -> dict[ShardId, bool]:
    """Merge what changed before with what changes now."""
    for shard, decided in now.items():
        before[shard] = decided or before.get(shard, False)
    return before
