"""Compose what a process has for its indexes."""

from __future__ import annotations

from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.bootstrap.embedding_parts import default_embeddings, embedding_services
from iscp.consumers.index.index_services import IndexServices
from iscp.core.settings.config import NodeConfig
from iscp.ports.system import Clock, Failpoints


def index_services(config: NodeConfig, clock: Clock, failpoints: Failpoints, *, awaited: bool = False) -> IndexServices:
    """Return what the indexes of a process share. `awaited` as in IndexServices."""
    return IndexServices(embedding_services(config, clock), clock, failpoints, awaited)


def default_index_services() -> IndexServices:
    """Return the same for a program without settings."""
    return IndexServices(default_embeddings(), SystemClock(), EnvironmentFailpoints({}))
