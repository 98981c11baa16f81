"""A batch is what one commit to the job log carries."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from iscp.coordination.jobs.job_changes import PendingChanges
from iscp.coordination.jobs.job_requests import Answer
from iscp.core.job.job_row import JobRow, LogEntry
from iscp.core.values.errors import IscpError


@dataclass(slots=True)
class LogBatch:
    """The rows of the changes, statuses behind them, and whom to answer."""

    draft: PendingChanges
    answers: list[tuple[Future[Any], Answer | IscpError]] = field(default_factory=list)
    statuses: list[JobRow] = field(default_factory=list)

    def entries(self) -> list[LogEntry]:
        return [*self.draft.entries, *map(LogEntry, self.statuses)]
