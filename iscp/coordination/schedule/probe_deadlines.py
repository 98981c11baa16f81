"""Find probes that were not answered in time, whatever delays them. Pure; a part of the schedule."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from iscp.coordination.schedule.table_state import TrackedTable

GATHERED_S = 0.25
"""Probes that begin within so long share a deadline, that of the last."""


@dataclass(slots=True)
class _Sent:
    """Probes that began one after the other, within GATHERED_S of `first_s`."""

    first_s: float
    due_s: float
    sent_s: tuple[float, float]
    tables: list[TrackedTable] = field(default_factory=list)

    def has_open(self) -> bool:
        """Forgets those at the end that were answered."""
        while self.tables and not self._is_open(self.tables[-1]):
            self.tables.pop()
        return bool(self.tables)

    def _is_open(self, table: TrackedTable) -> bool:
        return table.probing and self.sent_s[0] <= table.probe_sent_s <= self.sent_s[1]


class ProbeDeadlines:
    """Each probe is noted once, in order; one that is answered in time costs little else."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sent: deque[_Sent] = deque()

    def note(self, table: TrackedTable, now_s: float) -> None:
        """A probe of the table begins, or goes on though it was late."""
        sent_s = table.probe_sent_s
        last = self._sent[-1] if self._sent else None
        if last is None or now_s - last.first_s > GATHERED_S:
            last = _Sent(now_s, 0.0, (sent_s, sent_s))
            self._sent.append(last)
        last.due_s = now_s + self._timeout_s
        if not last.sent_s[0] <= sent_s <= last.sent_s[1]:
            last.sent_s = min(sent_s, last.sent_s[0]), max(sent_s, last.sent_s[1])
        last.tables.append(table)

    def next_due_s(self) -> float | None:
        while self._sent:
            if self._sent[0].has_open():
                return self._sent[0].due_s
            self._sent.popleft()
        return None

    def pop_late(self, now_s: float) -> TrackedTable | None:
        """Return a table whose probe has just become late."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        return self._sent[0].tables.pop()
