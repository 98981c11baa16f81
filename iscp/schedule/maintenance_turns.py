"""Refreshes, or purges, of one node as a pure machine: when each is done again, which begin now, and which are given
up.

The queue of callers who wait for the comparison of a job's target with its source is here too.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Generic, TypeVar

from iscp.model.job.iteration import JobOutcome, MaintenanceFigures, Purpose
from iscp.model.job.start_rule import VerifyRequest
from iscp.model.settings.config import BackoffConfig, MaintenanceConfig, delay_s, jittered_s, quarantined
from iscp.model.values.errors import ErrorCode, IscpError, QueueFull, TimedOut, Unavailable
from iscp.model.values.state_table import StateTable
from iscp.model.values.untrusted_values import error_code, error_text
from iscp.schedule.schedule_events import VerifyAnswered

# --- the times of what is done again and again ------------------------------------------------------------------------
# Each refresh or purge has its own time (after the heaps of TiDB MVS). The heap knows neither clock nor threads, and
# nothing of what is done: only when, and that one thing is done once at a time. Items that are due and have no slot yet
# wait in the queue below.

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


# --- the queue for slots ----------------------------------------------------------------------------------------------
# The queue decides which due refresh or purge begins next: fair between accounts, and past those that do not end.
# Nothing can end a thread that runs code of others. One that takes long therefore leaves its slot to the next, and only
# so many may do so: one kind of consumer's fault must not take the node's threads from the others.

LONG_OF_KIND_MAX = 4
"""Refreshes or purges of one kind of consumer that run beyond their slots; with so many no other of the kind is begun,
and with so many given up each is rejected.
"""

LONG_MAX = 64
"""The limit of LONG_OF_KIND_MAX for all kinds together."""


class MaintenanceQueue(Generic[T]):
    """Invariants: an item is in the queue, has a slot, or has left it and runs on; at most `at_once` have slots."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: dict[tuple[str, str], deque[T]] = {}
        self._about: dict[T, tuple[str, str]] = {}
        self._in_slots: set[T] = set()
        self._running_of: Counter[str] = Counter()
        self._long: set[T] = set()
        self._long_of: Counter[str] = Counter()
        self._given_up: set[T] = set()
        self._given_up_of: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Return how many have not ended and were not given up."""
        return len(self._in_slots) + len(self._long) - len(self._given_up)

    @property
    def hanging(self) -> int:
        """Return how many were given up and have not ended."""
        return len(self._given_up)

    def put(self, item: T, account: str, kind: str) -> None:
        self._about[item] = account, kind
        self._waiting.setdefault((account, kind), deque()).append(item)

    def next(self) -> T | None:
        """Return an item that has a slot from now on, until `end` or `leave`; None if no slot is free, or none may
        begin.

        The item is of the account that has the fewest at work, and of those of the one that was served longest ago.
        """
        if len(self._in_slots) >= self._at_once:
            return None
        able = [each for each in self._waiting if not self._must_wait(each[1])]
        if not able:
            return None
        about = min(able, key=lambda each: self._running_of[each[0]])  # the first of them, in their order
        queue = self._waiting.pop(about)
        item = queue.popleft()
        if queue:
            self._waiting[about] = queue  # at the end: all others are served before
        self._in_slots.add(item)
        self._running_of[about[0]] += 1
        return item

    def _must_wait(self, kind: str) -> bool:
        """Return whether items of the kind wait in the queue; they do not wait for what hangs, but are `refused`
        because of it.
        """
        full = self._long_of[kind] >= LONG_OF_KIND_MAX or len(self._long) >= LONG_MAX
        return full and not self._exhausted(kind)

    def _exhausted(self, kind: str) -> bool:
        return self._given_up_of[kind] >= LONG_OF_KIND_MAX or len(self._given_up) >= LONG_MAX

    def refused(self, item: T) -> bool:
        """Return whether an item that has just got a slot must not begin, because of those that hang."""
        return self._exhausted(self._about[item][1])

    def leave(self, item: T) -> None:
        """Note that the item takes long: its slot is the next one's."""
        account, kind = self._about[item]
        self._in_slots.discard(item)
        _less(self._running_of, account)
        self._long.add(item)
        self._long_of[kind] += 1

    def give_up(self, item: T) -> None:
        """One that has left its slot is not waited for any more."""
        self._given_up.add(item)
        self._given_up_of[self._about[item][1]] += 1

    def end(self, item: T) -> None:
        account, kind = self._about.pop(item)
        if item in self._long:
            self._long.discard(item)
            _less(self._long_of, kind)
        else:
            self._in_slots.discard(item)
            _less(self._running_of, account)
        if item in self._given_up:
            self._given_up.discard(item)
            _less(self._given_up_of, kind)


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


# --- turns ------------------------------------------------------------------------------------------------------------
# Rules: one thing is done once at a time, also where it hangs; one that takes too long leaves its slot to others;
# whatever one does, all others are served, as long as threads last.

SLOT_S = 10.0
"""Seconds that a refresh or a purge has its slot; then it runs on without one, and the next begins."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    """A `Turn` is what is to `begin` now, and what was `given_up` or `rejected`."""

    begin: tuple[T, ...] = ()
    given_up: tuple[T, ...] = ()
    rejected: tuple[T, ...] = ()


class MaintenanceTurns(Generic[T]):
    """Times are of one clock that never steps back."""

    def __init__(
        self, interval_s: float, config: MaintenanceConfig, backoff: BackoffConfig, draw: Callable[[], float]
    ) -> None:
        self._heap: MaintenanceHeap[T] = MaintenanceHeap(interval_s, backoff, draw)
        self._queue: MaintenanceQueue[T] = MaintenanceQueue(config.concurrency)
        self._timeout_s = config.timeout_s if config.timeout_s > 0 else inf
        self._slot_s = min(SLOT_S, self._timeout_s)
        self._about: dict[T, tuple[str, str]] = {}
        self._leaves_s: dict[T, float] = {}
        self._until_s: dict[T, float] = {}

    @property
    def running(self) -> int:
        """Return how many have not ended and were not given up."""
        return self._queue.running

    @property
    def hanging(self) -> int:
        return self._queue.hanging

    def add(self, item: T, account: str, kind: str, now_s: float) -> None:
        """Add an item that is due at once; one that is there keeps its time. `kind` is the kind of consumer, which
        answers for it.
        """
        self._about[item] = account, kind
        self._heap.add(item, now_s)

    def renew(self, item: T, now_s: float) -> None:
        self._heap.renew(item, now_s)

    def remove(self, item: T) -> None:
        self._about.pop(item, None)
        self._heap.remove(item)

    def hasten(self, item: T, now_s: float) -> None:
        self._heap.hasten(item, now_s)

    def turn(self, now_s: float) -> Turn[T]:
        """Return the turn now: each of `begin` is being done from now on, until `end` is called."""
        for item in _due(self._leaves_s, now_s):
            self._queue.leave(item)
        given_up = _due(self._until_s, now_s)
        for item in given_up:
            self._queue.give_up(item)
            self._heap.give_up(item, TimedOut(f"it was given up after {self._timeout_s:g} s, and has not ended"))
        for item in self._heap.take_due(now_s):
            self._queue.put(item, *self._about[item])
        begin, rejected = [], []
        while (next_one := self._queue.next()) is not None:
            if next_one in self._heap and self._queue.refused(next_one):
                self._queue.end(next_one)
                self._heap.reject(next_one, QueueFull("too many of its kind hang: it is not begun"), now_s)
                rejected.append(next_one)
            elif not self._heap.begin(next_one):
                self._queue.end(next_one)
            else:
                self._leaves_s[next_one] = now_s + self._slot_s
                self._until_s[next_one] = now_s + self._timeout_s
                begin.append(next_one)
        return Turn(tuple(begin), tuple(given_up), tuple(rejected))

    def end(self, item: T, result: float | IscpError, now_s: float) -> float:
        """End an item, and return after how many seconds it is done again. `result` is how long it wants to wait, or
        its fault.

        The result of an item that was given up counts for nothing.
        """
        self._queue.end(item)
        self._leaves_s.pop(item, None)
        if self._until_s.pop(item, None) is None:
            return self._heap.end_late(item, now_s)
        if isinstance(result, IscpError):
            return self._heap.fail(item, result, now_s)
        self._heap.complete(item, result, now_s)
        return result

    def figures(self, item: T, now_s: float, at_s: float) -> MaintenanceFigures | None:
        return self._heap.figures(item, now_s, at_s)

    def next_due_s(self) -> float | None:
        """Return when the next turn is due if nothing ends before, or None if none is."""
        due_s = self._heap.next_due_s()
        times = [*self._leaves_s.values(), *self._until_s.values(), inf if due_s is None else due_s]
        return None if min(times) == inf else min(times)


def _due(times: dict[T, float], now_s: float) -> list[T]:
    """Taken out of `times`."""
    found = [item for item, at_s in times.items() if at_s <= now_s]
    for item in found:
        del times[item]
    return found


# --- callers who wait for comparisons ---------------------------------------------------------------------------------
# The queue remembers which callers wait for which job's target to be compared with its source. It is pure, and a part
# of the schedule.


class VerifyQueue:
    """Requests that wait, by job, and those that an iteration answers.

    One iteration answers all that wait for the same of a job. A job that was just verified goes on with its changes
    first: a caller that requests without end cannot stop it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[VerifyRequest]] = {}
        self._answering: dict[int, tuple[VerifyRequest, ...]] = {}
        self._served: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, request: VerifyRequest) -> None:
        self._waiting.setdefault(request.job_id, deque()).append(request)

    def is_awaited(self, job_id: str, served: bool) -> bool:
        """Return whether somebody waits for the job, and it was, or was not, just verified."""
        return job_id in self._waiting and (job_id in self._served) is served

    def begin(self, job_id: str, number: int) -> Purpose:
        """Begin the iteration `number`, which answers the first that waits, and those that want the same."""
        waiting = self._waiting.pop(job_id)
        repair = waiting[0].repair
        self._answering[number] = tuple(each for each in waiting if each.repair is repair)
        if others := deque(each for each in waiting if each.repair is not repair):
            self._waiting[job_id] = others
        self._served.add(job_id)
        return Purpose.REPAIR if repair else Purpose.VERIFY

    def note_applied(self, job_ids: Iterable[str]) -> None:
        """Note jobs that got an iteration of their own."""
        self._served.difference_update(job_ids)

    def answers(self, number: int, outcomes: Sequence[JobOutcome], error: IscpError | None) -> list[VerifyAnswered]:
        """Return the answers to those who wait for an iteration that ended."""
        requests = self._answering.pop(number, ())
        found = next((outcome.verified for outcome in outcomes), None)
        answer = error or found or IscpError("the iteration gave no outcome")
        return [VerifyAnswered(each.verify_id, answer) for each in requests]

    def give_up(self, job_id: str) -> list[VerifyAnswered]:
        """Give up a job that does not run here any more, and return the answers."""
        self._served.discard(job_id)
        return [not_here(each) for each in self._waiting.pop(job_id, ())]

    def withdraw(self, verify_id: str) -> int:
        """Withdraw a caller's wait, and return the iteration that nobody wants then (0: none)."""
        for job_id, waiting in self._waiting.items():
            if left := deque(each for each in waiting if each.verify_id != verify_id):
                self._waiting[job_id] = left
            else:
                del self._waiting[job_id]
                break
        for number, requests in self._answering.items():
            if any(each.verify_id == verify_id for each in requests):
                self._answering[number] = tuple(each for each in requests if each.verify_id != verify_id)
                return 0 if self._answering[number] else number
        return 0


def not_here(request: VerifyRequest) -> VerifyAnswered:
    return VerifyAnswered(request.verify_id, Unavailable("the node does not run this job now", remedy="Retry"))
