"""Vectors whose distances cannot be computed are faults of their rows, as one of them would fail a whole build."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.index.lance.index_columns import FAULT, VECTOR, dataset_schema
from iscp.index.lance.row_encoder import RowEncoder, RowRules

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
