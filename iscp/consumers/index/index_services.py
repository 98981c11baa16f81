"""The services that a process has for all its indexes; loaded without Lance, which only one with an index needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from iscp.index.embedding.embedding_service import EmbeddingServices
from iscp.ports.system import Clock, Failpoints


@dataclass(frozen=True, slots=True)
class IndexServices:
    """The embedders that jobs may name, the clock of maintenance, and where tests make it die.

    `awaited`: runs wait for the maintenance that is due after their commits, as nobody else does it. `closing` ends
    what is at work, before the process ends.
    """

    embeddings: EmbeddingServices
    clock: Clock
    failpoints: Failpoints
    awaited: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)
