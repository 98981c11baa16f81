"""Embeds the texts of jobs and searches: in batches, with further attempts, at a pace, and no text twice.

The parts: the pace of requests and the attempts with one embedder, the texts in flight, the cache of vectors, the
service that one account uses, and all services of a process.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from iscp.index.embedding.embedder_registry import (
    EMBED_FIELD,
    CheckedEmbedder,
    EmbedderBusy,
    EmbedderRegistry,
    Known,
    Vectors,
    embed_apart,
    text_hash,
)
from iscp.model.settings.embedder_config import CHARS_MOST
from iscp.model.values.errors import TemporaryError
from iscp.model.values.untrusted_values import one_line, shown
from iscp.ports.system import Clock, Failpoints, Guard

log = logging.getLogger(__name__)

# --- the pace of requests ---------------------------------------------------------------------------------------------


class RequestPace:
    """Spreads requests evenly: `per_s` of them in a second, or without a limit where it is 0. Thread-safe.

    All jobs and searches of a node share the pace of requests to one embedder.
    """

    def __init__(self, per_s: float, clock: Clock) -> None:
        self._interval_s = 1.0 / per_s if per_s > 0 else 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_s = clock.monotonic_s()

    def reserve(self) -> float:
        """Take the next place, and return the seconds to wait for it."""
        if not self._interval_s:
            return 0.0
        with self._lock:
            now_s = self._clock.monotonic_s()
            at_s = max(self._free_at_s, now_s)
            self._free_at_s = at_s + self._interval_s
        return at_s - now_s


# --- attempts ---------------------------------------------------------------------------------------------------------
# An embedder gets batches of texts at its pace, and further attempts where it fails for now.

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


# --- texts in flight --------------------------------------------------------------------------------------------------

TextKey = tuple[str, str, bytes]
"""An account, the fingerprint of an embedder, and the hash of a text."""


class TextsInFlight:
    """Somebody claims texts for the time of one request. Whoever finds them claimed may wait for the end of it.

    So two jobs with the same new text do not both embed it. Nobody waits while holding claims, so none wait for each
    other in a circle. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[TextKey, threading.Event] = {}

    def claim(self, keys: Iterable[TextKey]) -> tuple[list[TextKey], set[threading.Event]]:
        """Claim those that nobody has, and return them, with an event for each request that has others.

        What is claimed has to be released, however the request ends.
        """
        end, mine, others = threading.Event(), list[TextKey](), set[threading.Event]()
        with self._lock:
            for key in keys:
                if (known := self._ends.get(key)) is not None:
                    others.add(known)
                else:
                    self._ends[key] = end
                    mine.append(key)
        return mine, others - {end}

    def release(self, keys: Iterable[TextKey]) -> None:
        """Give up what `claim` has returned; those who wait for it go on."""
        with self._lock:
            ends = {self._ends.pop(key) for key in keys}
        for end in ends:
            end.set()


# --- the cache of vectors ---------------------------------------------------------------------------------------------

ENTRY_BYTES = 400
"""Bytes of memory that an entry of the cache is counted with besides its numbers; they are an estimate."""

EVICTED_AT_ONCE = 64
"""Entries that the greatest account loses at a time, before the greatest is sought again."""

VectorKey = tuple[str, bytes]


class VectorCache:
    """Holds vectors by account, fingerprint of the embedder and hash of the text. Any thread may call all methods.

    An account's texts are found by that account alone: nobody learns by the time of an answer which texts others have.
    The account that holds the most loses its oldest vectors first, so that no account can displace the vectors of
    others as long as these hold less than it (max-min fairness).

    `bytes_max` is for all accounts together; with 0 nothing is stored. `bytes_held` are counted now.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._accounts: dict[str, OrderedDict[VectorKey, bytes]] = {}
        self._held: dict[str, int] = {}
        self.bytes_held = 0

    def get(self, account: str, fingerprint: str, hashes: Iterable[bytes]) -> dict[bytes, Vectors]:
        """Return the vectors that are there, by hash; they become the account's newest. They cannot be written to."""
        found: dict[bytes, Vectors] = {}
        with self._lock:
            entries = self._accounts.get(account)
            if entries is None:
                return found
            for each in hashes:
                key = (fingerprint, each)
                if (stored := entries.get(key)) is not None:
                    entries.move_to_end(key)
                    found[each] = np.frombuffer(stored, np.float32)
        return found

    def put(self, account: str, fingerprint: str, vectors: Mapping[bytes, Vectors]) -> None:
        """Store vectors by hash, in place of older ones; those that are too large for the whole cache are left out."""
        if not vectors or self._bytes_max <= 0:
            return
        with self._lock:
            entries = self._accounts.setdefault(account, OrderedDict())
            for each, vector in vectors.items():
                self._replace(account, entries, (fingerprint, each), vector.astype(np.float32).tobytes())
                if self.bytes_held > self._bytes_max:
                    self._evict()

    def _replace(self, account: str, entries: OrderedDict[VectorKey, bytes], key: VectorKey, content: bytes) -> None:
        more = len(content) + ENTRY_BYTES
        if (old := entries.pop(key, None)) is not None:
            more -= len(old) + ENTRY_BYTES
        entries[key] = content
        self._held[account] = self._held.get(account, 0) + more
        self.bytes_held += more

    def _evict(self) -> None:
        while self.bytes_held > self._bytes_max:
            greatest = max(self._held, key=self._held.__getitem__)
            entries = self._accounts[greatest]
            for _ in range(EVICTED_AT_ONCE):
                if self.bytes_held <= self._bytes_max or not entries:
                    break
                _, content = entries.popitem(last=False)
                self._held[greatest] -= len(content) + ENTRY_BYTES
                self.bytes_held -= len(content) + ENTRY_BYTES
            if not entries:
                # An account without entries costs nothing; `put` may be about to fill it again.
                self._held[greatest] = 0


# --- the service of one account ---------------------------------------------------------------------------------------

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
    """Jobs and searches of one account use an embedder by a service. Thread-safe.

    A vector is searched by the embedder's fingerprint and the text's hash: in the cache, then wherever the caller has
    stored vectors (`known`). Only texts without a vector in either are embedded. A call that fails midway has put into
    the cache the vectors that it had until then, so that the next attempt goes on from there as far as the cache
    reaches.
    """

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


# --- the services of a process ----------------------------------------------------------------------------------------


class EmbeddingServices:
    """Makes services by embedder and account. Thread-safe.

    Jobs and searches of a node or a program share one cache, and one pace for each embedder.
    """

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


@dataclass(frozen=True, slots=True)
class IndexServices:
    """The embedders that jobs may name, the clock of maintenance, and where tests make it die.

    A process has these services for all its indexes. They are loaded without Lance, which only a process with an index
    needs. `awaited`: runs wait for the maintenance that is due after their commits, as nobody else does it. `closing`
    ends what is at work, before the process ends.
    """

    embeddings: EmbeddingServices
    clock: Clock
    failpoints: Failpoints
    awaited: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)
