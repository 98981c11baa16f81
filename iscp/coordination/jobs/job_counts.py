"""Count the jobs of each account, and of all, by state and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from iscp.core.job.job_row import JobRow, JobState, Reason

_COUNTED = attrgetter("key.account", "state", "reason")


class JobCounts:
    """A question costs nothing but its answer, whatever the number of jobs."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, JobState, Reason]] = Counter()

    def add(self, row: JobRow, by: int = 1) -> None:
        self._counts[row.key.account, row.state, row.reason] += by
        self._counts["", row.state, row.reason] += by

    def add_all(self, rows: Iterable[JobRow]) -> None:
        for (account, state, reason), jobs in Counter(map(_COUNTED, rows)).items():
            for counted in (account, ""):
                self._counts[counted, state, reason] += jobs

    def count(self, account: str, state: JobState | None, reason: Reason | None) -> int:
        """Return how many jobs an account has (empty: all accounts), in a state and for a reason (None: in any)."""
        states = (state,) if state is not None else tuple(JobState)
        reasons = (reason,) if reason is not None else tuple(Reason)
        return sum(self._counts[account, each, why] for each in states for why in reasons)
