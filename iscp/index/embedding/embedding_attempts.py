"""Give an embedder batches of texts at its pace, and again where it fails for now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iscp.core.values.errors import TemporaryError
from iscp.core.values.untrusted_values import one_line
from iscp.index.embedding.checked_embedder import CheckedEmbedder
from iscp.index.embedding.embedder import EmbedderBusy, Vectors
from iscp.index.embedding.request_pace import RequestPace
from iscp.ports.system import Clock, Guard

log = logging.getLogger(__name__)

REST_S_MAX = 0.5
"""Seconds after which somebody who waits for an embedder sees that the work was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTimes:
    """A failing embedder is tried again by these times and counts."""

    attempts_max: int = 5
    """Attempts with one batch; then its error ends the call, and the job's backoff counts."""

    retry_for_s: float = 60.0
    """Seconds after the first failure of a batch within which another attempt has to begin; else its error ends the
    call.
    """

    pause_first_s: float = 0.5
    """Pause after the first failure, on average; it doubles with each."""

    pause_max_s: float = 15.0
    """Longest pause between attempts, unless the embedder itself requests a longer one."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Whoever waits has a clock, a sleep, and chance: numbers in [0, 1)."""

    clock: Clock
    sleep: Callable[[float], None]
    random: Callable[[], float]

    def rest(self, seconds: float, guard: Guard | None) -> None:
        """Wait; raises what `guard` raises as soon as the work was ended."""
        until_s = self.clock.monotonic_s() + seconds
        while (left_s := until_s - self.clock.monotonic_s()) > 0:
            if guard is not None:
                guard.check()
            self.sleep(min(left_s, REST_S_MAX))


class EmbeddingAttempts:
    """Makes attempts with batches on one embedder; any thread may call it."""

    def __init__(
        self, embedder: CheckedEmbedder, pace: RequestPace, patience: Patience, times: EmbeddingTimes | None = None
    ) -> None:
        self._embedder = embedder
        self._pace = pace
        self._patience = patience
        self._times = times or EmbeddingTimes()

    def embed(self, texts: Sequence[str], guard: Guard | None) -> Vectors:
        """Return the vectors of one batch. Raises the last TemporaryError when attempts or time are used up, and a
        PermanentError at once.
        """
        clock, until_s = self._patience.clock, 0.0
        for attempt in range(1, self._times.attempts_max + 1):
            self._patience.rest(self._pace.reserve(), guard)
            if guard is not None:
                guard.check()
            try:
                return self._embedder.embed(texts)
            except TemporaryError as error:
                until_s = until_s or clock.monotonic_s() + self._times.retry_for_s
                pause_s = self._pause_s(attempt, error)
                if attempt == self._times.attempts_max or clock.monotonic_s() + pause_s > until_s:
                    raise
                log.info(
                    "embedding.retried",
                    extra={
                        "embedder": self._embedder.name,
                        "attempt": attempt,
                        "pause_s": round(pause_s, 3),
                        "error": one_line(str(error)),
                    },
                )
            self._patience.rest(pause_s, guard)
        raise AssertionError("the last attempt returns or raises")

    def _pause_s(self, attempt: int, error: TemporaryError) -> float:
        """Half of the pause is by chance, so that those who failed together do not come back together."""
        backoff_s = min(self._times.pause_first_s * 2.0 ** (attempt - 1), self._times.pause_max_s)
        requested_s = error.retry_after_s if isinstance(error, EmbedderBusy) else 0.0
        return max(backoff_s * (0.5 + self._patience.random()), requested_s)
