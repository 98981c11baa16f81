"""Compose what a process has for its indexes, and what carries searches of them out.

Compose the embedders of a node.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp.index.embedding.embedder_registry import EmbedderRegistry
from iscp.index.embedding.embedding_service import EmbeddingServices, IndexServices, Patience, VectorCache
from iscp.model.settings.config import NodeConfig
from iscp.model.settings.embedder_config import EmbeddingConfig
from iscp.model.values.errors import ConfigurationError, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import SettingFault, import_name
from iscp.ports.system import Clock, Failpoints
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

if TYPE_CHECKING:
    from iscp.index.embedding.embedding_service import EmbeddingService
    from iscp.model.api.api_requests import SearchAnswer, SearchRequest


log = logging.getLogger(__name__)


def embedding_services(config: NodeConfig, clock: Clock) -> EmbeddingServices:
    """Return the embedders that jobs of this node may name; none is made yet."""
    registry = EmbedderRegistry(config.embedding.allow, config.embedders)
    if registry.absent:
        log.warning("embedders.not_installed", extra={"names": ", ".join(registry.absent)})
    return _services(registry, config.embedding, clock)


def default_embeddings() -> EmbeddingServices:
    """Return the embedders of a program without settings: iscp's own."""
    return _services(EmbedderRegistry(), EmbeddingConfig(), SystemClock())


def _services(registry: EmbedderRegistry, config: EmbeddingConfig, clock: Clock) -> EmbeddingServices:
    return EmbeddingServices(
        registry, VectorCache(config.cache_mb * 1024**2), Patience(clock, time.sleep, random.random)
    )


def embedder_key_faults(config: NodeConfig) -> Iterator[SettingFault]:
    """Yield a fault for every file that is to hold an embedder's key and does not."""
    from iscp.index.embedding.openai_embedder import read_key

    for name, each in config.embedders.items():
        if each.key_file:
            try:
                read_key(each.key_file, f"embedders.{name}.key_file")
            except ConfigurationError as error:
                yield SettingFault.from_error(error)


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
