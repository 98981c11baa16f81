"""Remember what owners have decided lately, for operators: the newest, in memory, numbered within each term."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from itertools import takewhile

from iscp.coordination.protocol.effects import Decided, Decision
from iscp.core.api.api_views import EventView

PLACEMENT_EVENTS_MAX = 10_000
"""Events of owners that a node keeps for `iscp-admin events`; the oldest are forgotten."""

_Place = tuple[int, int]


def _place(event: EventView) -> _Place:
    return event.owner_rev, event.number


class Decisions:
    """The decisions of owners, which any thread may read. `merge` takes in what other owners decided in earlier
    terms.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[EventView] = deque(maxlen=PLACEMENT_EVENTS_MAX)  # the oldest first
        self._owner_rev = 0
        self._number = 0
        self._taken = 0, 0
        self._counts: Counter[str] = Counter({each.value: 0 for each in Decision})
        self._closed = False

    def begin(self, owner_rev: int) -> None:
        """This node's own term; events of it or a later one are of a job log that is no more."""
        with self._changed:
            self._owner_rev, self._number = owner_rev, 0
            self._replace(event for event in self._events if event.owner_rev < owner_rev)

    def note(self, decided: Decided, at_s: float, table: str = "") -> None:
        """Note a decision; `table` is the shard's, as it was registered: later nobody may know it any more."""
        shard, what = str(decided.shard) if decided.shard else "", decided.what.value
        with self._changed:
            self._number += 1
            self._counts[what] += 1
            place = self._owner_rev, self._number
            self._events.append(EventView(*place, at_s, what, decided.node_id, shard, str(decided.why), table))
            self._changed.notify_all()

    def counts(self) -> dict[str, int]:
        """Return how often this node has decided what, as the owner, since its start."""
        with self._changed:
            return dict(self._counts)

    def merge(self, events: Iterable[EventView]) -> None:
        """Take in what a former owner's node remembers of terms before the present one."""
        with self._changed:
            found = {_place(event): event for event in events if event.owner_rev < self._owner_rev}
            found.update((_place(event), event) for event in self._events)
            self._replace(found[place] for place in sorted(found))

    def terms(self) -> set[int]:
        """Return the terms of which events are cached."""
        with self._changed:
            return {event.owner_rev for event in self._events}

    def of_other_terms(self, known: Collection[int]) -> list[EventView]:
        """Return all cached events of terms that are not `known`, the oldest first."""
        with self._changed:
            self._taken = self._last()
            self._changed.notify_all()
            return [event for event in self._events if event.owner_rev not in known]

    def wait_taken(self, wait_s: float) -> bool:
        """Wait until another node has taken all events that are cached here by `of_other_terms`; return False if none
        has by then.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._taken == self._last(), wait_s)

    def close(self) -> None:
        """Wake everyone for the last time: the term has ended, or the node stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def after(
        self, owner_rev: int, number: int, wait_s: float = 0.0, wanted: Callable[[EventView], bool] = lambda event: True
    ) -> list[EventView]:
        """Return the events that are `wanted` and came after that number of that term, waiting for them if need be; the
        oldest first.

        After a term that is still to come, return all that are cached.
        """

        def found() -> list[EventView]:
            last = (owner_rev, number) if owner_rev <= self._owner_rev else (0, 0)
            newer = list(takewhile(lambda event: _place(event) > last, reversed(self._events)))
            return [event for event in reversed(newer) if wanted(event)]

        with self._changed:
            self._changed.wait_for(lambda: self._closed or found(), wait_s)
            return found()

    def _last(self) -> _Place:
        return _place(self._events[-1]) if self._events else (0, 0)

    def _replace(self, events: Iterable[EventView]) -> None:
        self._events = deque(events, maxlen=PLACEMENT_EVENTS_MAX)
        self._changed.notify_all()
