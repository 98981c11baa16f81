"""Up to which commit time everything is applied: of each table, and of all (after TiCDC's global checkpoint).

A shard counts with the jobs that are built and neither paused nor failed for good; the others are left out, and
listed. A job that has applied all that was there when its source was looked at is resolved up to that look, else up
to the last commit that it has applied.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import inf

from iscp.coordination.messages import SourceSeen
from iscp.core.ids import ShardId
from iscp.core.job import JobRow


def counts(row: JobRow) -> bool:
    """Whether the checkpoint waits for this job."""
    return row.watermark.version >= 0 and not row.paused and not row.failed_for_good


def resolved_at_s(jobs: Iterable[JobRow], seen: SourceSeen | None) -> float:
    """Unix time up to which these jobs of one shard have applied everything; inf if none of them counts."""
    at_s = inf
    for row in jobs:
        if counts(row):
            current = seen is not None and row.watermark.version >= seen.source_version
            job_at_s = max(row.watermark.at_s, seen.checked_at_s if seen is not None and current else 0.0)
            at_s = min(at_s, job_at_s)
    return at_s


class GlobalCheckpoint:
    """The least of all shards' times, which never goes back. A change costs the logarithm of the number of shards.

    `at_s` is what was told last: a commit time (Unix seconds), 0 before there is one.
    """

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self._shards: dict[ShardId, float] = {}
        self._heap: list[tuple[float, ShardId]] = []

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None) -> None:
        """What is known of the shard now; no jobs: it is not wanted any more."""
        at_s = resolved_at_s(jobs, seen)
        if at_s == self._shards.get(shard, inf):
            return
        if at_s == inf:
            del self._shards[shard]
        else:
            self._shards[shard] = at_s
            heapq.heappush(self._heap, (at_s, shard))
        if len(self._heap) > 2 * len(self._shards) + 16:  # what no longer holds is not to pile up
            self._heap = [(each, name) for name, each in self._shards.items()]
            heapq.heapify(self._heap)

    def least_s(self) -> float:
        """The least of the shards' times now; inf if none counts."""
        while self._heap and self._shards.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def advance(self) -> bool:
        """Go on to the present least, while every wanted shard runs and is known; whether that was any further."""
        least_s = self.least_s()
        if least_s == inf or least_s <= self.at_s:
            return False
        self.at_s = least_s
        return True
