"""Jobs that a node's process has died of, as a test says (port JobDeaths)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Deaths


class FakeDeaths:
    """`begun`: for which jobs threads were at work, in the order in which they began; `at`: for which they are.

    `accounts`: of how many deaths jobs of an account are suspected.
    """

    def __init__(self, **counts: int) -> None:
        self.known = {name: Deaths(count, 1.0, "Aborted") for name, count in counts.items()}
        self.begun: list[list[str]] = []
        self.at: list[str] = []
        self.accounts: dict[str, int] = {}

    @contextmanager
    def at_work(self, rows: Sequence[JobRow]) -> Iterator[None]:
        names = [row.job_id for row in rows]
        self.begun.append(names)
        self.at += names
        try:
            yield
        finally:
            for name in names:
                self.at.remove(name)

    def of(self, row: JobRow) -> Deaths:
        return self.known.get(row.job_id, Deaths())

    def of_account(self, account: str) -> int:
        return self.accounts.get(account, 0)

    def forget(self, job_id: str) -> None:
        self.known.pop(job_id, None)

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        self.known[job_id] = Deaths(forgiven_at_s=reported_at_s)
