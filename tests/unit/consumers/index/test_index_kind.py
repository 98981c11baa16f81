"""What kinds of indexes refuse at the registration, and which columns of the source they want."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from iscp.app.registry import default_index_services
from iscp.consumers.index.index_kind import FulltextKind, IndexKindBase, SearchKind, VectorKind
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.ports.source import TableDescription
from tests.fakes.catalog import FakeCatalog

PATH = "spec.iteration.consumer"
FIELDS: Mapping[str, Any] = {
    "id": "long",
    "Title": "string",
    "body": "string",
    "near": {"type": "array", "elementType": "float", "containsNull": True},
    "odd": {"type": "array", "elementType": "string", "containsNull": True},
    "price": "double",
    "_words_0": "string",
}
SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()],
}
COLUMNS = {name: kind if isinstance(kind, str) else "array" for name, kind in FIELDS.items()}
SOURCE = TableDescription("t-1", "docs", "/lake/docs", 3, 1.0, COLUMNS, schema_json=json.dumps(SCHEMA))
WORDS = ConsumerSpec("fulltext", "/lake/words", ("id",), options={"columns": "title^2,body"})
NEAR = ConsumerSpec("vector", "/lake/near", ("id",), options={"column": "near"})
BOTH = ConsumerSpec("search", "/lake/both", ("id",), options={"columns": "body", "text": "body", "embed": "hashed"})


def validate(spec: ConsumerSpec) -> None:
    kinds: dict[str, type[IndexKindBase]] = {"fulltext": FulltextKind, "vector": VectorKind, "search": SearchKind}
    catalog = FakeCatalog(SOURCE)
    catalog.indexes.add("/lake/other/index")
    kinds[spec.kind](default_index_services()).validate(spec, SOURCE, catalog)


@pytest.mark.parametrize("spec", [WORDS, NEAR, BOTH, replace(WORDS, where="price > 3", key=("ID", "title"))])
def test_what_is_taken(spec: ConsumerSpec) -> None:
    validate(spec)


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        (replace(WORDS, columns=("id",)), "columns", "an index takes its columns as an option"),
        (replace(WORDS, key=()), "key", "is missing"),
        (replace(WORDS, key=("price",)), "key", "by which rows cannot be identified"),
        (replace(WORDS, key=("nope",)), "key", "nope"),
        (replace(WORDS, target=""), "target", "is missing"),
        (replace(WORDS, target="/lake/docs"), "target", "is the source"),
        (replace(WORDS, target="/lake/other"), "target", "lies within the directory of the index"),
        (replace(WORDS, where="nope > 3"), "where", "nope"),
        (replace(WORDS, options={}), "options.columns", "is missing"),
        (replace(WORDS, options={"columns": "near"}), "options.columns", "array<float>"),
        (replace(WORDS, options={"columns": "body", "stored": "_words_0"}), "options", "something of its own"),
        (replace(WORDS, options={"columns": "body", "tokenizer": "jieba"}), "options.tokenizer", "jieba"),
        (replace(WORDS, options={"columns": "body", "language": "klingon"}), "options.language", "klingon"),
        (replace(NEAR, options={"column": "odd"}), "options.column", "array<string>"),
        (replace(NEAR, options={"column": "near", "metric": "hamming"}), "options.metric", "hamming"),
        (replace(NEAR, options={"text": "body", "embed": "nope"}), "options.embed", "nope"),
        (replace(BOTH, options={"columns": "body"}), "options.column", "is missing"),
    ],
)
def test_what_is_refused(spec: ConsumerSpec, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate(spec)
    assert (refused.value.field, words in refused.value.message) == (f"{PATH}.{field}", True), refused.value
    assert refused.value.remedy


def test_the_columns_that_are_read_are_those_of_the_index_and_its_filter() -> None:
    kind = FulltextKind(default_index_services())
    spec = replace(WORDS, where="price > 3")
    assert kind.columns(spec, list(COLUMNS)) == ("id", "Title", "body", "price")
    with pytest.raises(PermanentError) as lost:
        kind.columns(spec, ["id", "title", "price"])
    assert (lost.value.field, lost.value.code) == (f"{PATH}.options", ErrorCode.SCHEMA_CHANGED)
