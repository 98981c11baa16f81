"""Remember what an owner knows of the sources of its shards."""

from __future__ import annotations

from dataclasses import replace

from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.values.ids import ShardId


class SeenSources:
    """The sources as they were seen: `seen` maps shards to what their nodes last saw.

    `repaired` are those of them with a repair that some job has not applied.
    """

    def __init__(self) -> None:
        self.seen: dict[ShardId, SourceSeen] = {}
        self.repaired: dict[ShardId, None] = {}

    def take(self, seen: SourceSeen) -> None:
        before = self.seen.get(seen.shard)
        if before is not None and not seen.checked_at_s:  # its node could never probe it; another one could
            seen = replace(before, unreached=True)
        self.seen[seen.shard] = seen
        if seen.repair_version:
            self.repaired[seen.shard] = None
        else:
            self.repaired.pop(seen.shard, None)

    def forget(self, shard: ShardId) -> None:
        self.seen.pop(shard, None)
        self.repaired.pop(shard, None)
