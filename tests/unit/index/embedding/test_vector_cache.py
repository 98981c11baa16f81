"""The cache of vectors: apart by account, bounded, fair, and safe for threads."""

from __future__ import annotations

import random
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.embedding.embedder import text_hash
from iscp.index.embedding.vector_cache import ENTRY_BYTES, VectorCache
from tests.fakes.embedders import DIMENSION, vector_of

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
