"""Remember what an owner knows of the sources of its shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iscp.coordination.lag import probe_age_s
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.values.ids import ShardId
from iscp.ports.system import Clock

SAME_CLOCK_S = 0.1
"""Seconds by which a probe's time by the node's clock may differ from that by the owner's, and still be shown."""


class SeenSources:
    """The sources as they were seen: `seen` maps shards to what their nodes last saw, with times of their clocks.

    `repaired` are those of them with a repair that some job has not applied.
    """

    def __init__(self, clock: Clock) -> None:
        self.seen: dict[ShardId, SourceSeen] = {}
        self.repaired: dict[ShardId, None] = {}
        self._clock = clock
        self._probed_s: dict[ShardId, float] = {}  # by this clock, which nobody sets

    def take(self, seen: SourceSeen) -> None:
        before = self.seen.get(seen.shard)
        if before is not None and not seen.checked_at_s:  # its node could never probe it; another one could
            seen = replace(before, unreached=True)
        else:
            self._probed_s[seen.shard] = self._clock.monotonic_s() - probe_age_s(seen, self._clock.now_s())
        self.seen[seen.shard] = seen
        if seen.repair_version:
            self.repaired[seen.shard] = None
        else:
            self.repaired.pop(seen.shard, None)

    def dated(self, shard: ShardId) -> SourceSeen | None:
        """Return what was seen of a shard, with the time of the probe by the owner's clock as it is now."""
        if (seen := self.seen.get(shard)) is None or not seen.checked_at_s:
            return seen
        at_s = self._clock.now_s() - (self._clock.monotonic_s() - self._probed_s[shard])
        return seen if abs(at_s - seen.checked_at_s) <= SAME_CLOCK_S else replace(seen, checked_at_s=at_s)

    def all_dated(self) -> Mapping[ShardId, SourceSeen]:
        return {shard: seen for shard in self.seen if (seen := self.dated(shard)) is not None}

    def forget(self, shard: ShardId) -> None:
        self.seen.pop(shard, None)
        self.repaired.pop(shard, None)
        self._probed_s.pop(shard, None)
