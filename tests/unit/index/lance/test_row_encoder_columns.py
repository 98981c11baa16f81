"""An index is made of its own columns: what another job reads of a row is nothing to it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import FAULT, ROW_HASH, dataset_schema
from iscp.index.lance.row_encoder import RowEncoder, RowRules
from iscp.index.lance.text_analysis import GRAMS_MAX
from iscp.index.model.index_definition import Analysis, Tokenizer

INVALID = pa.array([b"plain", b"\xff\xfeA"], pa.binary()).view(pa.string())


def encoder(*texts: str) -> RowEncoder:
    schema = dataset_schema([pa.field("id", pa.int64())], len(texts), 0)
    return RowEncoder(schema, RowRules(("id",), texts, lambda found: [f" {each} " for each in found]))


@pytest.mark.parametrize("name", ["body", "Body"])
def test_bytes_that_are_no_text_are_a_fault_only_of_an_index_with_their_column(name: str) -> None:
    rows = pa.table({"id": [1, 2], name: INVALID})
    assert encoder("body").encode(rows)[FAULT].to_pylist() == [None, f"{name} is no valid UTF-8"]
    assert encoder().encode(rows)[FAULT].to_pylist() == [None, None]


def test_the_hash_of_a_row_is_that_of_the_indexs_own_columns() -> None:
    hashes = [
        encoder().encode(pa.table({"id": [1], "body": [text]}))[ROW_HASH].to_pylist() for text in ("one", "another")
    ]
    assert hashes[0] == hashes[1]


def of_n_grams() -> RowEncoder:
    schema = dataset_schema([pa.field("id", pa.int64())], 1, 0)
    analysis = Analysis(Tokenizer.NGRAM)
    return RowEncoder(
        schema, RowRules(("id",), ("body",), lambda found: [f" {each} " for each in found], analysis=analysis)
    )


def test_a_text_of_too_many_n_grams_is_a_fault() -> None:
    texts = ["x" * (GRAMS_MAX + 2), "x" * (GRAMS_MAX + 3), None]
    faults = of_n_grams().encode(pa.table({"id": [1, 2, 3], "body": texts}))[FAULT].to_pylist()
    assert faults == [None, f"body has {GRAMS_MAX + 1} n-grams, and at most {GRAMS_MAX} are indexed", None]


def test_rows_are_encoded_by_parts_of_bounded_words() -> None:
    rows = pa.table({"id": range(100), "body": ["x" * (each % 7) if each % 5 else None for each in range(100)]})
    parts = list(of_n_grams().portions([rows, rows.slice(0, 0)], 40))
    assert pa.concat_tables(parts) == rows
    assert len(parts) > 10
    for each in parts:
        sizes = [len(text or "") * 4 for text in each["body"].to_pylist()]
        assert sum(sizes) <= 40 + max(sizes, default=0)
