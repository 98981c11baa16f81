"""What is behind the gRPC service `Admin` (reference 1's API, with an account everywhere)."""

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
from iscp.core.api.api_views import CheckedJob, ClusterView, JobView, RegisterResult
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.verification import VerifyReport
from iscp.core.query.query_explanation import QueryExplanation


class AdminService(Protocol):
    """All methods raise IscpError: InvalidRequest before anything is written, NotOwner, Unavailable, TimedOut."""

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        """All or none: every request is checked before the first is written. Answers once they are in the log."""

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        """Each for itself; the outcomes run parallel to `changes`, and are in the log.

        A temporary error is raised for all, as OutcomeUnknown where some changes were made: who retries with
        the same request ids gets their first answers.
        """

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        """Each for itself, on top of those before it; nothing is written."""

    def resync(self, request: ResyncRequest) -> RegisterResult:
        """The job's new registration, which is in the log. Raises JobNotFound; Conflict if it was changed meanwhile."""

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        """As `change`: True where a spec has changed, False where it was so already, an error where it was refused."""

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
        """Raises InvalidRequest where the query cannot be kept, or the consumer keeps none; JobNotFound."""

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        """Newest first."""

    def notify(self, table: str, account: str = "") -> int:
        """This table has just changed; answers how many jobs read it, those on other tables too.

        Of the account, or (empty) of all. Raises TableNotFound where there are none.
        """

    def cluster(self) -> ClusterView: ...
