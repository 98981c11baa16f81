"""The port behind the gRPC service `Admin` (reference 1's API, with an account everywhere)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from iscp.core.api.api_requests import (
    ChangeOutcome,
    ExplainRequest,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api.api_views import CheckedJob, ClusterView, JobView, LeftOutRows, RegisterResult
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.verification import VerifyReport
from iscp.core.query.query_explanation import QueryExplanation


class AdminService(Protocol):
    """All methods raise IscpError: InvalidRequest before anything is written, NotOwner, Unavailable, TimedOut."""

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        """Register all or none: every request is checked before the first is written. Returns once they are in the
        log.
        """

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        """Make each change for itself; the outcomes run parallel to `changes`, and are in the log.

        A temporary error is raised for all, as OutcomeUnknown where some changes were made: who retries with the same
        request ids gets their first answers.
        """

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        """Check each for itself, on top of those before it; nothing is written."""

    def resync(self, request: ResyncRequest) -> RegisterResult:
        """Resync the job, and return its new registration, which is in the log. Raises JobNotFound; Conflict if it was
        changed meanwhile.
        """

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        """Update specs, with outcomes as `change` has them: True if a spec has changed, False if it was so already, an
        error if it was refused.
        """

    def list_jobs(self, wanted: JobFilter) -> list[JobView]: ...

    def count_jobs(self, wanted: JobFilter) -> int: ...

    def status(self, job: JobName) -> JobView:
        """Raises JobNotFound."""

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        """Return once the job's watermark is at `version` (None: the table's newest at the call).

        `versions`: of further tables that it reads, by name or URI; of those that are left out the newest at the call.
        Given up, within about a second, when `alive` says that nobody waits for the answer any more. Raises
        TimedOut, JobFailed (failed for good, paused, or dropped meanwhile), JobNotFound.
        """

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        """Compare the job's target with its source at its watermark, after whatever runs of the job.

        Given up, and the work with it, after `timeout_s` or when `alive` says that nobody waits. Raises TimedOut,
        JobFailed (not built, failed; paused and `repair`), PermanentError (it cannot be known), JobNotFound.
        """

    def explain(self, request: ExplainRequest) -> QueryExplanation:
        """Explain the query. Raises InvalidRequest if the query cannot be maintained, or the consumer maintains none;
        JobNotFound.
        """

    def dead_letters(self, job: JobName, limit: int) -> LeftOutRows:
        """Return up to `limit` of the rows that the job leaves out of its target, in no order.

        Raises JobNotFound; TimedOut or QueueFull where the storage takes too long, PermanentError for rows that are not
        read here, StorageError.
        """

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first."""

    def notify(self, table: str, account: str = "") -> int:
        """Note that this table has just changed, and return how many jobs read it, those on other tables too.

        Jobs of the account count, or (empty) of all. Raises TableNotFound if there are none.
        """

    def cluster(self) -> ClusterView: ...
