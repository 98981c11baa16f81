"""The facts that an owner's loop keeps of progress: the global checkpoint, the sources of shards, and a signal for
those who wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from iscp.cluster.invariants import check_checkpoint
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import Leader, ShardId
from iscp.ports.cluster import CheckpointStore
from iscp.ports.system import Clock
from iscp.schedule.lag import GlobalCheckpoint, SteadyTime, probe_age_s

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least seconds between two records of the global checkpoint in etcd."""


class Checkpointer:
    """Keeps the owner's global checkpoint, and saves it now and then: the next owner is never to publish an earlier
    one.

    All methods but `save` belong to the owner loop's thread. `due_s` says when to call `advance` (None: nothing has
    changed since).
    """

    def __init__(
        self,
        store: CheckpointStore,
        clock: Clock,
        of: Callable[[float], GlobalCheckpoint] = GlobalCheckpoint,
        time: SteadyTime | None = None,
    ) -> None:
        self._store = store
        self._time = time or SteadyTime()
        self._clock = clock
        self._of = of
        self._checkpoint = of(0.0)
        self.due_s: float | None = None

    @property
    def at_s(self) -> float:
        """Return the Unix time up to which everything that counts is applied; 0 before that is known."""
        return self._checkpoint.at_s

    @property
    def catching_up(self) -> frozenset[str]:
        """Return the job_ids of those that came to count when they had applied less than it says, and still have."""
        return frozenset(chain.from_iterable(self._checkpoint.catching_up.values()))

    def check(self, rows: Iterable[JobRow], applied_up_to_s: Callable[[JobRow], float]) -> None:
        """Raises InvariantBroken where it says too much, in view of what is really applied."""
        check_checkpoint(self._checkpoint, rows, applied_up_to_s)

    def begin(self, wanted: Mapping[ShardId, Sequence[JobRow]]) -> None:
        """Begin a term with what the last owner has published. Raises Unavailable."""
        self._checkpoint = self._of(self._store.load())
        self.due_s, now_at_s = None, self._now_s()
        for shard, jobs in wanted.items():
            self._checkpoint.take(shard, jobs, None, now_at_s)

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None) -> None:
        self._checkpoint.take(shard, jobs, seen, self._now_s())
        self.due_s = self.due_s or self._clock.monotonic_s() + EVERY_S

    def advance(self, running: bool) -> bool:
        """Advance, and return whether there is a later checkpoint to save. `running` means that every wanted shard
        runs, and its node is known.
        """
        self.due_s = None
        if not running:
            self.due_s = self._clock.monotonic_s() + EVERY_S
            return False
        return self._checkpoint.advance()

    def take_back(self) -> str:
        """Take the checkpoint back if it was ahead of this node's clock, and return what is to be reported, and saved;
        else empty.
        """
        before_s = self.at_s
        if not self._checkpoint.take_back(self._now_s()):
            return ""
        return f"the global checkpoint was {before_s - self.at_s:.0f} s ahead, by a clock that was wrong: taken back"

    def _now_s(self) -> float:
        return self._time.read(self._clock.now_s(), self._clock.monotonic_s())

    def save(self, leader: Leader) -> None:
        """Save the checkpoint, in the thread that may wait for etcd. One that is not saved now is with the next one."""
        try:
            self._store.save(leader, self.at_s)
        except IscpError as error:
            log.warning("owner.checkpoint_not_saved", extra={"error": str(error)})


SAME_CLOCK_S = 0.1
"""Seconds by which a probe's time by the node's clock may differ from that by the owner's, and still be shown."""


class SeenSources:
    """The sources of an owner's shards as they were seen.

    `seen` maps shards to what their nodes last saw, with times of their clocks. `repaired` are those of them with a
    repair that some job has not applied.
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


class ProgressSignal:
    """A signal that wakes those who wait for a job whenever rows have changed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        # A count, not a flag: a change between a waiter's read of the job and its wait is not missed.
        self._count = 0
        self.closed = False

    def notify(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Wake everyone for the last time: the node stops."""
        self.closed = True
        self.notify()

    def count(self) -> int:
        return self._count

    def wait(self, since: int, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._count != since, timeout_s)
