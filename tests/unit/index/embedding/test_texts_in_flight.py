"""Calls that have the same new text at the same moment embed it once, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from iscp.core.values.errors import Canceled, PermanentError
from iscp.index.embedding.embedder import Vectors
from iscp.index.embedding.embedding_service import Embedded, EmbeddingService
from iscp.index.embedding.texts_in_flight import TextsInFlight
from iscp.index.embedding.vector_cache import VectorCache
from tests.fakes.embedders import Bed, FakeEmbedder, vector_of
from tests.fakes.guards import EndingGuard

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
