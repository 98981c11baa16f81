"""Has indexes maintained beside their commits and searches: after commits by a thread of its own, and now and then.

Maintenance changes no row, and loses against commits of iterations, so nothing of it needs a lease or a seq. It is done
on the node that runs the job's shard, as that one has committed last.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from iscp.core.values.errors import IscpError
from iscp.index.lance.index_store import IndexStore
from iscp.index.maintenance.index_maintenance import MaintenanceDone, MaintenanceLimits, maintain
from iscp.index.model.index_definition import IndexDefinition
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

PENDING_MAX = 10_000
"""Indexes that wait for their maintenance after a commit; with more, the oldest are left to their next refresh."""

BUDGET_S = 5.0
"""Seconds after which no further action of one index is begun while others wait."""

IDLE_S = 3600.0
"""Seconds until an index that has not changed is looked at again."""


class IndexMaintainer:
    """Maintains the indexes of a process, one after another. Safe for threads."""

    def __init__(self, clock: Clock, *, awaited: bool = False) -> None:
        """`awaited`: the process ends only once all that was hastened is maintained.

        Otherwise its end cuts maintenance off, wherever that is; then Lance aborts the process if it is at work.
        """
        self.clock = clock
        self._awaited = awaited
        self._pending: OrderedDict[str, tuple[IndexStore, MaintenanceLimits]] = OrderedDict()
        self._changed = threading.Lock()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None

    def hasten(self, store: IndexStore, definition: IndexDefinition) -> None:
        """Have an index maintained soon; several calls before that are one."""
        with self._changed:
            # It keeps its place: what is changed more often than its turn comes would never get one otherwise.
            self._pending[store.root] = store, limits_of(definition)
            if len(self._pending) > PENDING_MAX:
                self._pending.popitem(last=False)
            if self._thread is None:
                daemon = not self._awaited
                self._thread = threading.Thread(target=self._run, name="iscp-index-maintenance", daemon=daemon)
                self._thread.start()

    def maintain(self, store: IndexStore, definition: IndexDefinition) -> float:
        """Maintain an index, and return in how many seconds it is to be looked at again. Raises as `maintain`."""
        done = self._carry_out(store, limits_of(definition))
        return IDLE_S if done.next_due_s is None else min(max(done.next_due_s, BUDGET_S), IDLE_S)

    def _carry_out(self, store: IndexStore, limits: MaintenanceLimits) -> MaintenanceDone:
        with self._at_work:  # it takes a core; iterations and searches have the others
            return maintain(store, limits, self.clock, store.failpoints, BUDGET_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._thread = None
                    return
                root, (store, limits) = self._pending.popitem(last=False)
            try:
                done = self._carry_out(store, limits)
            except IscpError as error:
                log.warning("index.unmaintained", extra={"index": root, "error": str(error)})
                continue
            except Exception:  # of one index; all others are maintained by this thread too
                log.exception("index.unmaintained", extra={"index": root})
                continue
            if done.actions or done.lost:
                actions = ", ".join(each.value for each in done.actions)
                log.info("index.maintained", extra={"index": root, "actions": actions, "lost": len(done.lost)})
            if done.next_due_s == 0.0 and done.actions:  # the budget was spent: others go first
                with self._changed:
                    self._pending.setdefault(root, (store, limits))


def limits_of(definition: IndexDefinition) -> MaintenanceLimits:
    vector = definition.vector
    if vector is None:
        return MaintenanceLimits()
    return MaintenanceLimits(metric=vector.metric.value, recall=vector.recall)
