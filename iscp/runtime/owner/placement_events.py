"""What the owner has decided lately, for operators: the newest, in memory, numbered within the term."""

from __future__ import annotations

import threading
from collections import deque

from iscp.coordination.protocol.effects import Decided
from iscp.core.api_views import EventView

KEPT_MAX = 10_000
"""Events of an owner that `iscp-admin events` can show; the oldest are forgotten."""


class Decisions:
    """May be read by any thread. A term begins with number 1, and forgets what was before."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: deque[tuple[float, Decided, str]] = deque(maxlen=KEPT_MAX)
        self._owner_rev = 0
        self._number = 0
        self._closed = False

    def begin(self, owner_rev: int) -> None:
        with self._changed:
            self._owner_rev, self._number = owner_rev, 0
            self._kept.clear()
            self._changed.notify_all()

    def note(self, decided: Decided, at_s: float, table: str = "") -> None:
        """`table`: the shard's, as it was registered; later nobody may know it any more."""
        with self._changed:
            self._number += 1
            self._kept.append((at_s, decided, table))
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everyone for the last time: the term has ended, or the node stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def after(self, owner_rev: int, number: int, wait_s: float = 0.0) -> list[EventView]:
        """What came after that number of that term (of another term: all of this one), waiting for it if need be."""

        def news() -> bool:
            last = number if owner_rev == self._owner_rev else 0
            return self._number > last or self._closed

        with self._changed:
            self._changed.wait_for(news, wait_s)
            after = number if owner_rev == self._owner_rev else 0
            kept = list(self._kept)[-(self._number - after) :] if self._number > after else []
            first = self._number - len(kept) + 1
            return [self._view(first + index, *each) for index, each in enumerate(kept)]

    def _view(self, number: int, at_s: float, decided: Decided, table: str) -> EventView:
        shard, what = str(decided.shard) if decided.shard else "", decided.what.value
        return EventView(self._owner_rev, number, at_s, what, decided.node_id, shard, str(decided.why), table)
