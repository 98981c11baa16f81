"""Bring what former owners decided to the present one: from each node that has synced it takes what that node
remembers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from iscp.core.values.errors import IscpError
from iscp.core.values.members import NodeRecord
from iscp.ports.cluster import NodeCalls
from iscp.runtime.owner.placement_events import Decisions

log = logging.getLogger(__name__)


class EventCollector:
    """One node after the other, by a thread of its own, so that each term's events travel once."""

    def __init__(self, decisions: Decisions, call: Callable[[NodeRecord], NodeCalls]) -> None:
        self._decisions = decisions
        self._call = call
        self._lock = threading.Lock()
        self._pending: set[NodeRecord] = set()
        self._thread = ThreadPoolExecutor(1, "iscp-owner-events")

    def collect(self, record: NodeRecord) -> None:
        """Collect from this node soon, without waiting. A node is pending once, however often it syncs."""
        with self._lock:
            if record in self._pending:
                return
            self._pending.add(record)
        try:
            self._thread.submit(self._collect, record)
        except RuntimeError:  # closed: the node stops
            return

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _collect(self, record: NodeRecord) -> None:
        with self._lock:
            # Before the call: a sync that comes during it leads to another call.
            self._pending.discard(record)
        try:
            self._decisions.merge(self._call(record).events(sorted(self._decisions.terms())))
        except IscpError as error:  # they are missing from `events` then, and from nothing else
            log.info("events.not_collected", extra={"node": record.node_id, "error": str(error)})
        except Exception:
            log.exception("events.not_collected", extra={"node": record.node_id})
