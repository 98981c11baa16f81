"""Compose the page on which a watch is seen, whose libraries are loaded only where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from iscp.bootstrap.index_parts import NodeSearch
from iscp.consumers.index.index_services import IndexServices
from iscp.core.api.api_requests import RegisterRequest
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.settings.config import NodeConfig
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.extras import extra_missing
from iscp.core.values.setting_faults import is_loopback
from iscp.ports.catalog import Catalog
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import Clock
from iscp.runtime.access.place_guard import ANYWHERE
from iscp.runtime.admin.dead_letter_reader import DeadLetterReader
from iscp.runtime.admin.retention_watch import RetentionWatch
from iscp.runtime.admin.target_figures import FigureReader
from iscp.runtime.local.local_run import RequestedJob
from iscp.runtime.local.local_watch import WatchPage, WatchParts
from iscp.runtime.local.watched_jobs import WatchedJobs
from iscp.runtime.reads.search_service import JobSearch, search_turns

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
        from iscp.bootstrap.local.watch_client import JobReads, WatchClient, WatchClients
        from iscp.page.serving.page_boards import OF_A_RUN
        from iscp.page.serving.page_server import NoServers, PageServer, PageSettings
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
