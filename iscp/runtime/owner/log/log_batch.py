"""What one commit to the job log carries."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from iscp.coordination.jobs.job_changes import PendingChanges
from iscp.coordination.jobs.job_requests import Answer
from iscp.core.job_row import JobRow


@dataclass(slots=True)
class LogBatch:
    """The rows of the changes, statuses behind them, and whom to answer."""

    draft: PendingChanges
    answers: list[tuple[Future[Any], Answer]] = field(default_factory=list)
    statuses: list[JobRow] = field(default_factory=list)

    def rows(self) -> tuple[list[JobRow], list[str]]:
        rows = [entry.row for entry in self.draft.entries] + self.statuses
        ids = [entry.request_id for entry in self.draft.entries] + [""] * len(self.statuses)
        return rows, ids
