"""Decide which due refresh or purge begins next: fair between accounts, and past those that do not end.

Nothing can end a thread that runs code of others. One that takes long therefore leaves its slot to the next, and only
so many may do so: one kind of consumer's fault must not take the node's threads from the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

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
