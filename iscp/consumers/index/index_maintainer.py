"""Has indexes maintained beside their commits and searches: after commits by a thread of its own, and now and then.

Maintenance changes no row, and loses against commits of iterations, so nothing of it needs a lease or a seq. It is done
on the node that runs the job's shard, as that one has committed last.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from iscp.core.values.errors import IscpError
from iscp.core.values.untrusted_values import named_error
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


AWAITED_S = 3600.0
"""Seconds for which a run waits until an index that it has changed is maintained; then its result says so."""

STOP_SEEN_S = 0.2
"""Seconds after which a run that waits for maintenance sees that it was stopped."""

CLOSE_S = 600.0
"""Seconds for which a process that ends waits for the action of maintenance that is at work."""


class IndexMaintainer:
    """Maintains the indexes of a process, one after another. Safe for threads."""

    def __init__(self, clock: Clock, *, awaited: bool = False, awaited_s: float = AWAITED_S) -> None:
        """`awaited`: runs wait for what they have hastened (`wait`), and `close` ends it, before the process ends.

        Otherwise its end cuts maintenance off, wherever that is; then Lance aborts the process if it is at work.
        """
        self.clock = clock
        self._awaited, self._awaited_s = awaited, awaited_s
        self._pending: OrderedDict[str, tuple[IndexStore, MaintenanceLimits]] = OrderedDict()
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self._current = ""
        self._unmaintained: dict[str, str] = {}
        self._closed = False

    def hasten(self, store: IndexStore, definition: IndexDefinition) -> None:
        """Have an index maintained soon; several calls before that are one."""
        with self._changed:
            if self._closed:
                return
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

    def wait(self, store: IndexStore, stopped: Callable[[], bool]) -> str:
        """Wait until an index is maintained that was hastened; return why it is not, or an empty text."""
        root, until_s = store.root, self.clock.monotonic_s() + self._awaited_s
        with self._changed:
            while root == self._current or root in self._pending:
                if stopped() or self._closed:
                    return (
                        f"the index {root} is not maintained, as the run was ended; the next run that changes it does"
                    )
                if self.clock.monotonic_s() >= until_s:
                    return f"the index {root} is still being maintained after {self._awaited_s:.0f} s"
                self._changed.wait(STOP_SEEN_S)
            return self._unmaintained.pop(root, "")

    def close(self) -> None:
        """Begin no further maintenance, and wait for what is at work: it needs threads that the process ends first."""
        with self._changed:
            self._closed = True
            left, thread = [*self._pending], self._thread
            self._pending.clear()
        if thread is not None:
            thread.join(CLOSE_S)
        for words in (*self._unmaintained.values(), *(f"the index {root} is not maintained" for root in left)):
            log.warning("index.unmaintained: %s", words)
        self._unmaintained.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = ""
                self._changed.notify_all()
                if not self._pending:
                    self._thread = None
                    return
                root, (store, limits) = self._pending.popitem(last=False)
                self._current = root
            try:
                done = self._carry_out(store, limits)
            except IscpError as error:
                self._fail(root, str(error))
                continue
            except Exception as error:  # of one index; all others are maintained by this thread too
                log.exception("index.unmaintained", extra={"index": root})
                self._fail(root, named_error(error))
                continue
            if done.actions or done.lost:
                actions = ", ".join(each.value for each in done.actions)
                log.info("index.maintained", extra={"index": root, "actions": actions, "lost": len(done.lost)})
            with self._changed:
                self._unmaintained.pop(root, None)
                if done.next_due_s == 0.0 and done.actions and not self._closed:
                    self._pending.setdefault(root, (store, limits))  # the budget was spent: others go first
            if self._awaited and done.lost and not done.actions:
                self._fail(root, "other writers of it were faster")

    def _fail(self, root: str, why: str) -> None:
        if not self._awaited:
            log.warning("index.unmaintained", extra={"index": root, "error": why})
            return
        with self._changed:
            self._unmaintained[root] = (
                f"the index {root} is not maintained: {why}. Searches are right, and slower; the next run that changes "
                "it maintains it"
            )


def limits_of(definition: IndexDefinition) -> MaintenanceLimits:
    vector = definition.vector
    if vector is None:
        return MaintenanceLimits()
    return MaintenanceLimits(metric=vector.metric.value, recall=vector.recall)
