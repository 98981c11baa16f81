"""An index is made of its own columns: what another job reads of a row is nothing to it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import FAULT, ROW_HASH, dataset_schema
from iscp.index.lance.row_encoder import RowEncoder, RowRules

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
