"""The boards: what each fetches in the viewer's name, and which template shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.model.access.authorization import AuditEntry
from iscp.model.api.api_requests import ClusterView, EventView, JobName, JobView, LeftOutRows
from iscp.model.job.iteration import HistoryEntry
from iscp.model.run.run_plan import words_of_a_run
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthenticated, NotAuthorized
from iscp.server.boards.cluster_board import HITS, builds_board, cluster_board, search_board, wanted_of
from iscp.server.boards.freshness_board import (
    AUDIT_MAX,
    HISTORY_ENTRIES_MAX,
    LeftOutTable,
    freshness_board,
    jobs_with_history,
    leaves_out,
    left_out_table,
    read_filter,
    time_line,
    trouble_board,
    window_of,
)
from iscp.server.boards.job_board import ITERATIONS_MAX, JobFacts, all_facts, job_board
from iscp.server.boards.lineage_board import LineageGraph, lineage_board, lineage_graph
from iscp.server.page.page_viewers import HeldAnswer, HeldAnswers, Query, Viewer, ViewerClient, whole

NAME_CHARS_MAX = 4_000
"""Characters of a name or a place in an address; a longer one is refused."""

JOBS_MAX = 20_000
"""Jobs of one list; of more the page shows so many, and says so."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All jobs that a viewer may see, as of `taken_at_s` (Unix seconds); `total` counts those that did not fit too.

    `fault` says why there is no newer list; empty: there is nothing wrong.
    """

    jobs: tuple[JobFacts, ...]
    total: int
    taken_at_s: float
    fault: str = ""


FOREIGN_SEARCH = "This search was not made by this page: press Search to make it."
"""What is shown for an address with a search that another site may have led to."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a board: who makes it, when (Unix seconds), with which parameters."""

    viewer: Viewer
    client: ViewerClient
    answers: HeldAnswers
    query: Query
    now_s: float
    here: bool = True
    """Whether it comes from a page of this origin: a link of another site costs no search."""

    def jobs(self) -> JobSnapshot:
        found = self.answers.newest(self.viewer, "jobs", _listed_jobs)
        jobs, total = found.value
        return JobSnapshot(jobs, total, found.taken_at_s, found.fault)

    def lineage(self) -> HeldAnswer[LineageGraph]:
        """Return the lineage of all jobs, which takes longer than a page may to compute for ten thousands."""
        return self.answers.newest(self.viewer, "lineage", lambda client: lineage_graph(self.jobs().jobs))

    def cluster(self) -> HeldAnswer[ClusterView]:
        return self.answers.newest(self.viewer, "cluster", lambda client: whole(client).cluster())


def _listed_jobs(client: ViewerClient) -> tuple[tuple[JobFacts, ...], int]:
    jobs = client.jobs(limit=JOBS_MAX)
    return all_facts(jobs), len(jobs) if len(jobs) < JOBS_MAX else client.count()


@dataclass(frozen=True, slots=True)
class Board:
    """A board: its path and title, its template (and that of what stands above it and does not change), its content.

    `listed`: in the list of all boards. `live`: it stays as the cluster is.
    """

    name: str
    title: str
    content: Callable[[Visit], Mapping[str, Any]]
    controls: bool = False
    live: bool = True
    listed: bool = True

    @property
    def path(self) -> str:
        return "/" if self.name == "freshness" else f"/{self.name}"


def named_job(query: Query) -> JobName:
    """Return the job that an address names. Raises InvalidRequest."""
    table, name, account = (query.get(field, "") for field in ("table", "name", "account"))
    for field, value in (("table", table), ("name", name), ("account", account)):
        if len(value) > NAME_CHARS_MAX:
            raise InvalidRequest("is too long", field=field, remedy="Follow a link of the page")
    if not table or not name:
        raise InvalidRequest("is missing", field="name" if table else "table", remedy="Follow a link of the page")
    return JobName(table, name, account)


def _freshness(visit: Visit) -> Mapping[str, Any]:
    snapshot = visit.jobs()
    return {"board": freshness_board(snapshot.jobs, read_filter(visit.query)), "snapshot": snapshot}


def _job(visit: Visit) -> Mapping[str, Any]:
    job = named_job(visit.query)
    view = visit.client.status(job.table, job.name, account=job.account)
    history: Sequence[HistoryEntry] = []
    fault = ""
    try:
        history = visit.client.history(job.table, job.name, account=job.account, limit=ITERATIONS_MAX)
    except IscpError as error:  # the rest of the board is worth showing
        fault = str(error)
    board = job_board(view, history, visit.now_s)
    return {"board": board, "history_fault": fault, "left_out": _left_out(visit, job, view)}


def _left_out(visit: Visit, job: JobName, view: JobView) -> LeftOutTable | None:
    """Return rows that the job leaves out; None where it leaves out none. They are held, as reading them costs."""
    if not leaves_out(view):
        return None

    def read(client: ViewerClient) -> LeftOutRows:
        return client.dead_letters(job.table, job.name, account=job.account)

    try:
        return left_out_table(visit.answers.newest(visit.viewer, f"left out: {job!r}", read).value)
    except NotAuthenticated:
        raise
    except IscpError as error:  # the rest of the board is worth showing
        return LeftOutTable(fault=str(error))


def _time_line(visit: Visit) -> Mapping[str, Any]:
    snapshot = visit.jobs()
    earlier, fault = _recent_histories(visit, snapshot)
    board = time_line(snapshot.jobs, visit.query, snapshot.taken_at_s, earlier)
    return {"board": board, "snapshot": snapshot, "history_fault": fault}


def _recent_histories(visit: Visit, snapshot: JobSnapshot) -> tuple[Mapping[str, Sequence[HistoryEntry]], str]:
    """Return the histories of the jobs that ended an iteration last, and why there are none; they are held."""
    wanted = jobs_with_history(snapshot.jobs, visit.query, snapshot.taken_at_s)

    def read(client: ViewerClient) -> Mapping[str, Sequence[HistoryEntry]]:
        return {
            job.job_id: client.history(job.table_id, job.name, account=job.account, limit=HISTORY_ENTRIES_MAX)
            for job in wanted
        }

    try:
        return visit.answers.newest(visit.viewer, f"histories: {window_of(visit.query)}", read).value, ""
    except NotAuthenticated:
        raise
    except IscpError as error:  # the rest of the board is worth showing
        return {}, str(error)


def _builds(visit: Visit) -> Mapping[str, Any]:
    snapshot = visit.jobs()
    found = visit.answers.newest(visit.viewer, "builds", lambda client: client.builds.list())
    return {"board": builds_board(found.value, snapshot.jobs), "snapshot": snapshot, "answer": found}


def _search(visit: Visit) -> Mapping[str, Any]:
    snapshot = visit.jobs()
    uri, text = wanted_of(visit.query)
    answer, fault = None, ""
    if uri and text and not visit.here:
        fault = FOREIGN_SEARCH
    elif uri and text:
        accounts = {job.account for job in snapshot.jobs if job.target == uri}
        account = accounts.pop() if len(accounts) == 1 else ""
        try:
            answer = visit.client.search(uri, text, k=HITS, highlight=True, account=account)
        except NotAuthenticated:
            raise
        except IscpError as error:  # what was entered is shown with it
            fault = str(error)
    return {"board": search_board(snapshot.jobs, visit.query, answer, fault), "snapshot": snapshot}


def _lineage(visit: Visit) -> Mapping[str, Any]:
    found = visit.lineage()
    return {"board": lineage_board(found.value, visit.query), "answer": found}


def _trouble(visit: Visit) -> Mapping[str, Any]:
    snapshot = visit.jobs()
    audit, fault = _audit(visit.client)
    events = [each for each in _events(visit.client) if each.what in ("gone", "revoke", "term")][-20:]
    board = trouble_board(snapshot.jobs, visit.now_s, audit, fault, list(reversed(events)))
    return {"board": board, "snapshot": snapshot}


def _audit(client: ViewerClient) -> tuple[Sequence[AuditEntry], str]:
    try:
        return client.access.audit(limit=AUDIT_MAX), ""
    except NotAuthorized:
        return [], "Only an admin of an account may read the audit."
    except IscpError as error:
        return [], str(error)


def _events(client: ViewerClient) -> Sequence[EventView]:
    try:
        return client.operator.events()
    except IscpError:  # what owners did is worth less than the rest of a board
        return []


def _cluster(visit: Visit) -> Mapping[str, Any]:
    try:
        found = visit.cluster()
    except NotAuthorized as error:
        raise NotAuthorized(
            "the cluster's state is for those who act for all accounts",
            remedy="See the other boards, which show what is yours",
        ) from error
    return {"board": cluster_board(found.value, _events(visit.client)), "answer": found}


BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board("freshness", "Freshness", _freshness, controls=True),
        Board("lineage", "Lineage", _lineage, controls=True),
        Board("timeline", "Time line", _time_line, controls=True),
        Board("builds", "Builds", _builds),
        Board("trouble", "Trouble", _trouble),
        Board("cluster", "Cluster", _cluster),
        Board("search", "Search", _search, controls=True, live=False),
        Board("job", "Job", _job, listed=False),
    )
}
"""All boards by their names, in the order in which the page lists them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer of a page: its boards, and with `changes` the changes of jobs and nodes.

    `say` returns an error, a warning or a remedy in the words of whoever offers the page: all are worded for a cluster.
    """

    boards: Sequence[Board]
    changes: bool
    say: Callable[[str], str] = str


OF_A_CLUSTER = Offer(tuple(BOARDS.values()), changes=True)

OF_A_RUN = Offer(
    tuple(BOARDS[name] for name in ("freshness", "lineage", "timeline", "builds", "trouble", "search", "job")),
    changes=False,
    say=words_of_a_run,
)
"""The offer for jobs that run without a cluster: nothing that only a node has or does."""
