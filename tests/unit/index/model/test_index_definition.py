"""A definition says what it consists of, and is stored with the number of its format."""

from __future__ import annotations

import json

from iscp.index.model.index_definition import (
    LANGUAGES,
    Analysis,
    IndexDefinition,
    IndexKind,
    TextColumn,
    Tokenizer,
    VectorOptions,
)


def test_kinds_have_text_vectors_or_both() -> None:
    assert [(kind.value, kind.has_text, kind.has_vector) for kind in IndexKind] == [
        *(("fulltext", True, False), ("vector", False, True), ("search", True, True))
    ]
    words = (Tokenizer.ICU, Tokenizer.SIMPLE, Tokenizer.WHITESPACE)
    assert tuple(each for each in Tokenizer if each.has_words) == words
    assert (len(LANGUAGES), len(set(LANGUAGES))) == (18, 18)


def test_the_stored_form_is_fixed() -> None:
    """Others read it: a change of it needs another number, or a default for what it lacks."""
    definition = IndexDefinition(
        IndexKind.SEARCH,
        (TextColumn("title", 2.0), TextColumn("body")),
        Analysis(Tokenizer.NGRAM, positions=False),
        VectorOptions(column="e"),
        ("at",),
    )
    assert json.loads(definition.to_json()) == {
        "format": 2,
        "analysis": 2,
        "kind": "search",
        "options": {
            "columns": {"title": 2.0, "body": 1.0},
            "tokenizer": "ngram",
            "stem": False,
            "stop_words": False,
            "lower_case": True,
            "ascii_folding": True,
            "max_token_length": 40,
            "positions": False,
            "min_ngram": 3,
            "max_ngram": 3,
            "prefix_only": False,
            "column": "e",
            "metric": "cosine",
            "precision": "float32",
            "recall": 0.99,
            "stored": ["at"],
        },
    }
    assert definition.boosts() == {"title": 2.0, "body": 1.0}
    assert definition.text_names() == ("title", "body")
