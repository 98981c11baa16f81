"""Composes a watch, a schedule of jobs in a process that has no node, and the page on which it is seen.

The page's libraries are loaded only where the page is wanted.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iscp.app.registry import NodeSearch, TriggerRegistry
from iscp.app.shard_parts import target_probes
from iscp.app.table_access import TableAccess
from iscp.cluster.read_services import JobSearch, RetentionWatch, search_turns
from iscp.cluster.requests.job_views import DeadLetterReader, FigureReader, TargetFigures
from iscp.delta.log.directory_notices import DirectoryNotices
from iscp.delta.source.change_source import DeltaProbe
from iscp.engine.account_turns import ANYWHERE
from iscp.engine.iteration_ports import IterationPorts
from iscp.index.embedding.embedding_service import IndexServices
from iscp.model.access.authorization import AuditEntry
from iscp.model.api.api_requests import EventView, JobView, LeftOutRows, RegisterRequest, SearchAnswer, SearchRequest
from iscp.model.build.build_progress import BuildView
from iscp.model.job.iteration import HistoryEntry, JobMaintenance, JobOutcome
from iscp.model.job.job_row import JobRow, JobState
from iscp.model.query_plan import QueryExplanation
from iscp.model.settings.config import NodeConfig
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import extra_missing, is_loopback
from iscp.ports.admin import Searching
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import Catalog
from iscp.ports.system import Clock
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance
from iscp.schedule.runner import Runner
from iscp.schedule.schedule_events import JobCommitted
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import Scheduler, TableNotices
from iscp.server.page.page_viewers import Viewer, ViewerClient, ViewerClients
from iscp.spark.deferred_spark import SparkAccess
from iscp.standalone.local_run import JobRegistrar, RequestedJob
from iscp.standalone.local_watch import SparkNeeds, WatchedJobs, WatchPage, WatchParts, watched_builds

log = logging.getLogger(__name__)

# --- the page of a watch ----------------------------------------------------------------------------------------------

OPTION = "--page"
"""The option by which a page is wanted, whose faults are called so."""


@dataclass(frozen=True, slots=True)
class PageTools:
    """The parts of a run that its page uses, too: what explains queries, and what indexes share."""

    kinds: Callable[[str], ConsumerKind]
    catalog: Catalog
    explain: Callable[[RegisterRequest], QueryExplanation]
    indexes: Callable[[], IndexServices]


def open_page(
    listen: str,
    config: NodeConfig,
    parts: WatchParts,
    jobs: Mapping[int, RequestedJob],
    tools: PageTools,
    clock: Clock,
) -> WatchPage:
    """Return the page of a watch of these jobs, whose port is taken; `listen` is HOST:PORT, and 0 any free port.

    Raises ConfigurationError where the port cannot be had, other machines could reach it, or its libraries are not
    installed.
    """
    if not is_loopback(listen) and not config.security.insecure:
        raise ConfigurationError(
            f"is reached from other machines at {listen}, and callers are not authenticated",
            field=OPTION,
            remedy="Listen on 127.0.0.1, and reach it by `ssh -L`; or set security.insecure in --config",
        )
    try:
        from iscp.server.page.page_boards import OF_A_RUN
        from iscp.server.page.page_server import NoServers, PageServer, PageSettings
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error, "page")):
            raise
        raise ConfigurationError(f"is given, and {sentence}", field=OPTION, remedy="Or leave it out") from error
    retention = RetentionWatch(lambda least_s: shown.lagging(least_s), tools.catalog, ANYWHERE, clock)
    shown = WatchedJobs(jobs, config.node_id, clock, retention.retained_s)
    turns, carry_out = search_turns(config.search, clock), NodeSearch(tools.indexes)
    searches = JobSearch(shown.at, tools.catalog, carry_out, turns)
    reads = JobReads(
        parts.progress,
        parts.maintenance.figures,
        FigureReader(tools.kinds).read,
        DeadLetterReader(tools.kinds).read,
        tools.explain,
        searches,
    )
    clients = WatchClients(WatchClient(shown, reads))
    settings = PageSettings(listen, config.page.hosts, node_id=config.node_id, offer=OF_A_RUN)
    server = PageServer(NoServers(), lambda: "", settings, clock, connect=lambda address, tls: clients)
    try:
        server.start()
    except ConfigurationError as error:
        raise ConfigurationError(error.message, field=OPTION, remedy=error.remedy) from error
    return WatchPage(server, server.address, shown, retention, searches)


# --- the page's calls -------------------------------------------------------------------------------------------------
# The calls are answered from what a watch knows of its jobs: there is no cluster to call.

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


# --- the schedule -----------------------------------------------------------------------------------------------------
# A node's schedule is composed for a process that has no node.


def compose_watch(
    config: NodeConfig,
    spark: SparkAccess,
    tables: TableAccess,
    ports: IterationPorts,
    registrar: JobRegistrar,
    kinds: Callable[[str], ConsumerKind],
) -> WatchParts:
    """Compose what keeps jobs fresh; an invariant that breaks ends it."""
    clock, broken = ports.clock, threading.Event()
    needs = SparkNeeds(clock)

    def end(error: Exception) -> None:
        log.critical("watch.broken", extra={"error": str(error)})
        broken.set()

    def commit(outcome: JobOutcome) -> None:
        needs.hear(outcome)
        scheduler.post(JobCommitted(outcome))

    schedule = Schedule(
        config.node_id,
        config.probe,
        config.backoff,
        random.random,
        evaluate_trigger=TriggerRegistry(config.triggers.allow).evaluate,
    )
    scheduler = Scheduler(schedule, DeltaProbe(), target_probes(tables, kinds), clock, end)
    runner = Runner(ports, config.bounds, on_committed=commit)
    executor = Executor(
        runner,
        clock,
        config.scheduler,
        lease_check=lambda epoch: None,
        emit=scheduler.post,
        on_stuck=lambda iteration: spark.kill(),
    )
    maintenance = Maintenance(
        kinds,
        clock,
        config.upkeep,
        config.backoff,
        random.random,
        lease_check=lambda: None,
        on_broken=end,
    )
    return WatchParts(
        registrar,
        scheduler,
        executor,
        maintenance,
        TableNotices(DirectoryNotices, lambda shard: scheduler.notify(shard, targets=False)),
        lambda: not broken.is_set() and spark.alive(),
        runner.progress,
        needs,
    )
