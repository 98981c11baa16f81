"""No text is embedded twice, and neither batches nor caches change a vector.

All accounts share an embedder's pace, and none its cache.

A batch is tried again for a bounded time, at the embedder's pace, and ends as soon as the work does.

Calls that have the same new text at the same moment embed it once, and none waits for ever.

The cache of vectors: apart by account, bounded, fair, and safe for threads.

Requests to one embedder are spread evenly, whoever makes them.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.embedding.embedder_registry import EmbedderBusy, EmbedderRegistry, Vectors, text_hash
from iscp.index.embedding.embedding_service import (
    BATCH_CHARS_MAX,
    ENTRY_BYTES,
    KNOWN_AT_ONCE,
    Embedded,
    EmbeddingCounts,
    EmbeddingService,
    EmbeddingServices,
    EmbeddingTimes,
    RequestPace,
    TextsInFlight,
    VectorCache,
)
from iscp.model.settings.embedder_config import CHARS_MOST, EmbedderConfig
from iscp.model.values.errors import Canceled, InvalidRequest, IscpError, PermanentError, TemporaryError, Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.embedders import DIMENSION, Bed, FakeEmbedder, vector_of
from tests.fakes.guards import EndingGuard

TEXTS = st.lists(st.sampled_from([f"text {number}" for number in range(12)]), max_size=30)


def expected(texts: Sequence[str]) -> Vectors:
    return np.array([vector_of(text) for text in texts], np.float32).reshape(len(texts), DIMENSION)


def assert_right(found: Embedded, texts: Sequence[str]) -> None:
    assert found.vectors.dtype == np.float32
    assert (found.vectors == expected(texts)).all()
    assert found.refused == {}


@given(st.lists(TEXTS, max_size=5), st.integers(1, 8), st.integers(0, 20), st.sets(st.integers(0, 11)))
def test_batches_caches_and_stored_vectors_change_no_vector(
    calls: list[list[str]], batch: int, room: int, stored: set[int]
) -> None:
    bed, embedder = Bed(cache=VectorCache(room * 500)), FakeEmbedder(batch_max=batch)
    service = bed.service(embedder)
    there = {text_hash(f"text {number}"): vector_of(f"text {number}") for number in stored}

    def known(hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        return {each: there[each] for each in hashes if each in there}

    for texts in calls:
        found = service.embed(texts, known=known)
        assert_right(found, texts)
        counts = found.counts
        assert counts.embedded + counts.from_cache + counts.from_known + counts.repeated == len(texts)
    assert all(0 < len(call) <= batch for call in embedder.calls)
    assert service.counts.embedded == len(embedder.embedded)
    assert service.counts.requests == len(embedder.calls)
    assert not {text_hash(text) for text in embedder.embedded} & set(there)


def test_the_same_texts_again_embed_nothing() -> None:
    bed, embedder, texts = Bed(), FakeEmbedder(), [f"text {number}" for number in range(20)]
    service = bed.service(embedder)
    service.embed(texts)
    again = service.embed([*reversed(texts), "new"])
    assert again.counts == EmbeddingCounts(embedded=1, from_cache=20, requests=1)
    assert sorted(embedder.embedded) == sorted([*texts, "new"])


def test_a_text_that_a_call_has_twice_is_embedded_once() -> None:
    found = Bed().service(FakeEmbedder()).embed(["a", "b", "a", "a"])
    assert_right(found, ["a", "b", "a", "a"])
    assert found.counts == EmbeddingCounts(embedded=2, repeated=2, requests=1)


def test_accounts_do_not_find_each_others_texts() -> None:
    bed, embedder = Bed(), FakeEmbedder()
    for account in ("acme", "beta"):
        assert bed.service(embedder, account).embed(["a"]).counts.embedded == 1
    assert bed.service(embedder, "acme").embed(["a"]).counts.from_cache == 1


def test_another_fingerprint_is_another_vector() -> None:
    bed = Bed()
    bed.service(FakeEmbedder()).embed(["a"])
    changed = FakeEmbedder(fingerprint="fake/2")
    assert bed.service(changed).embed(["a"]).counts.embedded == 1


def test_stored_vectors_are_sought_for_what_the_cache_does_not_have() -> None:
    bed, embedder, sought = Bed(), FakeEmbedder(), list[bytes]()
    service = bed.service(embedder)
    service.embed(["cached"])

    def known(hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        sought.extend(hashes)
        return {text_hash("stored"): vector_of("stored"), text_hash("of nobody"): vector_of("x")}

    found = service.embed(["cached", "stored", "new", "stored"], known=known)
    assert_right(found, ["cached", "stored", "new", "stored"])
    assert sought == [text_hash("stored"), text_hash("new")]
    assert found.counts == EmbeddingCounts(embedded=1, from_cache=1, from_known=1, repeated=1, requests=1)


@pytest.mark.parametrize(
    "damaged",
    [np.zeros(DIMENSION + 1, np.float32), np.zeros((1, DIMENSION), np.float32), np.full(DIMENSION, np.nan, np.float32)],
)
def test_a_stored_vector_that_cannot_be_one_is_made_again(damaged: Vectors) -> None:
    found = Bed().service(FakeEmbedder()).embed(["a"], known=lambda hashes: dict.fromkeys(hashes, damaged))
    assert_right(found, ["a"])
    assert found.counts.embedded == 1


def test_stored_vectors_are_sought_in_parts() -> None:
    sizes = list[int]()

    def known(hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        sizes.append(len(hashes))
        return {each: np.zeros(DIMENSION, np.float32) for each in hashes}

    texts = [str(number) for number in range(KNOWN_AT_ONCE + 1)]
    found = Bed().service(FakeEmbedder()).embed(texts, known=known)
    assert sizes == [KNOWN_AT_ONCE, 1]
    assert found.counts.from_known == len(texts)


def test_a_failure_midway_loses_no_vector_that_was_made() -> None:
    bed, texts = Bed(), [f"text {number}" for number in range(24)]
    embedder = FakeEmbedder(batch_max=8)
    failing = FakeEmbedder(batch_max=8, answers=lambda some: fail_from(some, embedder))
    service = bed.service(failing)
    with pytest.raises(TemporaryError, match="off"):
        service.embed(texts)
    assert service.counts.embedded == 16
    found = bed.service(embedder).embed(texts)
    assert_right(found, texts)
    assert found.counts == EmbeddingCounts(embedded=8, from_cache=16, requests=1)


def fail_from(texts: Sequence[str], embedder: FakeEmbedder) -> Vectors:
    if "text 16" in texts:
        raise Unavailable("off")
    return expected(texts)


def test_refused_texts_have_no_vector_and_all_others_do() -> None:
    bed, embedder = Bed(), FakeEmbedder(refuses=frozenset({"bad"}))
    service = bed.service(embedder)
    texts = ["good", "bad", "x" * (CHARS_MOST + 1), "fine", "bad", "\ud800", "good"]
    found = service.embed(texts)
    assert sorted(found.refused) == [1, 2, 4, 5]
    assert "not to my liking" in found.refused[1]
    assert found.refused[2] == f"has {CHARS_MOST + 1} characters, more than {CHARS_MOST}"
    assert found.refused[5] == "is no valid Unicode"
    assert (found.vectors[[0, 3, 6]] == expected(["good", "fine", "good"])).all()
    assert (found.vectors[[1, 2, 4, 5]] == 0.0).all()
    assert (found.counts.embedded, found.counts.repeated, found.counts.refused) == (2, 1, 4)


def test_what_is_no_text_is_refused_by_its_number() -> None:
    found = Bed().service(FakeEmbedder()).embed(["a", None, 7])  # type: ignore[list-item]
    assert dict(found.refused) == {1: "is None, and no text", 2: "is 7, and no text"}


def test_long_texts_are_not_embedded_at_once() -> None:
    embedder, long = FakeEmbedder(batch_max=8), "x" * (BATCH_CHARS_MAX // 2 - 1)
    Bed().service(embedder).embed([f"{number}{long}" for number in range(5)])
    assert [len(call) for call in embedder.calls] == [2, 2, 1]
    whole = "y" * (BATCH_CHARS_MAX + 1)
    Bed().service(embedder).embed(["a", whole, "b"])
    assert [len(call) for call in embedder.calls[3:]] == [1, 1, 1]


def test_no_texts_embed_nothing() -> None:
    found = Bed().service(FakeEmbedder()).embed([])
    assert found.vectors.shape == (0, DIMENSION)
    assert found.counts == EmbeddingCounts()


def test_work_that_was_ended_ends_between_batches() -> None:
    embedder = FakeEmbedder(batch_max=1)
    with pytest.raises(Canceled):
        Bed().service(embedder).embed(["a", "b", "c"], guard=EndingGuard(2, Canceled("stop")))
    assert len(embedder.calls) == 1


def test_a_service_says_what_has_to_be_stored_beside_its_vectors() -> None:
    service = Bed().service(FakeEmbedder())
    assert (service.dimension, service.fingerprint) == (DIMENSION, "fake/1")


def test_threads_get_right_vectors_and_every_text_is_counted() -> None:
    bed, embedder = Bed(), FakeEmbedder()
    service = bed.service(embedder)

    def work(offset: int) -> None:
        for start in range(offset, offset + 40):
            texts = [f"text {number % 50}" for number in range(start, start + 10)]
            assert_right(service.embed(texts), texts)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(0, 42, 7)))
    counts = service.counts
    assert counts.embedded + counts.from_cache == 6 * 40 * 10
    assert counts.embedded == len(embedder.embedded)


def test_the_hash_of_a_text_is_stored_and_never_changes() -> None:
    assert text_hash("größer").hex() == "45fbf6a67b5efa7dbcc0c0ccf6bdd7ce207300314c009282515896ea4cd7a4e6"


SLOW = EmbedderConfig(kind="hashed", dimension=8, requests_per_s=0.5)


def services(bed: Bed) -> EmbeddingServices:
    return EmbeddingServices(EmbedderRegistry(definitions={"slow": SLOW}), bed.cache, bed.patience)


def test_all_jobs_of_a_node_share_the_pace_of_an_embedder() -> None:
    bed = Bed()
    made = services(bed)
    for account in ("acme", "beta", "acme"):
        made.service("slow", account).embed([f"text of {account} at {bed.clock.monotonic_s()}"])
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(4.0)
    made.service("hashed", "acme").embed(["a"])
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(4.0), "another embedder has a pace of its own"


def test_jobs_of_an_account_share_what_was_embedded_and_accounts_do_not() -> None:
    made = services(Bed())
    first, second, other = (made.service("slow", account) for account in ("acme", "acme", "beta"))
    assert first.embed(["a"]).counts.embedded == 1
    assert second.embed(["a"]).counts.from_cache == 1
    assert other.embed(["a"]).counts.embedded == 1
    assert second.counts.embedded == 0, "counts are a service's own"


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not an embedder"):
        services(Bed()).service("nope", "acme")


TIMES = EmbeddingTimes(attempts_max=4, retry_for_s=60.0, pause_first_s=1.0, pause_max_s=3.0)


def test_a_temporary_error_is_tried_again_after_growing_pauses() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[Unavailable("off"), ValueError("v"), Unavailable("off")])
    (vector,) = bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert (vector == vector_of("a")).all()
    assert len(embedder.calls) == 4
    assert sum(bed.slept) == pytest.approx(1.0 + 2.0 + 3.0)


@pytest.mark.parametrize(("chance", "pause_s"), [(0.0, 0.5), (0.999, 1.499)])
def test_half_of_a_pause_is_by_chance(chance: float, pause_s: float) -> None:
    bed = Bed(chance=chance)
    bed.attempts(FakeEmbedder(faults=[Unavailable("off")]), times=TIMES).embed(["a"], None)
    assert sum(bed.slept) == pytest.approx(pause_s)


def test_attempts_are_bounded_and_the_last_error_is_reported() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[Unavailable(f"off {number}") for number in range(9)])
    with pytest.raises(IscpError, match="off 3"):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert len(embedder.calls) == 4


def test_an_embedder_that_says_when_is_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=7.0)])
    bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert sum(bed.slept) == pytest.approx(7.0)


def test_one_that_says_a_time_too_far_away_is_not_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=61.0)])
    with pytest.raises(EmbedderBusy):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert bed.slept == []


def test_the_time_counts_from_the_first_failure() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=40.0)] * 3)
    with pytest.raises(EmbedderBusy):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert len(embedder.calls) == 2


def test_a_permanent_error_is_not_tried_again() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[PermanentError("wrong model")])
    with pytest.raises(PermanentError, match="wrong model"):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert (len(embedder.calls), bed.slept) == (1, [])


def test_each_attempt_takes_its_place_in_the_pace() -> None:
    bed, embedder = Bed(chance=0.0), FakeEmbedder(faults=[Unavailable("off")])
    attempts = bed.attempts(embedder, per_s=0.1, times=TIMES)
    attempts.embed(["a"], None)
    attempts.embed(["b"], None)
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(20.0), "three requests, ten seconds apart"


def test_work_that_was_ended_is_not_begun() -> None:
    embedder = FakeEmbedder()
    with pytest.raises(Canceled):
        Bed().attempts(embedder).embed(["a"], EndingGuard(1, Canceled("stop")))
    assert embedder.calls == []


def test_work_that_was_ended_is_not_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=50.0)])
    with pytest.raises(Canceled):
        bed.attempts(embedder, times=TIMES).embed(["a"], EndingGuard(4, Canceled("stop")))
    assert sum(bed.slept) < 2.0


WAIT_S = 20.0


class Gate:
    """An embedder's answer that waits, the first time, until the test opens it; then it may fail."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()
        self.fault: Exception | None = None

    def __call__(self, texts: Sequence[str]) -> Vectors:
        first = not self.begun.is_set()
        self.begun.set()
        if first:
            assert self.opened.wait(WAIT_S)
            if self.fault is not None:
                raise self.fault
        return np.vstack([vector_of(text) for text in texts])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def gate(pool: ThreadPoolExecutor) -> Iterator[Gate]:
    """Whoever waits at its end goes on before the pool waits for them."""
    assert pool
    gate = Gate()
    yield gate
    gate.opened.set()


def begin(pool: ThreadPoolExecutor, service: EmbeddingService, gate: Gate, *texts: str) -> Future[Embedded]:
    """Have a call wait within its request."""
    begun = pool.submit(service.embed, texts)
    assert gate.begun.wait(WAIT_S)
    return begun


def until_called(embedder: FakeEmbedder, count: int) -> None:
    for _ in range(int(WAIT_S / 0.01)):
        if len(embedder.calls) >= count:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{embedder.calls}")


def test_what_another_call_embeds_is_waited_for(gate: Gate, pool: ThreadPoolExecutor) -> None:
    bed, embedder = Bed(), FakeEmbedder(answers=gate)
    first = begin(pool, bed.service(embedder), gate, "a", "b")
    second = pool.submit(bed.service(embedder).embed, ["b", "c"])
    until_called(embedder, 2)
    gate.opened.set()
    assert (first.result(WAIT_S).vectors == [vector_of("a"), vector_of("b")]).all()
    found = second.result(WAIT_S)
    assert (found.vectors == [vector_of("b"), vector_of("c")]).all()
    assert (found.counts.embedded, found.counts.from_cache) == (1, 1)
    assert embedder.calls == [["a", "b"], ["c"]]


def test_a_call_that_fails_leaves_its_texts_to_those_who_wait(gate: Gate, pool: ThreadPoolExecutor) -> None:
    bed, embedder = Bed(), FakeEmbedder(answers=gate)
    gate.fault = PermanentError("off")
    first = begin(pool, bed.service(embedder), gate, "a")
    second = pool.submit(bed.service(embedder).embed, ["a", "b"])
    until_called(embedder, 2)
    gate.opened.set()
    with pytest.raises(PermanentError):
        first.result(WAIT_S)
    assert (second.result(WAIT_S).vectors == [vector_of("a"), vector_of("b")]).all()
    assert embedder.calls == [["a"], ["b"], ["a"]]


def test_without_a_cache_both_embed(gate: Gate, pool: ThreadPoolExecutor) -> None:
    bed, embedder = Bed(cache=VectorCache(0)), FakeEmbedder(answers=gate)
    first = begin(pool, bed.service(embedder), gate, "a")
    second = pool.submit(bed.service(embedder).embed, ["a", "b"])
    until_called(embedder, 2)
    gate.opened.set()
    assert (first.result(WAIT_S).vectors == second.result(WAIT_S).vectors[:1]).all()


def test_what_another_call_has_embedded_meanwhile_is_not_embedded_again() -> None:
    """The other call comes to its end after this one has read the cache, and before it claims its texts."""
    bed, embedder = Bed(), FakeEmbedder()

    def known(_: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        bed.service(embedder).embed(["a"])
        return {}

    found = bed.service(embedder).embed(["a", "b"], known=known)
    assert (found.vectors == [vector_of("a"), vector_of("b")]).all()
    assert embedder.calls == [["a"], ["b"]]
    assert (found.counts.embedded, found.counts.from_cache) == (1, 1)


def test_accounts_do_not_wait_for_each_other(gate: Gate, pool: ThreadPoolExecutor) -> None:
    bed, embedder = Bed(), FakeEmbedder(answers=gate)
    begin(pool, bed.service(embedder, "acme"), gate, "a")
    assert bed.service(embedder, "beta").embed(["a"]).counts.embedded == 1


def test_whoever_waits_is_ended_with_the_work(gate: Gate, pool: ThreadPoolExecutor) -> None:
    bed, embedder = Bed(), FakeEmbedder(answers=gate)
    begin(pool, bed.service(embedder), gate, "a")
    with pytest.raises(Canceled):
        bed.service(embedder).embed(["a"], guard=EndingGuard(1, Canceled("stop")))
    assert embedder.calls == [["a"]]


def test_many_threads_embed_each_text_once(pool: ThreadPoolExecutor) -> None:
    """Each has its own service, as each job has, and begins with another text."""
    bed, embedder, texts = Bed(), FakeEmbedder(batch_max=3), [f"text {number}" for number in range(60)]

    def work(start: int) -> Embedded:
        turned = [*texts[start:], *texts[:start]]
        found = bed.service(embedder).embed(turned)
        assert (found.vectors == [vector_of(text) for text in turned]).all()
        return found

    found = list(pool.map(work, range(0, 40, 10)))
    assert sorted(embedder.embedded) == sorted(texts)
    assert sum(each.counts.embedded for each in found) == len(texts)


def test_claims_are_given_up_even_if_one_is_claimed_twice_in_a_request() -> None:
    flights, key = TextsInFlight(), ("acme", "f", b"a")
    mine, others = flights.claim([key, key])
    assert (mine, others) == ([key], set())
    _, others = flights.claim([key])
    (end,) = others
    flights.release(mine)
    assert end.is_set()
    assert flights.claim([key]) == ([key], set())


ONE = ENTRY_BYTES + 4 * DIMENSION


def put(cache: VectorCache, account: str, *texts: str, fingerprint: str = "f") -> None:
    cache.put(account, fingerprint, {text_hash(text): vector_of(text) for text in texts})


def has(cache: VectorCache, account: str, *texts: str, fingerprint: str = "f") -> list[str]:
    found = cache.get(account, fingerprint, map(text_hash, texts))
    for text in texts:
        if text_hash(text) in found:
            assert (found[text_hash(text)] == vector_of(text)).all()
    return [text for text in texts if text_hash(text) in found]


def test_what_was_put_is_found_by_its_account_and_fingerprint_alone() -> None:
    cache = VectorCache(100 * ONE)
    put(cache, "acme", "a", "b")
    assert has(cache, "acme", "a", "b", "c") == ["a", "b"]
    assert has(cache, "beta", "a", "b") == []
    assert has(cache, "acme", "a", fingerprint="g") == []


def test_what_was_used_last_stays() -> None:
    cache = VectorCache(3 * ONE)
    put(cache, "acme", "a", "b", "c")
    assert has(cache, "acme", "a") == ["a"]
    put(cache, "acme", "d")
    assert has(cache, "acme", "a", "b", "c", "d") == ["a", "c", "d"]


def test_an_account_displaces_its_own_and_not_those_of_one_that_holds_less() -> None:
    cache = VectorCache(10 * ONE)
    put(cache, "quiet", "q1", "q2", "q3")
    put(cache, "loud", *(f"l{number}" for number in range(1_000)))
    assert has(cache, "quiet", "q1", "q2", "q3") == ["q1", "q2", "q3"]
    assert has(cache, "loud", *(f"l{number}" for number in range(1_000))) == [f"l{n}" for n in range(993, 1_000)]


def test_an_account_that_held_all_makes_room_for_others() -> None:
    cache = VectorCache(10 * ONE)
    put(cache, "loud", *(f"l{number}" for number in range(10)))
    put(cache, "quiet", "q1", "q2")
    assert has(cache, "quiet", "q1", "q2") == ["q1", "q2"]
    assert has(cache, "loud", *(f"l{number}" for number in range(10))) == [f"l{number}" for number in range(2, 10)]


@pytest.mark.parametrize("bytes_max", [0, -1, ONE - 1])
def test_a_cache_without_room_finds_nothing(bytes_max: int) -> None:
    cache = VectorCache(bytes_max)
    put(cache, "acme", "a")
    assert has(cache, "acme", "a") == []
    assert cache.bytes_held == 0


def test_a_vector_that_is_put_again_takes_no_more_room() -> None:
    cache = VectorCache(10 * ONE)
    for _ in range(5):
        put(cache, "acme", "a")
    assert cache.bytes_held == ONE


def test_what_is_found_cannot_be_written_to() -> None:
    cache = VectorCache(10 * ONE)
    put(cache, "acme", "a")
    found = cache.get("acme", "f", [text_hash("a")])[text_hash("a")]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1.0


def test_what_was_put_is_a_copy() -> None:
    cache, vector = VectorCache(10 * ONE), np.array(vector_of("a"))
    cache.put("acme", "f", {text_hash("a"): vector})
    vector[:] = 0.0
    assert has(cache, "acme", "a") == ["a"]


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefghijkl")), max_size=60),
)
def test_one_account_sees_a_plain_lru(room: int, steps: list[tuple[bool, str]]) -> None:
    cache, model = VectorCache(room * ONE), OrderedDict[str, None]()
    for puts, text in steps:
        if puts:
            put(cache, "acme", text)
            model[text] = None
            model.move_to_end(text)
            while len(model) > room:
                model.popitem(last=False)
        elif has(cache, "acme", text):
            model.move_to_end(text)
        assert cache.bytes_held == len(model) * ONE
    assert has(cache, "acme", *"abcdefghijkl") == sorted(model)


def test_threads_see_right_vectors_and_the_bound_is_exact_in_the_end() -> None:
    cache, words = VectorCache(50 * ONE), [f"word {number}" for number in range(100)]

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(400):
            account, some = chance.choice(("acme", "beta", "gamma")), chance.sample(words, 5)
            put(cache, account, *some)
            has(cache, account, *some)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    left = sum(len(has(cache, account, *words)) for account in ("acme", "beta", "gamma"))
    assert cache.bytes_held == left * ONE
    assert left == 50


def test_requests_that_come_at_once_are_spread() -> None:
    pace = RequestPace(4.0, FakeClock())
    assert [pace.reserve() for _ in range(4)] == pytest.approx([0.0, 0.25, 0.5, 0.75])


def test_time_that_passed_unused_is_not_made_up_for() -> None:
    clock = FakeClock()
    pace = RequestPace(2.0, clock)
    pace.reserve()
    clock.advance(60.0)
    assert [pace.reserve() for _ in range(3)] == pytest.approx([0.0, 0.5, 1.0])


def test_without_a_limit_nobody_waits() -> None:
    pace = RequestPace(0.0, FakeClock())
    assert {pace.reserve() for _ in range(100)} == {0.0}


def test_no_two_threads_have_the_same_place() -> None:
    pace, places = RequestPace(1.0, FakeClock()), list[float]()
    threads = [threading.Thread(target=lambda: places.extend(pace.reserve() for _ in range(100))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(places) == pytest.approx(list(range(800)))
