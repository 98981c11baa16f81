"""Find the commit time up to which everything is applied, for each table and for all (after TiCDC's global checkpoint).

Invariant: what was committed to its source up to the checkpoint is applied by every wanted job but those left out,
which are listed. Left out are jobs that are not built, paused or failed for good, and jobs that are catching up: those
that came to count (built, resumed, rebuilt by a resync, a split or a merge) when they had applied less than the
checkpoint says. The checkpoint never goes back, so it cannot take them in before they have reached it.

A job that has applied all that was there when its source was probed is resolved up to that probe, else up to the last
commit that it has applied. One that counted once and only has much to do is still applied up to the checkpoint, though
that cannot be seen of it now: the checkpoint waits for it.

Times come from the clocks of nodes and of those who commit: one that is ahead of the owner's says nothing. The owner's
own counts as SteadyTime has it, so that one probe by an owner whose clock jumps ahead moves nothing. If the checkpoint
itself was taken ahead, by an owner whose clock was wrong, it is taken back once the nodes that probed most
of the sources agree with the owner's clock: else that clock may be the one that is behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

from iscp.coordination.clocks import of_the_future
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.job.job_row import JobRow
from iscp.core.values.ids import ShardId


def counts(row: JobRow) -> bool:
    """Return whether the checkpoint waits for this job, once it has caught up."""
    return row.watermark.version >= 0 and not row.paused and not row.failed_for_good


def resolved_at_s(row: JobRow, seen: SourceSeen | None, now_at_s: float = inf) -> float:
    """Return the Unix time up to which the job is known to have applied everything, at `now_at_s`; 0 if unknown."""
    version, applied_at_s = row.watermark.version, row.watermark.at_s
    if of_the_future(applied_at_s, now_at_s):
        applied_at_s = 0.0
    if seen is None or version < seen.source_version or of_the_future(seen.checked_at_s, now_at_s):
        return min(applied_at_s, now_at_s)
    if version == seen.source_version:  # the probe was later than the commit, whatever that is dated
        return min(seen.checked_at_s, now_at_s)
    return min(max(applied_at_s, seen.checked_at_s), now_at_s)


class GlobalCheckpoint:
    """The least of all shards' times; it goes back by `take_back` alone. A change costs the logarithm of their number.

    `at_s` is what was reported last: a commit time (Unix seconds), 0 before there is one. `catching_up`: the job_ids of
    those that count and have not reached it, of shards that have any.
    """

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.catching_up: dict[ShardId, tuple[str, ...]] = {}
        self._covered: dict[ShardId, tuple[str, ...]] = {}
        self._shards: dict[ShardId, float] = {}
        self._heap: list[tuple[float, ShardId]] = []
        # Shards with a job that counts; whether who looked at its source agrees with the owner's clock.
        self._agreeing: dict[ShardId, bool] = {}
        self._agree = 0

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None, now_at_s: float = inf) -> None:
        """Take what is known of the shard at `now_at_s` (Unix time); without jobs it is not wanted any more.

        `seen` is None until this term has heard of a probe of the source. Before that nobody knows how far its jobs are
        behind: the checkpoint waits.
        """
        before = self._covered.get(shard, ())
        covered: list[str] = []
        behind: list[str] = []
        least_s = inf
        for row in filter(counts, jobs):
            resolved_s = resolved_at_s(row, seen, now_at_s)
            reached = row.job_id in before or resolved_s >= self.at_s
            (covered if reached else behind).append(row.job_id)
            if reached or seen is None:
                least_s = min(least_s, resolved_s)
        _keep(self._covered, shard, covered)
        _keep(self.catching_up, shard, behind)
        self._note_clock(shard, seen, now_at_s, there=bool(covered or behind))
        self._set(shard, least_s)

    def _note_clock(self, shard: ShardId, seen: SourceSeen | None, now_at_s: float, *, there: bool) -> None:
        self._agree -= self._agreeing.pop(shard, False)
        if there:
            agrees = seen is not None and not of_the_future(seen.checked_at_s, now_at_s)
            self._agreeing[shard] = agrees
            self._agree += agrees

    def _set(self, shard: ShardId, at_s: float) -> None:
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

    def covers(self, row: JobRow) -> bool:
        """Return whether the checkpoint speaks for this job."""
        return row.job_id in self._covered.get(row.key.shard, ())

    def least_s(self) -> float:
        """Return the least of the shards' times now; inf if none counts."""
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

    def take_back(self, now_at_s: float) -> bool:
        """Take back a checkpoint ahead of the owner's clock, if most sources agree with that; return whether it was."""
        if not of_the_future(self.at_s, now_at_s) or 2 * self._agree <= len(self._agreeing):
            return False
        self.at_s = min(now_at_s, self.least_s())
        return True


def _keep(of: dict[ShardId, tuple[str, ...]], shard: ShardId, job_ids: list[str]) -> None:
    if job_ids:
        of[shard] = tuple(job_ids)
    else:
        of.pop(shard, None)
