"""No text is embedded twice, and neither batches nor caches change a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.settings.embedder_faults import CHARS_MOST
from iscp.core.values.errors import Canceled, TemporaryError, Unavailable
from iscp.index.embedding.embedder import Vectors, text_hash
from iscp.index.embedding.embedding_service import (
    BATCH_CHARS_MAX,
    KNOWN_AT_ONCE,
    Embedded,
    EmbeddingCounts,
)
from iscp.index.embedding.vector_cache import VectorCache
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
