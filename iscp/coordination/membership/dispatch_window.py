"""Limit how many dispatches the owner has outstanding at a time, over all nodes.

The answers come to one thread. Requests beyond what the thread can take in wait unread, seem unanswered, are sent
again, and make the backlog longer: congestion. So what may be outstanding follows from what was taken in lately, so
that the time from a dispatch to its answer stays near one span however fast the owner is (Little's law, after TCP
Vegas).
"""

from __future__ import annotations

from dataclasses import dataclass

AWAITED_MIN = 256
"""Dispatches that may await their first answer even where none were answered lately; others wait."""

AWAITED_MAX = 8_192
"""Dispatches over all nodes that may await their first answer, however many were answered lately; others wait."""

REFILL = 4
"""Dispatches are sent when one in so many places of the window is free: what goes to one node then travels together."""


@dataclass(slots=True)
class Window:
    """The window of dispatches. `awaited` counts those that were sent once and not answered yet. `size` is how many
    there may be: as many as were answered in the last span of `span_s`, within the two limits.

    A dispatch that a node leaves unanswered until it is sent again is `lost`, and does not count any more: a silent
    node must not delay the others' dispatches.
    """

    span_s: float
    size: int = AWAITED_MIN
    awaited: int = 0
    _answered: int = 0
    _since_s: float = 0.0

    @property
    def room(self) -> int:
        """Return how many may be sent now; 0 until there is room for several."""
        free = self.size - self.awaited
        return free if free * REFILL >= self.size else 0

    def note_sent(self) -> None:
        self.awaited += 1

    def note_lost(self) -> None:
        self.awaited -= 1

    def note_answered(self, now_s: float) -> None:
        self.awaited -= 1
        self._answered += 1
        passed_s = now_s - self._since_s
        if passed_s >= self.span_s:
            self.size = min(max(int(self._answered * self.span_s / passed_s), AWAITED_MIN), AWAITED_MAX)
            self._answered, self._since_s = 0, now_s
