"""Tests where words are in many documents."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.search.document_words import CodedTexts, DocumentWords, having_any

WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "日", "日本", "é"]), max_size=6)
TEXTS = st.lists(st.one_of(st.none(), WORDS), max_size=12)
SOUGHT = ["a", "ab", "日"]


def stored(words: list[str] | None) -> str | None:
    return f" {' '.join(words)} " if words else None


@given(TEXTS, st.integers(0, 5))
def test_words_are_found_in_their_own_texts_alone(texts: list[list[str] | None], begin: int) -> None:
    array = pa.array(map(stored, texts), pa.string()).slice(min(begin, len(texts)))
    for sought in (SOUGHT, ["ba"], []):
        wanted = [any(word in (text or ()) for word in sought) for text in texts[min(begin, len(texts)) :]]
        assert having_any(array, sought).tolist() == wanted


@given(TEXTS)
def test_frequencies_lengths_and_places_are_those_of_the_words(texts: list[list[str] | None]) -> None:
    found = DocumentWords.of_texts(pa.array(map(stored, texts), pa.string()), SOUGHT)
    assert found.lengths.tolist() == [len(text or ()) for text in texts]
    for word in SOUGHT:
        assert found.frequencies(word).tolist() == [(text or []).count(word) for text in texts]
    for row, text in enumerate(texts):
        places = {word: [at for at, each in enumerate(text or ()) if each == word] for word in SOUGHT}
        assert dict(found.positions(row)) == {word: each for word, each in places.items() if each}


@given(TEXTS, st.integers(0, 12), st.integers(0, 12))
def test_numbers_of_words_find_what_their_texts_find(texts: list[list[str] | None], one: int, other: int) -> None:
    array = pa.array(map(stored, texts), pa.string())
    begin, end = sorted((min(one, len(texts)), min(other, len(texts))))
    wanted = DocumentWords.of_texts(array.slice(begin, end - begin), SOUGHT)
    found = CodedTexts(array).documents(begin, end, SOUGHT)
    assert found.lengths.tolist() == wanted.lengths.tolist()
    for word in SOUGHT:
        assert found.frequencies(word).tolist() == wanted.frequencies(word).tolist()
    for row in range(end - begin):
        assert found.positions(row) == wanted.positions(row)
