"""Compose the answers to searches of indexes."""

from __future__ import annotations

from iscp.adapters.grpc.admin.search_server import SearchServer
from iscp.bootstrap.foundation import Foundation
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.values.errors import PermanentError
from iscp.core.values.extras import import_name
from iscp.ports.catalog import Catalog
from iscp.runtime.access.place_guard import PlaceGuard
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.admin.search_service import OwnerSearch
from iscp.runtime.admin.search_turns import SearchTurns
from iscp.runtime.owner.owner_loop import OwnerLoop


def compose_search(
    foundation: Foundation, owner: OwnerLoop, catalog: Catalog, waiter: JobWaiter, places: PlaceGuard
) -> SearchServer:
    turns = SearchTurns(foundation.config.search, foundation.clock)
    return SearchServer(OwnerSearch(owner, catalog, waiter.wait, search_index, turns, places))


def search_index(request: SearchRequest) -> SearchAnswer:
    """Carry a search out by the library, which is loaded for the first one: most nodes have no index.

    Raises IscpError, and PermanentError where the library's packages are not installed.
    """
    try:
        run = import_name("iscp", "search", "iscp.index.search.library", "run_search")
    except ModuleNotFoundError as error:
        raise PermanentError(
            f"this node cannot search: {error}",
            remedy="Install the packages of the extra `search` on every node, and restart them",
        ) from error
    answer: SearchAnswer = run(request)
    return answer
