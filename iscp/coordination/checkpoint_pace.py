"""When a node sends checkpoints to its owner: new ones every so often, those that are not recorded ever more rarely."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.coordination.report_outbox import IN_FLIGHT_MAX, Chunk, Outbox


class CheckpointPace:
    """Times are of the machine's clock."""

    def __init__(self, times: CoordinationTimes) -> None:
        self._times = times
        self._cut_due_s = 0.0
        self._repeat_due_s = 0.0
        self._repeat_wait_s = times.resend_s

    def due_times_s(self, outbox: Outbox) -> Iterator[float]:
        """When something is to be sent, if nothing happens before."""
        if outbox.gathered and len(outbox.chunks) < IN_FLIGHT_MAX:
            yield self._cut_due_s
        if outbox.chunks:
            yield self._repeat_due_s

    def hasten(self, now_s: float) -> None:
        """The next checkpoint is due at once."""
        self._cut_due_s = now_s

    def repeat_at_once(self, now_s: float) -> None:
        """All that is not recorded is sent again now."""
        self._repeat_due_s, self._repeat_wait_s = now_s, self._times.resend_s

    def note_progress(self, now_s: float) -> None:
        """The owner takes checkpoints in: those that it has yet to record are repeated only if it stops to."""
        self._repeat_due_s = now_s + self._times.resend_s
        self._repeat_wait_s = self._times.next_resend_s(self._times.resend_s)

    def take_due(self, outbox: Outbox, now_s: float) -> Iterator[Chunk]:
        """What is to be sent now: first what is repeated, then what is cut now."""
        if outbox.chunks and now_s >= self._repeat_due_s:
            yield from tuple(outbox.chunks)
            self._repeat_due_s = now_s + self._repeat_wait_s
            self._repeat_wait_s = self._times.next_resend_s(self._repeat_wait_s)
        if now_s < self._cut_due_s:
            return
        while (cut := outbox.cut()) is not None:
            if len(outbox.chunks) == 1:
                self.note_progress(now_s)
            yield cut
            self._cut_due_s = now_s + self._times.checkpoint_s
