"""All embedders of a node or a program, as jobs and searches use them: one cache, and one pace for each embedder."""

from __future__ import annotations

import threading

from iscp.index.embedding.embedder_registry import EMBED_FIELD, EmbedderRegistry
from iscp.index.embedding.embedding_attempts import EmbeddingAttempts, EmbeddingTimes, Waiting
from iscp.index.embedding.embedding_service import EmbeddingService
from iscp.index.embedding.request_pace import RequestPace
from iscp.index.embedding.vector_cache import VectorCache


class EmbeddingServices:
    """Services by embedder and account. Thread-safe."""

    def __init__(
        self, registry: EmbedderRegistry, cache: VectorCache, waiting: Waiting, times: EmbeddingTimes | None = None
    ) -> None:
        self.registry = registry
        self._cache = cache
        self._waiting = waiting
        self._times = times
        self._lock = threading.Lock()
        self._paces: dict[str, RequestPace] = {}

    def service(self, name: str, account: str, field: str = EMBED_FIELD) -> EmbeddingService:
        """Return a service with counts of its own for an embedder that a job or a search names.

        Raises what `EmbedderRegistry.embedder` raises.
        """
        embedder = self.registry.embedder(name, field)
        with self._lock:
            pace = self._paces.get(name)
            if pace is None:
                per_s = self.registry.definition(name).requests_per_s
                pace = self._paces[name] = RequestPace(per_s, self._waiting.clock)
        attempts = EmbeddingAttempts(embedder, pace, self._waiting, self._times)
        return EmbeddingService(embedder, attempts, self._cache, account)
