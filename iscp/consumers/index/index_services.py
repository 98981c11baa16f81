"""The services that a process has for all its indexes; loaded without Lance, which only one with an index needs."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.index.embedding.embedding_services import EmbeddingServices
from iscp.ports.system import Clock, Failpoints


@dataclass(frozen=True, slots=True)
class IndexServices:
    """The embedders that jobs may name, the clock of maintenance, and where tests make it die.

    `awaited`: the process does not end before the maintenance that is due after its commits, as nobody else does it.
    """

    embeddings: EmbeddingServices
    clock: Clock
    failpoints: Failpoints
    awaited: bool = False
