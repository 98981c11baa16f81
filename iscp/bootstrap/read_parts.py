"""Compose the answers to reads of what jobs maintain: searches of indexes, and pages of feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from iscp.adapters.grpc.admin.feed_server import FeedServer
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.admin.owners_jobs import OwnersJobs
from iscp.adapters.grpc.admin.search_server import SearchServer
from iscp.bootstrap.foundation import Foundation, compose_places
from iscp.consumers.index.index_services import IndexServices
from iscp.core.api.feed_views import ChangePage
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import InvalidRequest, PermanentError
from iscp.core.values.extras import import_name
from iscp.index.embedding.embedding_service import EmbeddingService
from iscp.ports.admin import AdminService
from iscp.ports.catalog import Catalog
from iscp.ports.system import Clock, Failpoints
from iscp.ports.target_reading import FeedPages
from iscp.runtime.access.place_guard import PlaceGuard
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.metrics.metered_search import MeteredSearch
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
from iscp.runtime.reads.feed_service import NodeFeeds, feed_turns
from iscp.runtime.reads.search_service import OwnerSearch


def compose_search(
    foundation: Foundation, owner: OwnerLoop, catalog: Catalog, waiter: JobWaiter, places: PlaceGuard
) -> SearchServer:
    bounds = foundation.config.search
    turns = AccountTurns(
        TurnBounds(bounds.node_max, bounds.account_max, bounds.timeout_s),
        foundation.clock,
        "iscp-search",
        "search",
        "Retry, search for less, or raise `search.node_max` and `search.timeout_s`",
    )
    search = NodeSearch(foundation.indexes)
    service = OwnerSearch(owner, catalog, waiter.wait, search, turns, places, foundation.deaths)
    return SearchServer(MeteredSearch(service, foundation.meter, foundation.clock))


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """Carries searches out by the library, with the node's embedders (port IndexSearch).

    The library is loaded for the first search: most nodes have no index.
    """

    indexes: Callable[[], IndexServices]

    def __call__(self, request: SearchRequest, account: str) -> SearchAnswer:
        """Raises IscpError, and PermanentError where the library's packages are not installed."""
        try:
            run = import_name("iscp", "search", "iscp.index.search.search_library", "run_search")
        except ModuleNotFoundError as error:
            raise PermanentError(
                f"this node cannot search: {error}",
                remedy="Install the packages of the extra `search` on every node, and restart them",
            ) from error
        services = self.indexes().embeddings
        answer: SearchAnswer = run(request, lambda name: QueryVectors(services.service(name, account, "text")))
        return answer


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """An embedder of queries that shares the cache, the pace and the retries of the node's jobs."""

    service: EmbeddingService

    @property
    def fingerprint(self) -> str:
        return self.service.fingerprint

    def embed(self, texts: Sequence[str]) -> Any:
        """Return a row of numbers for each text. Raises InvalidRequest for one that the embedder refuses."""
        embedded = self.service.embed(texts)
        for why in embedded.refused.values():
            raise InvalidRequest(f"cannot be embedded: {why}", field="text", remedy="Search for another text")
        return embedded.vectors


def compose_feeds(foundation: Foundation, admin: AdminService, forwarding: Forwarding) -> FeedServer:
    clock = foundation.clock
    pages = feed_pages(clock, foundation.failpoints)
    service = NodeFeeds(pages, feed_turns(clock), clock, compose_places(foundation.config), foundation.deaths)
    return FeedServer(service, OwnersJobs(admin, forwarding).job)


def feed_pages(clock: Clock, failpoints: Failpoints) -> FeedPages:
    """Return what reads the feeds of any jobs; the library is loaded for the first one, as most nodes read none."""
    found = cache(lambda: _library(clock, failpoints))

    def page(row: JobRow, cursor: str, limit: int) -> ChangePage:
        return found()(row, cursor, limit)

    return page


def _library(clock: Clock, failpoints: Failpoints) -> FeedPages:
    from iscp.consumers.changefeed.feed_pages import JobFeedPages

    return JobFeedPages(clock, failpoints).page
