"""Texts that are analysed together have the words that each has by itself."""

from __future__ import annotations

import random
import re
import sys
from typing import Any
from unicodedata import normalize

import lance
import pytest

from iscp.index.lance import text_analysis
from iscp.index.lance.index_columns import analyser_of
from iscp.index.model.highlighting import fold
from iscp.index.model.index_definition import Analysis, Tokenizer
from iscp.model.values.errors import InvalidRequest
from tests.fakes.heartbeat import Heartbeat
from tests.selection import in_full

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
        tokens = lance.tokenize(fold(text), base_tokenizer=tokenizer.value, **options)
        found = [word for each in tokens if (word := re.sub("[^\\S\x1c-\x1f]", "", each.text))]
        assert words == (f" {' '.join(found)} " if found else None), text


_OPTIONS: dict[str, Any] = {
    "max_token_length": Analysis().max_token_length,
    "lower_case": True,
    "language": "English",
    "ascii_folding": True,
}


@pytest.mark.parametrize("tokenizer", [Tokenizer.ICU, Tokenizer.SIMPLE, Tokenizer.WHITESPACE])
@pytest.mark.parametrize("end", [" ", "\n", "\u3002", "\u3000", ". "])
def test_a_long_text_has_the_words_of_its_whole(tokenizer: Tokenizer, end: str) -> None:
    draw = random.Random(f"{tokenizer}{end}")
    options = {**_OPTIONS, "stem": False, "remove_stop_words": False}
    text = ""
    while len(text) < 2.5 * text_analysis.PART_CHARS_MAX:
        text += "".join(draw.choices(PIECES, k=3)) + end
    (words,) = analyser_of(Analysis(tokenizer))([text])
    tokens = lance.tokenize(fold(text), base_tokenizer=tokenizer.value, **options)
    found = [word for each in tokens for word in ("".join(each.text.split()),) if word]
    assert words == (f" {' '.join(found)} " if found else None)


def test_other_threads_go_on_while_a_long_text_is_analysed() -> None:
    """Lance takes the square of the length of a text without blanks, and keeps Python's lock."""
    draw = random.Random(1)
    text = "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(200_000))
    with Heartbeat() as beat:
        (words,) = analyser_of(Analysis())([text])
    assert words is not None
    assert beat.longest_s < beat.took_s / 2


def test_n_grams_are_those_of_lance() -> None:
    draw = random.Random(5)
    alphabet = (
        "ab \n\t.\xc9\xdf\u03a3\u03c2\u0130\u0131\ufb01\ufdfa\u4e2d\U0001f600e\u0301\u200b\u3000\u01c4\xbd\xd8AZ09_"
    )
    for _ in range(500):
        least = draw.randrange(1, 5)
        analysis = Analysis(
            Tokenizer.NGRAM,
            lower_case=draw.random() < 0.7,
            ascii_folding=draw.random() < 0.7,
            max_token_length=draw.choice((2, 3, 5, 8, 40)),
            min_ngram=least,
            max_ngram=least + draw.randrange(4),
            prefix_only=draw.random() < 0.2,
            version=1,
        )
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(14)))
        tokens = lance.tokenize(
            text,
            base_tokenizer="ngram",
            max_token_length=analysis.max_token_length,
            lower_case=analysis.lower_case,
            ascii_folding=analysis.ascii_folding,
            stem=False,
            remove_stop_words=False,
            min_ngram_length=analysis.min_ngram,
            max_ngram_length=analysis.max_ngram,
            prefix_only=analysis.prefix_only,
        )
        found = [word for word in ("".join(each.text.split()) for each in tokens) if word]
        assert analyser_of(analysis)([text]) == [f" {' '.join(found)} " if found else None], (text, analysis)


def test_n_grams_of_long_texts_hold_nobody_up_and_are_bounded() -> None:
    analysis = Analysis(Tokenizer.NGRAM, min_ngram=2, max_ngram=8)
    most = text_analysis.GRAMS_MAX // 7
    with Heartbeat() as beat:
        (words,) = analyser_of(analysis)(["abcdefg " * (most // 8)])
    assert words is not None
    assert beat.longest_s < max(0.5, beat.took_s / 2)
    with pytest.raises(InvalidRequest, match="n-grams"):
        analyser_of(analysis)(["x" * (most + 10)])


@pytest.mark.parametrize("step", in_full([101, 1]))
@pytest.mark.parametrize("tokenizer", [Tokenizer.ICU, Tokenizer.SIMPLE, Tokenizer.WHITESPACE])
def test_no_character_spoils_the_words_beside_it(tokenizer: Tokenizer, step: int) -> None:
    blanks = ["\xa0", "\u202f", "\u3000", "\ufdfa", "\ufdfb", "\xa8", "\xaf", "\u02d8", "\u1fbd", "\u2017", "\ufe49"]
    drawn = [chr(each) for each in range(0, sys.maxunicode + 1, step) if not 0xD800 <= each < 0xE000]
    analyse = analyser_of(Analysis(tokenizer, ascii_folding=False))
    found = analyse([f"vor {each} nach" for each in (*blanks, *drawn)])
    for character, words in zip((*blanks, *drawn), found, strict=True):
        assert words is not None, ascii(character)
        listed = words.split(" ")[1:-1]
        assert (listed[0], listed[-1]) == ("vor", "nach"), ascii(character)
        assert all(each and not re.search("[^\\S\x1c-\x1f]", each) for each in listed), ascii(character)
    joined = analyse([f"vor{each} nach" for each in blanks])
    assert all(words is not None and words.split(" ")[-2] == "nach" and "  " not in words for words in joined)


@pytest.mark.parametrize("tokenizer", list(Tokenizer))
def test_all_forms_of_a_text_have_its_words(tokenizer: Tokenizer) -> None:
    analyse = analyser_of(Analysis(tokenizer, ascii_folding=False, positions=tokenizer is not Tokenizer.NGRAM))
    texts = [
        "caf\xe9 cr\xe8me",
        "\u30b5\u30fc\u30d0\u30fc",
        "\ud55c\uad6d\uc5b4",
        "\u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2",
        "\u0130stanbul",
        "stra\xdfe",
    ]
    for text in texts:
        forms = [normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
        forms += [text.upper(), text.lower(), text.casefold()]
        assert len(set(analyse(forms))) == 1, ascii(text)
    assert analyse(["\uff7b\uff70\uff8a\uff9e\uff70"]) == analyse([texts[1]])


def test_an_earlier_analysis_leaves_texts_as_they_are() -> None:
    earlier = analyser_of(Analysis(ascii_folding=False, version=1))
    assert earlier(["e\u0301"]) != earlier(["\xe9"])
