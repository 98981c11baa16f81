"""Reaches whichever node runs a shard, from the owner's side: this very one, or another over the network."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from iscp.cluster.membership.assignments import Holder
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.model.api.api_requests import LogPage, LogQuery
from iscp.model.job.iteration import JobMaintenance
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import VerifyReport
from iscp.model.values.errors import IscpError, Unavailable
from iscp.model.values.ids import NodeRecord, ShardId
from iscp.model.values.progress import RunProgress
from iscp.ports.cluster import NodeCalls
from iscp.ports.system import carried

log = logging.getLogger(__name__)

CALLS_AT_ONCE_MAX = 16
"""Hints, and reads of counters and logs, on their way to nodes at a time; the others queue."""

CALLS_OF_NODE_MAX = 3
"""Hints on their way to one node, so that a frozen one does not take all threads; the others queue."""

HINTS_MAX = 10_000
"""Hints that wait for nodes; one more is dropped (`node.not_told`), and the node finds out by its own probe."""

SLOW_S = 1.0
"""A call that failed after so long or longer counts as one of a node that is away."""

AWAY_S = 5.0
"""Seconds that a node that is away gets no hints: it finds out by its own probe."""

Hint = Callable[[NodeCalls], None]
T = TypeVar("T")


class NodeClients:
    """The owner's clients to nodes. `call` gives a node's own calls; a hint (`notify`, `interrupt`) never fails and
    never waits.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        call: Callable[[NodeRecord], NodeCalls],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._call = call
        self._now_s = now_s
        self._hints = ThreadPoolExecutor(CALLS_AT_ONCE_MAX, "iscp-node-calls")
        self._reads = ThreadPoolExecutor(CALLS_AT_ONCE_MAX, "iscp-node-counters")
        self._waiting = threading.BoundedSemaphore(HINTS_MAX)
        # For the four maps below; never held during a call to a node.
        self._lock = threading.Lock()
        self._verifying: Counter[str] = Counter()
        self._on_their_way: Counter[Holder] = Counter()
        self._queues: dict[Holder, deque[Hint]] = {}
        self._away_until_s: dict[Holder, float] = {}

    def notify(self, shard: ShardId, targets: bool) -> None:
        """Notify the shard's node that its source may have changed, or its `targets` too."""
        self._hint(shard, carried(lambda node: node.notify(shard, targets)))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        """Have the node end what runs of this job by another spec."""
        self._hint(shard, lambda node: node.interrupt(shard, job_id, spec_json))

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        """Verify as `NodeCalls.verify` does. Raises Unavailable too if no node runs the shard."""
        record = self._holder(shard)
        if record is None:
            raise Unavailable("no node runs the table now", remedy="See `iscp-admin shard list`, and try again")
        with self._lock:
            self._verifying[job_id] += 1
        try:
            return self._call(record).verify(shard, job_id, repair, timeout_s, alive)
        finally:
            with self._lock:
                self._verifying[job_id] -= 1
                if not self._verifying[job_id]:
                    del self._verifying[job_id]

    def verifying(self, job_id: str) -> bool:
        """Return whether a comparison of the job's target was requested here, and is not answered yet."""
        return job_id in self._verifying

    def maintenance(self, shard: ShardId, job_id: str) -> JobMaintenance:
        """Return the same as the node does; empty if nobody runs the shard, or the node does not answer."""
        try:
            record = self._holder(shard)
            return self._call(record).maintenance(job_id) if record is not None else JobMaintenance()
        except IscpError as error:
            log.info("node.upkeep_unknown", extra={"shard": str(shard), "error": str(error)})
            return JobMaintenance()

    def progress(self, shard: ShardId, job_id: str) -> RunProgress | None:
        """Return the same as `NodeCalls.progress`; None if nobody runs the shard, or the node does not answer."""
        try:
            record = self._holder(shard)
            return self._call(record).progress(job_id) if record is not None else None
        except IscpError as error:
            log.info("node.progress_unknown", extra={"shard": str(shard), "error": str(error)})
            return None

    def of_each(self, read: Callable[[JobRow], T], rows: Sequence[JobRow]) -> list[T]:
        """Return what is read of the nodes that run the rows, at the same time: one that is frozen is waited for
        once.
        """
        return list(self._reads.map(read, rows) if len(rows) > 1 else map(read, rows))

    def counters(self, records: Sequence[NodeRecord]) -> dict[str, dict[str, int]]:
        """Return the counts of each node's executor by node id, of the nodes that answer."""

        def read(record: NodeRecord) -> dict[str, int]:
            try:
                return self._call(record).counters()
            except IscpError as error:
                log.info("node.counters_unknown", extra={"node": record.node_id, "error": str(error)})
                return {}

        answers = self._reads.map(read, records)
        return {record.node_id: each for record, each in zip(records, answers, strict=True) if each}

    def logs(self, records: Sequence[NodeRecord], query: Callable[[str], LogQuery]) -> list[LogPage]:
        """Return what each node answers to its query, by node id, or why one does not."""

        def read(record: NodeRecord) -> LogPage:
            try:
                return replace(self._call(record).logs(query(record.node_id)), node_id=record.node_id)
            except IscpError as error:
                return LogPage(record.node_id, fault=error.sentence)

        return list(self._reads.map(read, records))

    def close(self) -> None:
        for pool in (self._hints, self._reads):
            pool.shutdown(wait=False, cancel_futures=True)

    def _hint(self, shard: ShardId, hint: Hint) -> None:
        if not self._waiting.acquire(blocking=False):
            log.warning("node.not_told", extra={"shard": str(shard), "error": f"{HINTS_MAX} others wait"})
            return
        try:
            self._hints.submit(self._send, shard, hint)
        except RuntimeError:  # closed: the node stops
            self._waiting.release()

    def _send(self, shard: ShardId, hint: Hint) -> None:
        done = 1
        try:
            record = self._holder(shard)
            if record is not None:
                done = self._send_in_turn(record, hint)
        except IscpError as error:  # the node probes by itself, later
            log.info("node.not_told", extra={"shard": str(shard), "error": str(error)})
        finally:
            # A hint that was queued behind others is counted by the thread that sends or drops it.
            for _ in range(done):
                self._waiting.release()

    def _send_in_turn(self, record: NodeRecord, hint: Hint) -> int:
        """Send it to the node, and what is queued for it by then; how many hints are done with, sent or not."""
        life, done = Holder(record.node_id, record.epoch), 0
        with self._lock:
            if self._away_until_s.get(life, 0.0) > self._now_s():
                return 1
            if self._on_their_way[life] >= CALLS_OF_NODE_MAX:
                self._queues.setdefault(life, deque()).append(hint)
                return 0
            self._on_their_way[life] += 1
        following: Hint | None = hint
        while following is not None:
            done, began_s = done + 1, self._now_s()
            try:
                following(self._call(record))
            except IscpError as error:
                log.info("node.not_told", extra={"node": record.node_id, "error": str(error)})
                if self._now_s() >= began_s + SLOW_S:
                    done += self._drop_queue(life)
            except Exception:
                log.exception("node.not_told", extra={"node": record.node_id})
            following = self._next(life)
        return done

    def _next(self, life: Holder) -> Hint | None:
        """Return the next hint for the node's life. None ends its queue: whatever comes from now on is sent at once."""
        with self._lock:
            if queue := self._queues.get(life):
                return queue.popleft()
            self._queues.pop(life, None)
            self._on_their_way[life] -= 1
            if not self._on_their_way[life]:
                del self._on_their_way[life]
            return None

    def _drop_queue(self, life: Holder) -> int:
        """Drop the hints of a node that does not answer, and return how many were queued for it."""
        with self._lock:
            now_s = self._now_s()
            self._away_until_s = {each: until_s for each, until_s in self._away_until_s.items() if until_s > now_s}
            self._away_until_s[life] = now_s + AWAY_S
            return len(self._queues.pop(life, ()))

    def _holder(self, shard: ShardId) -> NodeRecord | None:
        def find(loop: OwnerLoop) -> NodeRecord | None:
            assignment = loop.machine.assignments.get(shard)
            holder = assignment.holder if assignment else None
            peer = loop.machine.term.peers.get(holder.node_id) if holder and loop.machine.term else None
            return peer.record if peer is not None and peer.holder == holder else None

        return self._owner.query(find)
