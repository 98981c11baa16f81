"""The owner's loads, writes and checks of what etcd has of builds: one at a time, each answered before the next.

An owner that has nothing to write would not notice that its transactions are gone, as from an etcd that was emptied, or
restored from a backup: nodes know of no task any more that it calls them for, or of some that are long over. So it
checks now and then that what it knows is still what was written last: one read of one key.
"""

from __future__ import annotations

from math import inf

from iscp.coordination.builds.build_limits import LOAD_RETRY_S
from iscp.coordination.builds.build_state import Change
from iscp.coordination.builds.builder_events import CheckBuilds, LoadBuilds, WriteBuilds


class StoreTurns:
    """The turns of loads, writes and checks. `awaited` is the number of what is under way; 0 if nothing is."""

    def __init__(self, check_every_s: float, now_s: float) -> None:
        self.awaited = 0
        self._check_every_s = check_every_s
        self._number = 0
        self._writing: tuple[Change, ...] = ()
        self._load_at_s = now_s
        self._check_at_s = inf

    def load(self, now_s: float) -> LoadBuilds | None:
        """Return a load, if it is time for that."""
        if self._load_at_s > now_s:
            return None
        self._load_at_s = inf
        return LoadBuilds(self._begin())

    def write(self, changes: tuple[Change, ...]) -> WriteBuilds:
        self._writing = changes
        return WriteBuilds(self._begin(), changes)

    def check(self, now_s: float) -> CheckBuilds | None:
        """Return a check, if it is time for that, and nothing else is under way."""
        due_s = self._check_due_s()
        return CheckBuilds(self._begin()) if due_s is not None and due_s <= now_s else None

    def end(self, now_s: float) -> tuple[Change, ...]:
        """End the turn that was answered, and return what it has written."""
        written, self._writing, self.awaited = self._writing, (), 0
        self._check_at_s = now_s + self._check_every_s
        return written

    def fail(self, now_s: float) -> None:
        """Have etcd read again, after a failure of which nobody knows what it left there."""
        self.end(now_s)
        self._load_at_s = now_s + LOAD_RETRY_S

    def next_due_s(self) -> float | None:
        """Return when to load or to check, or None for neither."""
        return self._load_at_s if self._load_at_s < inf else self._check_due_s()

    def _check_due_s(self) -> float | None:
        return self._check_at_s if not self.awaited and self._check_at_s < inf else None

    def _begin(self) -> int:
        self._number += 1
        self.awaited = self._number
        return self._number
