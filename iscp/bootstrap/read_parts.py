"""Compose the answers to reads of what jobs maintain: searches of indexes, and pages of feeds."""

from __future__ import annotations

from functools import cache

from iscp.adapters.grpc.admin.feed_server import FeedServer
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.admin.owners_jobs import OwnersJobs
from iscp.adapters.grpc.admin.search_server import SearchServer
from iscp.bootstrap.foundation import Foundation, compose_places
from iscp.bootstrap.index_parts import NodeSearch
from iscp.core.api.feed_views import ChangePage
from iscp.core.job.job_row import JobRow
from iscp.ports.admin import AdminService
from iscp.ports.catalog import Catalog
from iscp.ports.system import Clock, Failpoints
from iscp.ports.target_reading import FeedPages
from iscp.runtime.access.place_guard import PlaceGuard
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.metrics.metered_search import MeteredSearch
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.feed_service import NodeFeeds, feed_turns
from iscp.runtime.reads.search_service import JobSearch, owners_jobs_at, search_turns


def compose_search(
    foundation: Foundation, owner: OwnerLoop, catalog: Catalog, waiter: JobWaiter, places: PlaceGuard
) -> SearchServer:
    turns, search = search_turns(foundation.config.search, foundation.clock), NodeSearch(foundation.indexes)
    jobs_at = owners_jobs_at(owner)
    service = JobSearch(jobs_at, catalog, search, turns, places, foundation.deaths, waiter.wait)
    return SearchServer(MeteredSearch(service, foundation.meter, foundation.clock))


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
