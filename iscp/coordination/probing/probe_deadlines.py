"""Which probes have not been answered in time, whatever holds them up. Pure; a part of the schedule."""

from __future__ import annotations

from collections import deque

from iscp.coordination.schedule.table_state import TrackedTable


class ProbeDeadlines:
    """Each probe is noted once, in order; one that is answered in time costs nothing else."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sent: deque[tuple[float, float, TrackedTable]] = deque()

    def note(self, table: TrackedTable, now_s: float) -> None:
        """A probe of the table begins."""
        self._sent.append((now_s + self._timeout_s, table.probe_sent_at_s, table))

    def next_due_s(self) -> float | None:
        while self._sent:
            due_s, sent_at_s, table = self._sent[0]
            if table.probing and table.probe_sent_at_s == sent_at_s:
                return due_s
            self._sent.popleft()
        return None

    def pop_late(self, now_s: float) -> TrackedTable | None:
        """A table whose probe has just become late."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        return self._sent.popleft()[2]
