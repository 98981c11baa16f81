"""Reaches whichever node runs a shard, from the owner's side: this very one, or another over the network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from iscp.core.cluster import NodeRecord
from iscp.core.errors import IscpError, Unavailable
from iscp.core.ids import ShardId
from iscp.core.verify import VerifyReport
from iscp.ports.cluster import NodeCalls
from iscp.runtime.owner_loop import OwnerLoop

log = logging.getLogger(__name__)

CALLS_AT_ONCE_MAX = 16
HINTS_MAX = 10_000


class NodesAtWork:
    """`call` gives a node's own calls; what is only a hint (`notify`, `interrupt`) never fails and never waits."""

    def __init__(self, owner: OwnerLoop, call: Callable[[NodeRecord], NodeCalls]) -> None:
        self._owner = owner
        self._call = call
        self._hints = ThreadPoolExecutor(CALLS_AT_ONCE_MAX, "iscp-node-calls")
        self._waiting = threading.BoundedSemaphore(HINTS_MAX)

    def notify(self, shard: ShardId, targets: bool) -> None:
        """The shard's source may have changed, or its `targets` too."""
        self._hint(shard, lambda node: node.notify(shard, targets))

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        """What runs of this job by another spec is to end."""
        self._hint(shard, lambda node: node.interrupt(shard, job_id, spec_json))

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        """As `NodeCalls.verify`; raises Unavailable too where no node runs the shard."""
        record = self._holder(shard)
        if record is None:
            raise Unavailable("no node runs the table now", remedy="See `iscp-admin shard list`, and try again")
        return self._call(record).verify(shard, job_id, repair, timeout_s, alive)

    def counters(self, records: Sequence[NodeRecord]) -> dict[str, dict[str, int]]:
        """By node id, each node's executor's counts; of those that answer."""

        def ask(record: NodeRecord) -> dict[str, int]:
            try:
                return self._call(record).counters()
            except IscpError as error:
                log.info("node.counters_unknown", extra={"node": record.node_id, "error": str(error)})
                return {}

        answers = self._hints.map(ask, records)
        return {record.node_id: each for record, each in zip(records, answers, strict=True) if each}

    def close(self) -> None:
        self._hints.shutdown(wait=False, cancel_futures=True)

    def _hint(self, shard: ShardId, tell: Callable[[NodeCalls], None]) -> None:
        if not self._waiting.acquire(blocking=False):
            log.warning("node.not_told", extra={"shard": str(shard), "error": f"{HINTS_MAX} others wait to be told"})
            return
        try:
            self._hints.submit(self._tell, shard, tell)
        except RuntimeError:  # closed: the node stops
            self._waiting.release()

    def _tell(self, shard: ShardId, tell: Callable[[NodeCalls], None]) -> None:
        try:
            record = self._holder(shard)
            if record is not None:
                tell(self._call(record))
        except IscpError as error:  # the node looks by itself, later
            log.info("node.not_told", extra={"shard": str(shard), "error": str(error)})
        finally:
            self._waiting.release()

    def _holder(self, shard: ShardId) -> NodeRecord | None:
        def look(loop: OwnerLoop) -> NodeRecord | None:
            assignment = loop.machine.assignments.get(shard)
            holder = assignment.holder if assignment else None
            peer = loop.machine.term.peers.get(holder.node_id) if holder and loop.machine.term else None
            return peer.record if peer is not None and peer.holder == holder else None

        return self._owner.ask(look)
