"""A node's latest Sync, sent again ever more rarely until the owner has acknowledged it."""

from __future__ import annotations

from dataclasses import replace

from iscp.coordination.protocol.messages import SYNC_SHARDS_MAX, Sync
from iscp.coordination.protocol.timeouts import CoordinationTimes


class SyncRepeater:
    """The repeater has the `parts` of the Sync that is not acknowledged yet, if there is one; they are sent again at
    `due_s`.
    """

    def __init__(self, timeouts: CoordinationTimes) -> None:
        self.parts: tuple[Sync, ...] = ()
        self.due_s = 0.0
        self.number = 0
        self._timeouts = timeouts
        self._acknowledged = 0
        self._wait_s = 0.0

    @property
    def acknowledged(self) -> bool:
        """Return whether the owner has the latest; False before the first."""
        return 0 < self.number == self._acknowledged

    def renew(self) -> int:
        """Begin a Sync, as the former no longer applies, and return its number."""
        self.number += 1
        self.parts = ()
        return self.number

    def begin(self, whole: Sync, now_s: float, *, requested: bool) -> None:
        """Send it in parts, again and again. An owner that `requested` it repeats its request: the pause is longer."""
        cuts = range(0, max(1, len(whole.shards)), SYNC_SHARDS_MAX)
        self.parts = tuple(
            replace(whole, part=part, parts=len(cuts), shards=whole.shards[cut : cut + SYNC_SHARDS_MAX])
            for part, cut in enumerate(cuts)
        )
        self.due_s = now_s
        self._wait_s = 2 * self._timeouts.resend_s if requested else self._timeouts.resend_s

    def acknowledge(self, number: int) -> bool:
        """Note that the owner has the Sync of this number, and return whether it was the latest, and was being
        repeated.
        """
        if number != self.number:
            return False
        repeated, self.parts = bool(self.parts), ()
        self._acknowledged = number
        return repeated

    def take_due(self, now_s: float) -> tuple[Sync, ...]:
        """Return what is to be sent now."""
        if not self.parts or now_s < self.due_s:
            return ()
        self.due_s = now_s + self._wait_s
        self._wait_s = self._timeouts.next_resend_s(self._wait_s)
        return self.parts
