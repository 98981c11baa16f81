"""Schedule what has to be done again and again, each at its own time (after the heaps of TiDB MVS): refreshes, or
purges.

The heap knows neither clock nor threads, and nothing of what is done: only when, and that one thing is done once at a
time. Items that are due and have no slot yet wait in a queue (iscp.coordination.schedule.maintenance_queue).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from iscp.core.job.maintenance_figures import MaintenanceFigures
from iscp.core.settings.backoff import delay_s, jittered_s, quarantined
from iscp.core.settings.config import BackoffConfig
from iscp.core.values.errors import ErrorCode, IscpError
from iscp.core.values.state_table import StateTable
from iscp.core.values.untrusted_values import error_code, error_text

T = TypeVar("T", bound=Hashable)

STALE_MAX = 1_000
"""Outdated entries of the heap, in addition to one for each waiting item; beyond them they are removed."""


# state diagram of MAINTENANCE_PHASES
#
#   waits         ── its time comes ─▶  due
#   due           ── gets a slot ────▶  runs
#   due           ── rejected ───────▶  waits
#   runs | hangs  ── ends ───────────▶  waits
#   runs          ── timeout ────────▶  hangs


class Phase(Enum):
    """An item waits for its time, then for its slot; it runs, and hangs once it was given up and has not ended."""

    WAITS = "waits"
    DUE = "due"
    RUNS = "runs"
    HANGS = "hangs"


class MaintenanceEvent(Enum):
    """A `MaintenanceEvent` is what happens to an item."""

    FALL_DUE = "its time comes"
    BEGIN = "gets a slot"
    REJECT = "rejected"
    END = "ends"
    GIVE_UP = "timeout"


MAINTENANCE_PHASES: StateTable[Phase, MaintenanceEvent] = StateTable(
    {
        MaintenanceEvent.FALL_DUE: {Phase.WAITS: Phase.DUE},
        MaintenanceEvent.BEGIN: {Phase.DUE: Phase.RUNS},
        MaintenanceEvent.REJECT: {Phase.DUE: Phase.WAITS},
        MaintenanceEvent.END: {Phase.RUNS: Phase.WAITS, Phase.HANGS: Phase.WAITS},
        MaintenanceEvent.GIVE_UP: {Phase.RUNS: Phase.HANGS},
    }
)


class _Item:
    """An item of the heap. `due_s` is None unless it waits for its time; `wanted` is False if it was given up
    meanwhile.
    """

    __slots__ = (
        "completed",
        "due_s",
        "earliest_s",
        "error",
        "failed",
        "failures",
        "for_good",
        "phase",
        "rejected",
        "submitted",
        "timeout",
        "wanted",
    )

    def __init__(self, earliest_s: float) -> None:
        self.phase = Phase.WAITS
        self.due_s: float | None = None
        self.earliest_s = earliest_s
        self.failures = 0
        self.for_good = False
        self.wanted = True
        self.error: IscpError | None = None
        self.submitted = self.completed = self.failed = self.timeout = self.rejected = 0

    def take(self, event: MaintenanceEvent) -> None:
        """Raises InvariantBroken where it must not come in this phase."""
        self.phase = MAINTENANCE_PHASES.after(self.phase, event, "a maintenance")


class MaintenanceHeap(Generic[T]):
    """Times are of one clock that never steps back.

    Invariants: an item that waits has one entry with its `due_s`, its other entries count for nothing; an item is
    begun only where it neither runs nor hangs.
    """

    def __init__(self, interval_s: float, backoff: BackoffConfig, draw: Callable[[], float]) -> None:
        """`interval_s`: however soon an item is to be done again, it is not done before."""
        self._interval_s = interval_s
        self._backoff = backoff
        self._draw = draw
        self._items: dict[T, _Item] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._serial = 0

    def __contains__(self, item: T) -> bool:
        found = self._items.get(item)
        return found is not None and found.wanted

    def add(self, item: T, now_s: float) -> None:
        """Add an item that is due at once; one that is there keeps its time."""
        found = self._items.get(item)
        if found is None:
            self._items[item] = _Item(now_s)
            self._wait(item, now_s)
        else:
            found.wanted = True

    def renew(self, item: T, now_s: float) -> None:
        """Forget its failures: somebody has changed what it is about. Due at once, unless it is being done."""
        found = self._items.get(item)
        if found is not None:
            found.failures, found.for_good = 0, False
            if found.phase is Phase.WAITS:
                self._wait(item, now_s)

    def remove(self, item: T) -> None:
        """One that is being done is forgotten when it ends."""
        found = self._items.get(item)
        if found is None:
            return
        found.wanted = False
        if found.phase is Phase.WAITS:
            del self._items[item]

    def hasten(self, item: T, now_s: float) -> None:
        """Have the item due as soon as its interval is over, if it waits for its time; a failed one keeps its wait."""
        found = self._items.get(item)
        if found is not None and found.due_s is not None and not found.failures:
            self._wait(item, min(found.due_s, max(now_s, found.earliest_s)))

    def take_due(self, now_s: float) -> list[T]:
        """Return all whose time has come, the longest overdue first; each waits for a slot until `begin` or
        `reject`.
        """
        taken = []
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            item = heapq.heappop(self._heap)[2]
            found = self._items[item]
            found.take(MaintenanceEvent.FALL_DUE)
            found.due_s = None
            found.submitted += 1
            taken.append(item)
        return taken

    def begin(self, item: T) -> bool:
        """Give the item a slot. Return False if it was given up meanwhile, and is forgotten."""
        found = self._items[item]
        if not found.wanted:
            del self._items[item]
            return False
        found.take(MaintenanceEvent.BEGIN)
        return True

    def complete(self, item: T, wait_s: float, now_s: float) -> None:
        found = self._items[item]
        found.completed += 1
        found.error, found.for_good = None, False
        found.failures, found.earliest_s = 0, now_s + self._interval_s
        self._end(item, max(now_s + wait_s, found.earliest_s))

    def fail(self, item: T, error: IscpError, now_s: float) -> float:
        """Note a failure, and return after how many seconds the item is tried again: by backoff, and rarely if it fails
        again and again, or for good.
        """
        found = self._items[item]
        found.failed += 1
        self._note(found, error)
        return self._again(item, now_s)

    def reject(self, item: T, error: IscpError, now_s: float) -> float:
        """Reject the item, which gets no slot now, and return after how many seconds it is tried again."""
        found = self._items[item]
        found.rejected += 1
        found.error = error
        wait_s = jittered_s(self._backoff.cap_s, self._draw())
        self._end(item, now_s + wait_s, MaintenanceEvent.REJECT)
        return wait_s

    def give_up(self, item: T, error: IscpError) -> None:
        """Give up an item that takes too long: what it answers when it ends, if it does, counts for nothing."""
        found = self._items[item]
        found.take(MaintenanceEvent.GIVE_UP)
        found.timeout += 1
        self._note(found, error)

    def end_late(self, item: T, now_s: float) -> float:
        """End one that was given up, after all, and return after how many seconds it is tried again."""
        return self._again(item, now_s)

    def figures(self, item: T, now_s: float, at_s: float) -> MaintenanceFigures | None:
        """Return the item's figures, or None if there is no such item; `at_s` is what `now_s` is in Unix time."""
        found = self._items.get(item)
        if found is None:
            return None
        return MaintenanceFigures(
            submitted=found.submitted,
            running=found.phase in (Phase.RUNS, Phase.HANGS),
            waiting=found.phase is Phase.DUE,
            completed=found.completed,
            failed=found.failed,
            timeout=found.timeout,
            rejected=found.rejected,
            hanging=found.phase is Phase.HANGS,
            quarantined=self._rarely(found),
            error_code=int(error_code(found.error)) if found.error else ErrorCode.OK,
            error_msg=error_text(found.error) if found.error else "",
            next_at_s=0.0 if found.due_s is None else at_s + max(0.0, found.due_s - now_s),
        )

    def next_due_s(self) -> float | None:
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _note(self, found: _Item, error: IscpError) -> None:
        found.failures += 1
        found.for_good = not error_code(error).temporary
        found.error = error

    def _rarely(self, found: _Item) -> bool:
        return found.for_good or quarantined(self._backoff, found.failures)

    def _again(self, item: T, now_s: float) -> float:
        found, draw = self._items[item], self._draw()
        wait_s = jittered_s(self._backoff.quarantine_s, draw) if found.for_good else 0.0
        wait_s = max(wait_s or delay_s(self._backoff, max(found.failures, 1), draw), self._interval_s)
        self._end(item, now_s + wait_s)
        return wait_s

    def _end(self, item: T, due_s: float, event: MaintenanceEvent = MaintenanceEvent.END) -> None:
        found = self._items[item]
        found.take(event)
        if found.wanted:
            self._wait(item, due_s)
        else:
            del self._items[item]

    def _wait(self, item: T, due_s: float) -> None:
        if self._items[item].due_s == due_s:
            return
        self._items[item].due_s = due_s
        self._serial += 1
        heapq.heappush(self._heap, (due_s, self._serial, item))
        if len(self._heap) > 2 * len(self._items) + STALE_MAX:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[float, int, T]) -> bool:
        found = self._items.get(entry[2])
        return found is not None and found.due_s == entry[0]
