"""Keeps the owner's global checkpoint, and saves it now and then: the next owner is never to publish an earlier one.

All methods but `save` belong to the owner loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from iscp.coordination.clocks import SteadyTime
from iscp.coordination.global_checkpoint import GlobalCheckpoint
from iscp.coordination.invariants import check_checkpoint
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import IscpError
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Leader
from iscp.ports.cluster import CheckpointStore
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least seconds between two records of the global checkpoint in etcd."""


class Checkpointer:
    """Save the global checkpoint. `due_s` says when to call `advance` (None: nothing has changed since)."""

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
