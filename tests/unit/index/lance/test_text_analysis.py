"""Texts that are analysed together have the words that each has by itself."""

from __future__ import annotations

import random
from typing import Any

import lance
import pytest

from iscp.index.lance.analysis_options import analyser_of
from iscp.index.model.index_definition import Analysis, Tokenizer

PIECES = (
    "run",
    "Running",
    "3.14",
    "don't",
    "a.b",
    "-",
    ".",
    "数据库索引",
    "東京",
    "naïve",
    "e\u0301",
    "x" * 50,
    "the",
    "Straße",
    "\u0301a",
    "0",
)
BLANKS = (" ", "\n", ",", "\t", "\xa0", "\x0b", "\x1c", "\xad", "  ")


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("tokenizer", [Tokenizer.ICU, Tokenizer.SIMPLE, Tokenizer.WHITESPACE])
def test_texts_of_one_call_have_the_words_of_each_alone(tokenizer: Tokenizer, stops: bool) -> None:
    draw = random.Random(tokenizer.value)
    analysis = Analysis(tokenizer, "english", stem=stops, stop_words=stops)
    options = {**_OPTIONS, "stem": stops, "remove_stop_words": stops}
    texts = ["".join(draw.choice(PIECES) + draw.choice(BLANKS) for _ in range(draw.randrange(8))) for _ in range(200)]
    assert any(not text for text in texts)
    for text, words in zip(texts, analyser_of(analysis)(texts), strict=True):
        # Folding makes a blank of U+00A0, which the tokenizer `whitespace` does not take for one.
        tokens = lance.tokenize(text, base_tokenizer=tokenizer.value, **options)
        found = [word for each in tokens for word in each.text.split(" ") if word]
        assert words == (f" {' '.join(found)} " if found else None), text


_OPTIONS: dict[str, Any] = {
    "max_token_length": Analysis().max_token_length,
    "lower_case": True,
    "language": "English",
    "ascii_folding": True,
}
