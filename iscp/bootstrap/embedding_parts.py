"""Compose the embedders of a node."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator

from iscp.adapters.system.clock import SystemClock
from iscp.core.settings.config import NodeConfig
from iscp.core.settings.embedder_config import EmbeddingConfig
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.setting_faults import SettingFault
from iscp.index.embedding.embedder_registry import EmbedderRegistry
from iscp.index.embedding.embedding_attempts import Patience
from iscp.index.embedding.embedding_services import EmbeddingServices
from iscp.index.embedding.vector_cache import VectorCache
from iscp.ports.system import Clock

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
