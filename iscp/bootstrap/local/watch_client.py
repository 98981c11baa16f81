"""The page's calls, answered from what a watch knows of its jobs: there is no cluster to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iscp.core.access.audit_entry import AuditEntry
from iscp.core.api.api_requests import RegisterRequest
from iscp.core.api.api_views import EventView, JobView, LeftOutRows
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.build.api_builds import BuildView
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.job.maintenance_figures import JobMaintenance
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.values.progress import RunProgress
from iscp.page.serving.viewer_calls import Viewer, ViewerClient, ViewerClients
from iscp.ports.target_reading import Searching
from iscp.runtime.admin.target_figures import TargetFigures
from iscp.runtime.local.watched_builds import watched_builds
from iscp.runtime.local.watched_jobs import WatchedJobs

LEFT_OUT_ROWS = 20
"""Rows that a job leaves out which are read of its target."""


@dataclass(frozen=True, slots=True)
class JobReads:
    """The reads of one job that go elsewhere: by its id to the parts that run it, and by its row to its target."""

    progress: Callable[[str], RunProgress | None]
    maintenance: Callable[[str], JobMaintenance]
    figures: Callable[[JobRow], TargetFigures]
    dead_letters: Callable[[JobRow, int], LeftOutRows]
    explain: Callable[[RegisterRequest], QueryExplanation]
    search: Searching


class _Nobody:
    """The calls that are about an owner, and about who has changed what: here there are no such things."""

    def events(self) -> Sequence[EventView]:
        return []

    def audit(self, *, limit: int) -> Sequence[AuditEntry]:
        return []


class _Builds:
    """The first snapshots that this process builds."""

    def __init__(self, jobs: WatchedJobs, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    def list(self) -> Sequence[BuildView]:
        return watched_builds(self._jobs.rows(), self._reads.progress)


class WatchClient(ViewerClient):
    """Answers all viewers alike."""

    operator = access = _Nobody()

    def __init__(self, jobs: WatchedJobs, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    @property
    def builds(self) -> _Builds:
        return _Builds(self._jobs, self._reads)

    def jobs(self, *, limit: int) -> list[JobView]:
        return self._jobs.views()[:limit]

    def count(self) -> int:
        return len(self._jobs)

    def status(self, table: str, name: str, *, account: str) -> JobView:
        """Return the job in full. Raises JobNotFound."""
        view, row = self._jobs.view(table, name, account), self._jobs.row(table, name, account)
        if row is None:
            return view
        figures = self._reads.figures(row)
        return replace(
            view,
            upkeep=self._reads.maintenance(row.job_id),
            progress=self._reads.progress(row.job_id) if view.state is JobState.RUNNING else None,
            figures=figures.values,
            figures_fault=figures.fault,
        )

    def history(self, table: str, name: str, *, limit: int, account: str) -> Sequence[HistoryEntry]:
        return self._jobs.history(table, name, account, limit)

    def dead_letters(self, table: str, name: str, *, account: str) -> LeftOutRows:
        """Return some of the rows that the job leaves out of its target. Raises IscpError."""
        row = self._jobs.row(table, name, account)
        return LeftOutRows() if row is None else self._reads.dead_letters(row, LEFT_OUT_ROWS)

    def explain(self, table: str, name: str, *, account: str) -> QueryExplanation:
        """Explain how the job's query is maintained. Raises IscpError."""
        return self._reads.explain(self._jobs.requested(table, name, account).request)

    def search(self, uri: str, text: str, *, k: int, highlight: bool, account: str) -> SearchAnswer:
        """Search an index that a job of this watch keeps. Raises IscpError."""
        wanted = SearchRequest(uri, text, k=k, highlight=highlight, wait_s=0.0)
        return self._reads.search.search(wanted, account, lambda: True)


class WatchClients(ViewerClients):
    """One client for all who view the page."""

    def __init__(self, client: WatchClient) -> None:
        self._client = client

    def client(self, viewer: Viewer) -> WatchClient:
        return self._client

    def close(self) -> None:
        """There is no connection to close."""
