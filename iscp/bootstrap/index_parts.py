"""Compose what a process has for its indexes, and what carries searches of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.bootstrap.embedding_parts import default_embeddings, embedding_services
from iscp.consumers.index.index_services import IndexServices
from iscp.core.settings.config import NodeConfig
from iscp.core.values.errors import InvalidRequest, PermanentError
from iscp.core.values.extras import import_name
from iscp.ports.system import Clock, Failpoints

if TYPE_CHECKING:
    from iscp.core.api.search_views import SearchAnswer, SearchRequest
    from iscp.index.embedding.embedding_service import EmbeddingService


def index_services(config: NodeConfig, clock: Clock, failpoints: Failpoints, *, awaited: bool = False) -> IndexServices:
    """Return what the indexes of a process share. `awaited` as in IndexServices."""
    return IndexServices(embedding_services(config, clock), clock, failpoints, awaited)


def default_index_services() -> IndexServices:
    """Return the same for a program without settings."""
    return IndexServices(default_embeddings(), SystemClock(), EnvironmentFailpoints({}))


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
