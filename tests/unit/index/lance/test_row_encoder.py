"""Vectors whose distances cannot be computed are faults of their rows, as one of them would fail a whole build.

A key's text is the same for equal keys, and another for each other one, whatever their values.

An index is made of its own columns: what another job reads of a row is nothing to it.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.lance.index_columns import FAULT, HEAD_KEY, ROW_HASH, VECTOR, dataset_schema
from iscp.index.lance.row_encoder import RowEncoder, RowRules, key_texts, row_digests
from iscp.index.lance.text_analysis import GRAMS_MAX
from iscp.index.model.index_definition import Analysis, Tokenizer
from iscp.model.values.errors import PermanentError

LONG = "its vector has a length of more than 1e+15"
SHORT = "its vector has a length of less than 1e-15, which has no direction"
ZERO = "its vector is all zeros, which has no direction"
LARGE = "its vector has numbers that are too large for 16 bits"


def faults(vectors: list[list[float]], *, half: bool = False, directed: bool = True) -> list[str | None]:
    schema = dataset_schema([pa.field("id", pa.int64())], 0, 2, half)
    rules = RowRules(("id",), (), lambda texts: [None] * len(texts), vector="v", directed=directed)
    rows = pa.table({"id": range(len(vectors)), "v": pa.array(vectors, pa.list_(pa.float32()))})
    encoded = RowEncoder(schema, rules).encode(rows)
    found: list[str | None] = encoded[FAULT].to_pylist()
    assert encoded[VECTOR].is_null().to_pylist() == [each is not None for each in found]
    return found


@pytest.mark.parametrize(
    ("vector", "directed", "fault"),
    [
        ([3e38, 3e38], True, LONG),
        ([3e38, 3e38], False, LONG),
        ([1.1e15, 0.0], False, LONG),
        ([0.9e15, 0.0], True, None),
        ([1e-30, 0.0], True, SHORT),
        ([1e-30, 0.0], False, None),
        ([1.1e-15, 0.0], True, None),
        ([0.0, -0.0], True, ZERO),
        ([0.0, 0.0], False, None),
    ],
)
def test_a_vector_is_as_long_as_distances_allow(vector: list[float], directed: bool, fault: str | None) -> None:
    assert faults([[1.0, 2.0], vector], directed=directed) == [None, fault]


def test_vectors_of_16_bits_are_judged_as_they_are_stored() -> None:
    assert faults([[1e-9, 0.0], [1e6, 0.0], [1e-3, 0.0]], half=True) == [ZERO, LARGE, None]


@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.int64()], ids=str)
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda number: pa.list_(number, 3)], ids=["", "large", "3"])
def test_rows_are_equal_where_their_numbers_are(
    number: pa.DataType, lists: Callable[[pa.DataType], pa.DataType]
) -> None:
    chance = random.Random(f"{number}{lists(number)}")
    size = lists(number).list_size if pa.types.is_fixed_size_list(lists(number)) else None
    special = [math.nan, math.inf, -0.0, 0.0] if pa.types.is_floating(number) else [0, 1, -128]
    drawn = [None, *special, 2, 3]
    rows = [chance.choices(drawn, k=size or chance.randrange(5)) if chance.random() < 0.8 else None for _ in range(60)]
    column = pa.array(rows, pa.list_(pa.float64(), size) if size else pa.list_(pa.float64())).cast(lists(number))
    some = pa.table({"v": pa.chunked_array([column.slice(7, 20), column.slice(27)])})
    expected = [None if each is None else np.asarray(each, np.float64).tobytes() for each in rows[7:]]
    digests = row_digests(some, ["v"])
    for one, digest in zip(expected, digests, strict=True):
        for other, other_digest in zip(expected, digests, strict=True):
            assert (one == other) == (digest == other_digest)


SIGNS = st.text(alphabet=["a", "\\", "|", "N", "W", "'", " ", "\0", "é", "🙂"], max_size=4)
PARTS = st.tuples(st.none() | SIGNS, st.none() | st.integers(-3, 3))


@given(st.lists(PARTS, min_size=2, max_size=12))
def test_keys_of_texts_and_numbers_are_distinguished(keys: list[tuple[str | None, int | None]]) -> None:
    rows = pa.table({"A": pa.array([key[0] for key in keys], pa.string()), "b": pa.array([key[1] for key in keys])})
    if rows["b"].type == pa.null():
        rows = rows.set_column(1, "b", rows["b"].cast(pa.int64()))
    texts = key_texts(rows, ["a", "B"]).to_pylist()
    assert {len({texts[place] for place, key in enumerate(keys) if key == one}) for one in keys} == {1}
    assert len(set(texts)) == len(set(keys))
    assert HEAD_KEY not in key_texts(rows, ["A"]).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, None], pa.bool_()),
        ([Decimal("1.50"), Decimal("-1.50"), None], pa.decimal128(9, 2)),
        ([dt.date(2026, 1, 1), dt.date(1969, 12, 31), None], pa.date32()),
        ([dt.datetime(2026, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 1), None], pa.timestamp("us")),
        ([b"", b"\x00", b"\\N", None], pa.binary()),
        (["", "\\N", "N", None], pa.large_string()),
    ],
)
def test_values_of_each_type_that_identifies_rows_have_texts_of_their_own(values: list[Any], kind: pa.DataType) -> None:
    texts = key_texts(pa.table({"k": pa.array(values, kind)}), ["k"]).to_pylist()
    assert len(set(texts)) == len(values)
    assert all(isinstance(each, str) for each in texts)


def test_a_time_has_one_text_whatever_its_unit() -> None:
    at = [dt.datetime(2026, 1, 1, 12)]
    texts = [key_texts(pa.table({"k": pa.array(at, pa.timestamp(unit))}), ["k"])[0].as_py() for unit in ("s", "us")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64())])
def test_types_that_identify_no_row_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(PermanentError, match="column k has the type"):
        key_texts(pa.table({"k": pa.array([None], kind)}), ["k"])


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
