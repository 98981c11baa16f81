"""Embedders that do as a test says, and time that passes only by sleeping (port Clock beside it)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from iscp.index.embedding.embedder_registry import CheckedEmbedder, TextsRefusedError, Vectors
from iscp.index.embedding.embedding_service import (
    EmbeddingAttempts,
    EmbeddingService,
    EmbeddingTimes,
    Patience,
    RequestPace,
    TextsInFlight,
    VectorCache,
)
from tests.fakes.clock import FakeClock

DIMENSION = 4


def vector_of(text: str) -> Vectors:
    """A vector that only this text has."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[: DIMENSION * 2], np.uint16).astype(np.float32)


@dataclass
class FakeEmbedder:
    """Keeps what it was given in `calls`. `faults` are raised by the next calls, and texts in `refuses` refuse theirs.

    `answers` makes an answer of another kind.
    """

    dimension: int = DIMENSION
    fingerprint: str = "fake/1"
    batch_max: int = 8
    calls: list[list[str]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    refuses: frozenset[str] = frozenset()
    answers: Callable[[Sequence[str]], object] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], /) -> Vectors:
        with self._lock:
            self.calls.append(list(texts))
            fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        if refused := self.refuses.intersection(texts):
            raise TextsRefusedError(f"{min(refused)!r} is not to my liking")
        if self.answers is not None:
            return self.answers(texts)  # type: ignore[return-value]
        return np.vstack([vector_of(text) for text in texts])

    @property
    def embedded(self) -> list[str]:
        return [text for call in self.calls for text in call]


@dataclass
class Bed:
    """A clock, on which sleeping is all that takes time, and what a service is made of."""

    clock: FakeClock = field(default_factory=FakeClock)
    slept: list[float] = field(default_factory=list)
    cache: VectorCache = field(default_factory=lambda: VectorCache(1_000_000))
    in_flight: TextsInFlight = field(default_factory=TextsInFlight)
    chance: float = 0.5

    @property
    def patience(self) -> Patience:
        return Patience(self.clock, self.sleep, lambda: self.chance)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def attempts(
        self, embedder: FakeEmbedder, per_s: float = 0.0, times: EmbeddingTimes | None = None
    ) -> EmbeddingAttempts:
        checked = CheckedEmbedder("fake", embedder)
        return EmbeddingAttempts(checked, RequestPace(per_s, self.clock), self.patience, times)

    def service(self, embedder: FakeEmbedder, account: str = "acme", per_s: float = 0.0) -> EmbeddingService:
        attempts = self.attempts(embedder, per_s)
        return EmbeddingService(CheckedEmbedder("fake", embedder), attempts, self.cache, account, self.in_flight)
