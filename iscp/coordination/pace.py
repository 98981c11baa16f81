"""When a job's trigger lets it start, where that is not simply whenever its source is ahead of it.

Periodic: when `interval_s` have gone by since the job last came up to date. Jobs that share go by the clock instead,
at the multiples of their interval: so they come due together, whenever each was made, and once one iteration has
brought each to the newest version they are at one watermark and go on in one.

Nothing is outstanding while the source stands still: then nobody asks, and no time is waited for.
"""

from __future__ import annotations

from math import floor, inf

from iscp.core.job import JobRow
from iscp.core.spec import TriggerSpec


class Pace:
    """What one job's trigger goes by. Times ending in `_now_s` are monotonic, those in `_at_s` are Unix time.

    `held_until_s` (monotonic): what is outstanding is not started before it (0: it may start).
    """

    __slots__ = ("_applied_at_s", "_applied_now_s", "held_until_s", "trigger")

    def __init__(self, trigger: TriggerSpec, row: JobRow, now_s: float, at_s: float) -> None:
        """As of `row`: a node that takes a job over goes on with the wait that was under way."""
        self.trigger = trigger
        self.held_until_s = 0.0
        self._applied_at_s = row.status.end_at_s
        waited_s = max(0.0, at_s - self._applied_at_s) if self._applied_at_s else inf
        self._applied_now_s = now_s - waited_s

    def came_up_to_date(self, now_s: float, at_s: float) -> None:
        self._applied_now_s, self._applied_at_s = now_s, at_s

    def hold(self, now_s: float, at_s: float) -> None:
        """Something is outstanding: set until when it has to wait."""
        interval_s = self.trigger.interval_s
        if interval_s is None:
            self.held_until_s = 0.0
        elif self.trigger.share:
            turn = floor(at_s / interval_s)
            same = turn == floor(self._applied_at_s / interval_s)
            self.held_until_s = now_s + max(LEAST_WAIT_S, (turn + 1) * interval_s - at_s) if same else 0.0
        else:
            due_s = self._applied_now_s + interval_s
            self.held_until_s = due_s if due_s > now_s else 0.0


LEAST_WAIT_S = 0.001
"""What is due within it would otherwise be looked at again and again, as clocks are not exact."""
