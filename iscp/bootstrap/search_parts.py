"""Compose the answers to searches of indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.adapters.grpc.admin.search_server import SearchServer
from iscp.bootstrap.foundation import Foundation
from iscp.consumers.index.index_services import IndexServices
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.values.errors import InvalidRequest, PermanentError
from iscp.core.values.extras import import_name
from iscp.index.embedding.embedding_service import EmbeddingService
from iscp.ports.catalog import Catalog
from iscp.runtime.access.place_guard import PlaceGuard
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.metrics.metered_search import MeteredSearch
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
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
