"""Vectors whose distances cannot be computed are faults of their rows, as one of them would fail a whole build."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import FAULT, VECTOR, dataset_schema
from iscp.index.lance.row_encoder import RowEncoder, RowRules, row_digests

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
