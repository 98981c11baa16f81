"""A text and a query meet in whatever form each of them is, with the same scores, and highlights lie in the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow as pa
import pytest

import iscp
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import IndexDefinition
from tests.integration.index.search.small_index import SmallIndex

TEXTS = (
    "Bonjour\u202f! Le caf\xe9 est \xe0 c\xf4t\xe9",
    "\u30b5\u30fc\u30d0\u30fc \u306e",
    "\ud55c\uad6d \uc5b4",
    "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u03ba\u03b1\u03af",
    "\u0130stanbul stra\xdfe",
    "\ufb01n \u2460 \u33a5",
)
FIELDS = [pa.field("body", pa.string())]


def forms(text: str) -> list[str]:
    normal = (normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    return list(dict.fromkeys((text, *normal, text.upper(), text.lower(), text.casefold())))


def index_of(
    place: Path,
    texts: list[str],
    parse: Callable[[str, Mapping[str, Any]], IndexDefinition] = parse_definition,
    **options: object,
) -> SmallIndex:
    index = SmallIndex(place, "fulltext", {"columns": "body", "stored": "body", **options}, FIELDS, parse=parse)
    index.commit([{"id": number, "body": text} for number, text in enumerate(texts)])
    return index


@pytest.mark.parametrize("options", [{"ascii_folding": False}, {"tokenizer": "ngram", "ascii_folding": False}])
def test_each_form_finds_all_forms_with_the_same_scores(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [(number, form) for number, text in enumerate(TEXTS) for form in forms(text)]
    index = index_of(tmp_path / "i", [form for _, form in rows], **options)
    for number, text in enumerate(TEXTS):
        wanted = {at for at, (source, _) in enumerate(rows) if source == number}
        for form in forms(text):
            hits = iscp.search(index.uri, " ".join(form.replace("!", "").split()), k=100, highlight=True).hits
            best = [hit for hit in hits if hit.score == hits[0].score]
            assert {hit.key["id"] for hit in best} == wanted, ascii(form)
            for hit in best:
                assert hit.highlights or "tokenizer" in options, "n-grams across blanks are in no text"
                fragments = [each for some in hit.highlights.values() for each in some]
                source = rows[hit.key["id"]][1]
                for fragment in fragments:
                    assert fragment.replace("<em>", "").replace("</em>", "") in source, ascii(fragment)


def test_phrases_prefixes_and_fuzzy_words_are_folded_too(tmp_path: Path) -> None:
    index = index_of(
        tmp_path / "i", ["Bonjour\u202f! Le cafe\u0301", "bonjour le CAF\xc9", "other"], ascii_folding=False
    )
    for query in (
        '"bonjour le"',
        '"le CAF\xc9"',
        "caf\xe9",
        "cafe\u0301",
        "CAF*",
        "cafe\u0301~1",
        "caf\xe8~1",
        "body:CAFE\u0301",
    ):
        assert {hit.key["id"] for hit in iscp.search(index.uri, query).hits} == {0, 1}, ascii(query)


def test_a_match_within_an_expanded_character_marks_that_character(tmp_path: Path) -> None:
    index = index_of(tmp_path / "i", ["a \ufdfa b", "x \uff7b\uff70\uff8a\uff9e\uff70 y"], ascii_folding=False)
    word = normalize("NFKC", "\ufdfa").split()[1]
    (hit,) = iscp.search(index.uri, word, highlight=True).hits
    assert hit.highlights == {"body": ("a <em>\ufdfa</em> b",)}
    (hit,) = iscp.search(index.uri, "\u30b5\u30fc\u30d0\u30fc", highlight=True).hits
    assert hit.highlights == {"body": ("x <em>\uff7b\uff70\uff8a\uff9e\uff70</em> y",)}


def test_an_index_of_an_earlier_analysis_is_searched_as_it_was_made(
    tmp_path: Path,
) -> None:
    def parse_earlier(kind: str, options: Mapping[str, Any]) -> IndexDefinition:
        found = parse_definition(kind, options)
        assert found.analysis is not None
        return replace(found, analysis=replace(found.analysis, version=1))

    texts = ["cafe\u0301 one", "caf\xe9 two"]
    index = index_of(tmp_path / "i", texts, parse_earlier, ascii_folding=False)
    assert [hit.key["id"] for hit in iscp.search(index.uri, "cafe\u0301").hits] == [0]
    assert [hit.key["id"] for hit in iscp.search(index.uri, "caf\xe9", highlight=True).hits] == [1]
