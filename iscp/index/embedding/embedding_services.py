"""Jobs and searches of a node or a program share one cache, and one pace for each embedder."""

from __future__ import annotations

import threading

from iscp.index.embedding.embedder_registry import EMBED_FIELD, EmbedderRegistry
from iscp.index.embedding.embedding_attempts import EmbeddingAttempts, EmbeddingTimes, Patience
from iscp.index.embedding.embedding_service import EmbeddingService
from iscp.index.embedding.request_pace import RequestPace
from iscp.index.embedding.texts_in_flight import TextsInFlight
from iscp.index.embedding.vector_cache import VectorCache


class EmbeddingServices:
    """Makes services by embedder and account. Thread-safe."""

    def __init__(
        self, registry: EmbedderRegistry, cache: VectorCache, patience: Patience, times: EmbeddingTimes | None = None
    ) -> None:
        self.registry = registry
        self._cache = cache
        self._patience = patience
        self._times = times
        self._lock = threading.Lock()
        self._in_flight = TextsInFlight()
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
                pace = self._paces[name] = RequestPace(per_s, self._patience.clock)
        attempts = EmbeddingAttempts(embedder, pace, self._patience, self._times)
        return EmbeddingService(embedder, attempts, self._cache, account, self._in_flight)
