"""Refreshes and purges that kinds of consumers bring along, on the node that runs the table's shard (after TiDB MVS).

The two are independent: heaps, intervals, backoff and threads of their own. A handler's fault is logged and tried again
later; it holds up no other, and no iteration. A handler may be called on two nodes for a moment while a shard
moves: what it does has to bear that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from iscp.coordination.effects import HoldIterations, StartShard, StopAllShards, StopShard, UpdateShard
from iscp.coordination.upkeep import UpkeepHeap
from iscp.core.config import BackoffConfig
from iscp.core.errors import IscpError
from iscp.core.ids import ShardId
from iscp.core.job import JobRow
from iscp.core.next_time import wait_until_s
from iscp.core.shard import WHOLE
from iscp.ports.pipeline import ConsumerKind, PurgeHandler, RefreshHandler
from iscp.ports.system import Clock
from iscp.runtime.notifier import Notifier

log = logging.getLogger(__name__)

REFRESH_INTERVAL_S = 1.0
PURGE_INTERVAL_S = 60.0
AT_ONCE_MAX = 2
"""Refreshes, and purges, at work."""

_FAILED = {"refresh": "refresh.failed", "purge": "purge.failed"}

T = TypeVar("T", bound=Hashable)
Order = StartShard | UpdateShard | StopShard | StopAllShards | HoldIterations
Purge = tuple[str, str]
"""A kind of consumer, and a table's id."""


class Upkeep:
    """Stands before the scheduler, and hears which jobs are this node's: `pass_on` gets every order at once.

    `lease_check` raises LeaseLost.
    """

    def __init__(
        self,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        backoff: BackoffConfig,
        draw: Callable[[], float],
        lease_check: Callable[[], None],
        pass_on: Callable[[Order], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._kinds = kinds
        self._clock = clock
        self._lease_check = lease_check
        self._pass_on = pass_on
        self._on_broken = on_broken
        self._refreshes: UpkeepHeap[str] = UpkeepHeap(REFRESH_INTERVAL_S, backoff, draw)
        self._purges: UpkeepHeap[Purge] = UpkeepHeap(PURGE_INTERVAL_S, backoff, draw)
        self._orders: deque[Order] = deque()
        self._shards: dict[ShardId, tuple[JobRow, ...]] = {}
        self._jobs: dict[str, JobRow] = {}
        self._lock = threading.Lock()
        self._wake = Notifier()
        self._closed = False
        self._pools = {name: ThreadPoolExecutor(AT_ONCE_MAX, f"iscp-{name}") for name in ("refresh", "purge")}
        self._thread = threading.Thread(target=self._loop, name="iscp-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give(self, order: Order) -> None:
        """Never waits; raises what the scheduler raises."""
        self._pass_on(order)
        self._orders.append(order)
        self._wake.notify()

    def close(self, wait_s: float) -> None:
        """Begin nothing more; what a handler is at ends by itself, or with the process."""
        self._closed = True
        self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _loop(self) -> None:
        try:
            while not self._closed:
                self.turn()
                self._wake.wait(self._sleep_s())
        except Exception as error:
            log.exception("upkeep.broken")
            self._on_broken(error)

    def turn(self) -> None:
        """Take in what was ordered, and begin what is due."""
        while self._orders:
            self._take(self._orders.popleft())
        with self._lock:
            now_s = self._clock.monotonic_s()
            refreshes, purges = self._refreshes.take_due(now_s), self._purges.take_due(now_s)
        for job_id in refreshes:
            self._pools["refresh"].submit(self._run, "refresh", self._refreshes, job_id, self._refresh)
        for purge in purges:
            self._pools["purge"].submit(self._run, "purge", self._purges, purge, self._purge)

    def _sleep_s(self) -> float | None:
        with self._lock:
            due = [each for each in (self._refreshes.next_due_s(), self._purges.next_due_s()) if each is not None]
        return max(0.0, min(due) - self._clock.monotonic_s()) if due else None

    # --- which are this node's -----------------------------------------------------------------------------------

    def _take(self, order: Order) -> None:
        match order:
            case StartShard(shard, _, jobs) | UpdateShard(shard, _, jobs):
                self._replace(shard, jobs)
            case StopShard(shard):
                self._replace(shard, ())
            case StopAllShards():
                for shard in list(self._shards):
                    self._replace(shard, ())
            case HoldIterations():
                pass

    def _replace(self, shard: ShardId, jobs: tuple[JobRow, ...]) -> None:
        before = self._shards.pop(shard, ())
        if jobs:
            self._shards[shard] = jobs
        kept = {row.job_id: row for row in jobs if self._offers(row, RefreshHandler)}
        purges = {_purge_of(row) for row in jobs if self._offers(row, PurgeHandler)}
        with self._lock:
            now_s = self._clock.monotonic_s()
            for row in before:
                if row.job_id not in kept:
                    self._refreshes.remove(row.job_id)
                    self._jobs.pop(row.job_id, None)
            for job_id, row in kept.items():
                self._jobs[job_id] = row
                self._refreshes.add(job_id, now_s)
            for gone in {_purge_of(row) for row in before} - purges - self._of_other_ranges(shard):
                self._purges.remove(gone)
            for purge in purges:
                self._purges.add(purge, now_s)

    def _of_other_ranges(self, shard: ShardId) -> set[Purge]:
        """What is purged for another range of the table, which this node may run as well."""
        if shard.range_id == WHOLE:
            return set()
        others = (rows for each, rows in self._shards.items() if each.table_id == shard.table_id and each != shard)
        return {_purge_of(row) for rows in others for row in rows if self._offers(row, PurgeHandler)}

    def _offers(self, row: JobRow, handler: type) -> bool:
        if row.paused or row.failed_for_good:
            return False
        try:
            return isinstance(self._kinds(row.spec.consumer.kind), handler)
        except IscpError:
            return False  # the job's own status tells it

    # --- in the pools' threads -----------------------------------------------------------------------------------

    def _refresh(self, job_id: str) -> object:
        with self._lock:
            row = self._jobs.get(job_id)
        if row is None:
            return self._clock.now_s() + REFRESH_INTERVAL_S  # given up meanwhile, and forgotten when this ends
        kind = row.spec.consumer.kind
        handler: Any = self._kinds(kind)
        table_ids, next_at_s = handler.refresh(row)
        with self._lock:
            for table_id in table_ids:  # what was held for it may be let go of
                self._purges.hasten((kind, table_id), self._clock.monotonic_s())
        return next_at_s

    def _purge(self, purge: Purge) -> object:
        kind, table_id = purge
        handler: Any = self._kinds(kind)
        return handler.purge(table_id)

    def _run(self, what: str, heap: UpkeepHeap[T], item: T, call: Callable[[T], object]) -> None:
        try:
            self._lease_check()
            wait_s = wait_until_s(call(item), self._clock.now_s())
        except BaseException as error:  # noqa: BLE001  (whatever a handler raises is its own fault)
            with self._lock:
                again_s = heap.failed(item, self._clock.monotonic_s())
            fault = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
            log.warning(_FAILED[what], extra={"item": str(item), "error": fault, "again_s": round(again_s, 3)})
        else:
            with self._lock:
                heap.done(item, wait_s, self._clock.monotonic_s())
        self._wake.notify()


def _purge_of(row: JobRow) -> Purge:
    return row.spec.consumer.kind, row.key.table_id
