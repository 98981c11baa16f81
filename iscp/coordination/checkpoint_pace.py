"""Decide when a node sends checkpoints to its owner: new ones at a fixed pace, unrecorded ones ever more rarely."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.coordination.report_outbox import IN_FLIGHT_MAX, Chunk, Outbox


class CheckpointPace:
    """Times are of the machine's clock."""

    def __init__(self, timeouts: CoordinationTimes) -> None:
        self._timeouts = timeouts
        self._cut_due_s = 0.0
        self._repeat_due_s = 0.0
        self._repeat_wait_s = timeouts.resend_s

    def due_times_s(self, outbox: Outbox) -> Iterator[float]:
        """Yield when something is to be sent, if nothing happens before."""
        if outbox.gathered and len(outbox.chunks) < IN_FLIGHT_MAX:
            yield self._cut_due_s
        if outbox.chunks:
            yield self._repeat_due_s

    def hasten(self, now_s: float) -> None:
        """Have the next checkpoint due at once."""
        self._cut_due_s = now_s

    def repeat_at_once(self, now_s: float) -> None:
        """Send all that is not recorded again now."""
        self._repeat_due_s, self._repeat_wait_s = now_s, self._timeouts.resend_s

    def note_progress(self, now_s: float) -> None:
        """Note that the owner takes checkpoints in: those that it has yet to record are repeated only if it stops
        to.
        """
        self._repeat_due_s = now_s + self._timeouts.resend_s
        self._repeat_wait_s = self._timeouts.next_resend_s(self._timeouts.resend_s)

    def take_due(self, outbox: Outbox, now_s: float) -> Iterator[Chunk]:
        """Yield what is to be sent now: first what is repeated, then what is cut now."""
        if outbox.chunks and now_s >= self._repeat_due_s:
            yield from tuple(outbox.chunks)
            self._repeat_due_s = now_s + self._repeat_wait_s
            self._repeat_wait_s = self._timeouts.next_resend_s(self._repeat_wait_s)
        if now_s < self._cut_due_s:
            return
        while (cut := outbox.cut()) is not None:
            if len(outbox.chunks) == 1:
                self.note_progress(now_s)
            yield cut
            self._cut_due_s = now_s + self._timeouts.checkpoint_s
