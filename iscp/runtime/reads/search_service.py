"""Searches of indexes, answered by who knows whose target an index is (port Searching): the owner, or a run.

In a cluster a search goes to the owner as other calls do. Whoever needs more searches than one node can carry out reads
the index by the library, which needs no node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.job.job_row import JobRow
from iscp.core.settings.search_bounds import SearchBounds
from iscp.core.spec.index_kinds import INDEX_KINDS
from iscp.core.values.errors import InvalidRequest, no_index_at
from iscp.ports.catalog import Catalog
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.system import Clock
from iscp.ports.target_reading import IndexSearch
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
from iscp.runtime.reads.work_for_jobs import at_work_for

VersionWait = Callable[[JobRow, int, float, Callable[[], bool]], object]
"""Return once the job has applied this version of its table, within so many seconds, as long as somebody waits.

Raises TimedOut, JobFailed, Unavailable.
"""


JobsAt = Callable[[str], Sequence[JobRow]]
"""Return the jobs whose target is at this place, as it is normalized."""


def owners_jobs_at(owner: OwnerLoop) -> JobsAt:
    """Return what finds jobs by their targets at the owner. It raises NotOwner, Unavailable."""

    def found(place: str) -> Sequence[JobRow]:
        return owner.current_writer().read(lambda book: _jobs_at(book, place))

    return found


def search_turns(bounds: SearchBounds, clock: Clock) -> AccountTurns:
    """Return the turns of a process's searches."""
    return AccountTurns(
        TurnBounds(bounds.node_max, bounds.account_max, bounds.timeout_s),
        "iscp-search",
        "search",
        "Retry, search for less, or raise `search.node_max` and `search.timeout_s`",
        clock.monotonic_s,
    )


class JobSearch:
    """Searches of what jobs maintain: no other place of this process's machine or stores is opened for a caller.

    Without `wait` nobody waits for a version: the index has it, or the search is refused.
    """

    def __init__(
        self,
        jobs_at: JobsAt,
        catalog: Catalog,
        search: IndexSearch,
        turns: AccountTurns,
        places: PlaceGuard = ANYWHERE,
        deaths: JobDeaths = NO_DEATHS,
        wait: VersionWait | None = None,
    ) -> None:
        self._jobs_at = jobs_at
        self._catalog = catalog
        self._wait = wait
        self._search = search
        self._turns = turns
        self._places = places
        self._deaths = deaths

    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        row = self._job_of(request.uri, account, alive)
        account, target = row.key.account, row.spec.consumer.target
        if request.min_version is not None and self._wait is not None:
            self._wait(row, request.min_version, request.wait_s, alive)
        # The job has applied the version: what the index says of itself has to agree at once.
        of_target = replace(request, uri=target, wait_s=0.0)
        return self._turns.run(account, lambda: self._search_alive(row, of_target), alive)

    def close(self) -> None:
        self._turns.close()

    def _search_alive(self, row: JobRow, request: SearchRequest) -> SearchAnswer:
        """Search an index, unless this node's process has died of its job before: a file there may crash a library."""
        # A link that was put there since leads nowhere else.
        self._places.require_target(row.key.account, request.uri, "uri")
        with at_work_for(row, self._deaths):
            return self._search(request, row.key.account)

    def _job_of(self, uri: str, account: str, alive: Callable[[], bool]) -> JobRow:
        """Return the job that maintains the index. Raises TableNotFound where the account (empty: any) has none."""
        found = self._jobs_at(uri)
        if not found:  # a place may lie where nothing answers
            found = self._jobs_at(self._turns.run(account, lambda: self._normalized(uri), alive))
        row = next((each for each in found if account in ("", each.key.account)), None)
        if row is None or row.spec.consumer.kind not in INDEX_KINDS:
            raise no_index_at(uri)
        return row

    def _normalized(self, uri: str) -> str:
        try:
            return self._catalog.normalize(uri)
        except InvalidRequest:
            # No job has such a place; why it is none is said to nobody who may not know what is there.
            return uri


def _jobs_at(book: JobBook, place: str) -> list[JobRow]:
    rows = map(book.by_id, book.targets().at(place))
    return [row for row in rows if row is not None]
