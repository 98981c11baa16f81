"""The texts that an embedder refuses are found with few requests, and the others get their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.index.embedding.embedder import Vectors
from iscp.index.embedding.refused_texts import PROBE_TEXT, embed_apart
from tests.fakes.embedders import FakeEmbedder, vector_of


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_every_text_has_a_vector_or_is_refused(bad: list[bool]) -> None:
    texts = [f"{'bad' if each else 'good'} {number}" for number, each in enumerate(bad)]
    embedder = FakeEmbedder(refuses=frozenset(text for text in texts if text.startswith("bad")))
    found, refused = embed_apart(embedder.embed, texts)
    rows = {start + row: vector for start, vectors in found for row, vector in enumerate(vectors)}
    assert sorted(refused) == [number for number, each in enumerate(bad) if each]
    assert sorted(rows) == [number for number, each in enumerate(bad) if not each]
    assert all((vector == vector_of(texts[number])).all() for number, vector in rows.items())
    assert all(texts[number] in said for number, said in refused.items())


def test_one_bad_text_of_many_takes_few_requests() -> None:
    texts = [f"text {number}" for number in range(64)]
    embedder = FakeEmbedder(refuses=frozenset({"text 37"}))
    embed_apart(embedder.embed, texts)
    assert len(embedder.calls) <= 2 * 6 + 2


def test_an_embedder_that_refuses_everything_is_found_out_soon() -> None:
    calls: list[Sequence[str]] = []

    def embed(texts: Sequence[str]) -> Vectors:
        calls.append(texts)
        return FakeEmbedder(refuses=frozenset(texts)).embed(texts)

    with pytest.raises(PermanentError, match="refuses every text: 'text' is not to my liking") as refused:
        embed_apart(embed, [f"text {number}" for number in range(64)])
    assert refused.value.code is ErrorCode.EMBEDDER_BROKEN
    assert calls[-1] == [PROBE_TEXT]
    assert len(calls) <= 8


def test_what_is_no_refusal_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        embed_apart(FakeEmbedder(faults=[ZeroDivisionError()]).embed, ["a", "b"])
