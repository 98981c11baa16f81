"""Embed texts for jobs and searches: in batches, with attempts, at a pace, and none twice.

A vector is looked up by the embedder's fingerprint and the text's hash: in the cache, then wherever the caller has
stored vectors (`known`). Only what is nowhere is embedded. A call that fails midway has put into the cache what it has
embedded, so that the next attempt goes on from there as far as the cache reaches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from iscp.core.settings.embedder_faults import CHARS_MOST
from iscp.core.values.untrusted_values import shown
from iscp.index.embedding.checked_embedder import CheckedEmbedder
from iscp.index.embedding.embedder import Known, Vectors, text_hash
from iscp.index.embedding.embedding_attempts import REST_S_MAX, EmbeddingAttempts
from iscp.index.embedding.refused_texts import embed_apart
from iscp.index.embedding.texts_in_flight import TextsInFlight
from iscp.index.embedding.vector_cache import VectorCache
from iscp.ports.system import Guard

BATCH_CHARS_MAX = 500_000
"""Characters of the texts that are embedded at once; further texts go into the next batch. One text may have more."""

IN_FLIGHT_WAIT_S = 60.0
"""Seconds for which a call waits for each request of others that has the same text; then it embeds the text itself."""

KNOWN_AT_ONCE = 10_000
"""Hashes with which `known` is called at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCounts:
    """Texts that a service was given are counted by where their vectors came from, each once.

    `repeated` are texts that a call has more than once, beyond the first. `requests` are batches that the embedder has
    answered.
    """

    embedded: int = 0
    from_cache: int = 0
    from_known: int = 0
    repeated: int = 0
    refused: int = 0
    requests: int = 0

    def __add__(self, other: EmbeddingCounts) -> EmbeddingCounts:
        return EmbeddingCounts(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True)
class Embedded:
    """The answer to a call has a row for each text in order. Rows of texts in `refused`, which has what is wrong by the
    number of the text, are zeros.
    """

    vectors: Vectors
    refused: Mapping[int, str]
    counts: EmbeddingCounts


class EmbeddingService:
    """Jobs and searches of one account use an embedder by a service. Thread-safe."""

    def __init__(
        self,
        embedder: CheckedEmbedder,
        attempts: EmbeddingAttempts,
        cache: VectorCache,
        account: str,
        in_flight: TextsInFlight | None = None,
    ) -> None:
        self._embedder = embedder
        self._in_flight = in_flight or TextsInFlight()
        self._attempts = attempts
        self._cache = cache
        self._account = account
        self._lock = threading.Lock()
        self._counts = EmbeddingCounts()

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def fingerprint(self) -> str:
        """Return the text that has to be stored beside vectors: those of another fingerprint do not compare."""
        return self._embedder.fingerprint

    @property
    def counts(self) -> EmbeddingCounts:
        """Return the counts of all calls that have returned, and of what calls that failed had embedded."""
        return self._counts

    def embed(self, texts: Sequence[str], *, known: Known | None = None, guard: Guard | None = None) -> Embedded:
        """Return the vectors of `texts`.

        `known` gives vectors of this fingerprint that are stored already; those of a wrong shape or with numbers that
        are not finite are embedded again. Raises TemporaryError where the embedder fails for longer than it is tried
        again, PermanentError where a person has to act, and what `guard` and `known` raise.
        """
        call = _Call(texts, self._embedder.dimension)
        try:
            self._take_cached(call, call.missing())
            if known is not None:
                call.from_known = self._take_known(call, known)
            others = set[threading.Event]()
            for batch in call.batches(texts, self._embedder.batch):
                others |= self._embed_unclaimed(call, batch, guard)
            if others:
                _wait(others, guard)
                self._take_cached(call, call.missing())
                # Whoever had them failed, or the cache is too small: nobody is waited for twice.
                for batch in call.batches(texts, self._embedder.batch):
                    self._embed(call, batch, guard)
        finally:
            with self._lock:
                self._counts += call.counts()
        return call.answer()

    def _take_cached(self, call: _Call, hashes: Iterable[bytes]) -> None:
        call.from_cache += call.take(self._cache.get(self._account, self._embedder.fingerprint, hashes))

    def _take_known(self, call: _Call, known: Known) -> int:
        count, missing = 0, call.missing()
        for start in range(0, len(missing), KNOWN_AT_ONCE):
            found = known(missing[start : start + KNOWN_AT_ONCE])
            fitting = {each: np.asarray(vector, np.float32) for each, vector in found.items()}
            count += call.take({each: vector for each, vector in fitting.items() if self._fits(vector)})
        return count

    def _fits(self, vector: Vectors) -> bool:
        return vector.shape == (self._embedder.dimension,) and bool(np.isfinite(vector).all())

    def _embed_unclaimed(self, call: _Call, batch: Mapping[bytes, str], guard: Guard | None) -> set[threading.Event]:
        """Embed the texts that no other call embeds now, and return the ends of the requests with the others."""
        mine, others = self._in_flight.claim((self._account, self._embedder.fingerprint, each) for each in batch)
        try:
            # Another call may have come to its end since the cache was read.
            self._take_cached(call, [each for _, _, each in mine])
            left = call.still({each: batch[each] for _, _, each in mine})
            if left:
                self._embed(call, left, guard)
        finally:
            self._in_flight.release(mine)
        return others

    def _embed(self, call: _Call, batch: Mapping[bytes, str], guard: Guard | None) -> None:
        hashes, texts = list(batch), list(batch.values())

        def request(some: Sequence[str]) -> Vectors:
            answer = self._attempts.embed(some, guard)
            call.requests += 1
            return answer

        found, refused = embed_apart(request, texts)
        for start, vectors in found:
            rows = dict(zip(hashes[start : start + len(vectors)], vectors, strict=True))
            self._cache.put(self._account, self._embedder.fingerprint, rows)
            call.embedded += call.take(rows)
        call.refuse({hashes[number]: said for number, said in refused.items()})


class _Call:
    """One call knows which hash is in which rows, and what is still missing."""

    def __init__(self, texts: Sequence[str], dimension: int) -> None:
        self.from_cache = self.from_known = self.embedded = self.requests = 0
        self._refused: dict[int, str] = {}
        self._numbers: dict[bytes, list[int]] = {}
        for number, text in enumerate(texts):
            if fault := _fault(text):
                self._refused[number] = fault
            else:
                self._numbers.setdefault(text_hash(text), []).append(number)
        self._missing = dict.fromkeys(self._numbers)
        self._vectors = np.zeros((len(texts), dimension), np.float32)
        self._given = 0

    def missing(self) -> Sequence[bytes]:
        """Return the hashes of texts without a vector, in the order of the texts."""
        return list(self._missing)

    def take(self, found: Mapping[bytes, Vectors]) -> int:
        """Take the vectors of texts that are missing, and return how many these are."""
        count = 0
        for each, vector in found.items():
            if each in self._missing:
                del self._missing[each]
                self._vectors[self._numbers[each]] = vector
                self._given += len(self._numbers[each])
                count += 1
        return count

    def still(self, batch: Mapping[bytes, str]) -> Mapping[bytes, str]:
        """Return the part of a batch that has no vector yet."""
        return {each: text for each, text in batch.items() if each in self._missing}

    def refuse(self, refused: Mapping[bytes, str]) -> None:
        """Note what is said of texts that are not embedded."""
        for each, said in refused.items():
            del self._missing[each]
            self._refused.update(dict.fromkeys(self._numbers[each], said))

    def batches(self, texts: Sequence[str], texts_max: int) -> Iterator[Mapping[bytes, str]]:
        """Yield the texts without a vector, by hash, so many at once and with bounded characters."""
        batch: dict[bytes, str] = {}
        chars = 0
        for each in self.missing():
            text = texts[self._numbers[each][0]]
            if batch and (len(batch) == texts_max or chars + len(text) > BATCH_CHARS_MAX):
                yield batch
                batch, chars = {}, 0
            batch[each] = text
            chars += len(text)
        if batch:
            yield batch

    def counts(self) -> EmbeddingCounts:
        first = self.from_cache + self.from_known + self.embedded
        return EmbeddingCounts(
            embedded=self.embedded,
            from_cache=self.from_cache,
            from_known=self.from_known,
            repeated=self._given - first,
            refused=len(self._refused),
            requests=self.requests,
        )

    def answer(self) -> Embedded:
        return Embedded(self._vectors, dict(sorted(self._refused.items())), self.counts())


def _wait(ends: Iterable[threading.Event], guard: Guard | None) -> None:
    for end in ends:
        for _ in range(int(IN_FLIGHT_WAIT_S / REST_S_MAX)):
            if guard is not None:
                guard.check()
            if end.wait(REST_S_MAX):
                break


def _fault(text: object) -> str:
    """Return what is wrong with a text, or nothing."""
    if not isinstance(text, str):
        return f"is {shown(text)}, and no text"
    if len(text) > CHARS_MOST:
        return f"has {len(text)} characters, more than {CHARS_MOST}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is no valid Unicode"
    return ""
