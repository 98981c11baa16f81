"""Hashed n-grams: the same everywhere and beside whatever other texts, near for texts that share runs."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.embedding.hashed_embedder import HASHED_DIMENSION, HashedEmbedder
from iscp.model.settings.embedder_config import EmbedderConfig

HASHED = HashedEmbedder(EmbedderConfig(kind="hashed"))
WORDS = st.text(max_size=40)


def nearness(one: str, other: str) -> float:
    first, second = HASHED.embed([one, other])
    return float(first @ second)


def test_the_vectors_are_those_that_they_always_were() -> None:
    """A change of these needs another FORMAT: vectors are stored."""
    small = HashedEmbedder(EmbedderConfig(kind="hashed", dimension=8))
    (vector,) = small.embed(["Delta Lake"])
    assert [round(float(each), 4) for each in vector] == EXPECTED
    assert small.fingerprint == f"hashed/1/8/20000/unicode-{unicodedata.unidata_version}"


EXPECTED = [0.0, 0.2887, 0.0, -0.5774, 0.2887, 0.2887, 0.5774, -0.2887]


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_a_vector_does_not_depend_on_the_texts_beside_it(texts: list[str]) -> None:
    together = HASHED.embed(texts)
    assert together.shape == (len(texts), HASHED_DIMENSION)
    assert together.dtype == np.float32
    assert (together == np.vstack([HASHED.embed([text]) for text in texts])).all()


@given(WORDS)
def test_every_vector_has_the_length_one(text: str) -> None:
    assert np.linalg.norm(HASHED.embed([text])[0]) == pytest.approx(1.0, abs=1e-5)


def test_no_texts_have_no_vectors() -> None:
    assert HASHED.embed([]).shape == (0, HASHED_DIMENSION)


def test_texts_that_share_runs_are_near() -> None:
    assert nearness("the quick brown fox", "the quick brown foxes") > 0.7
    assert nearness("the quick brown fox", "stock prices fell") < 0.3


def test_case_and_forms_of_unicode_are_not_distinguished() -> None:
    assert nearness("Größe", "GRO\u0308SSE") == pytest.approx(1.0, abs=1e-5)


def test_a_small_dimension_is_no_fault_where_runs_cancel_each_other() -> None:
    tiny = HashedEmbedder(EmbedderConfig(kind="hashed", dimension=1))
    vectors = tiny.embed([f"text {number}" for number in range(300)])
    assert (np.abs(vectors) == 1.0).all()


def test_only_the_first_characters_count() -> None:
    cut = HashedEmbedder(EmbedderConfig(kind="hashed", chars_max=10))
    assert (cut.embed(["a" * 10 + "b" * 50]) == cut.embed(["a" * 10])).all()
    assert (cut.embed(["\ufdfa" * 10]) == cut.embed([unicodedata.normalize("NFKC", "\ufdfa" * 10)])).all(), (
        "also where a character stands for eighteen"
    )


def test_options_are_in_the_fingerprint() -> None:
    made = [HashedEmbedder(EmbedderConfig(kind="hashed", dimension=d, chars_max=c)) for d in (0, 8) for c in (0, 9)]
    assert len({each.fingerprint for each in made}) == 4
