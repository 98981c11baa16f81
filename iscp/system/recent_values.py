"""A bounded cache of this process, of which what was not used for longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _one(_value: object) -> int:
    return 1


class RecentValues(Generic[K, V]):
    """Values by their keys, of which those that were not used for longest are forgotten. None is no value.

    All values weigh at most so much together; `weigh` returns the weight of one, by default each weighs 1. A value that
    weighs more than all may is not stored. Safe for threads.
    """

    def __init__(self, most: int, weigh: Callable[[V], int] = _one) -> None:
        self._most = most
        self._weigh = weigh
        self._lock = threading.RLock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._weight = 0

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        with self._lock:
            if (found := self._values.get(key)) is not None:
                self._values.move_to_end(key)
            return found

    def take(self, key: K) -> V | None:
        """Return the value of this key, which is no longer stored: its user puts it back."""
        with self._lock:
            if (found := self._values.pop(key, None)) is not None:
                self._weight -= self._weigh(found)
            return found

    def put(self, key: K, value: V) -> V:
        """Store a value in place of that of this key, and return it."""
        with self._lock:
            self.take(key)
            if (weight := self._weigh(value)) <= self._most:
                self._values[key] = value
                self._weight += weight
            while self._weight > self._most:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of this key, which is made if there is none. All other callers wait while it is made."""
        with self._lock:
            found = self.get(key)
            return self.put(key, make()) if found is None else found
