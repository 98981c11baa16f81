"""Texts whose bytes are no UTF-8 are found wherever Arrow may have them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.spark.spark_frames import are_utf8
from tests.fakes.text_bytes import texts

BAD, GOOD = texts(b"\xff\xfeA", b"ok"), texts(b"\xf0\x9f\x98\x80", b"ok")
OFFSETS = pa.array([0, 1, 2], pa.int32())


def nested(kind: str, values: pa.Array) -> pa.Array:
    match kind:
        case "plain":
            return values
        case "large":
            return pa.Array.from_buffers(
                pa.large_string(), 2, values.cast(pa.binary()).cast(pa.large_binary()).buffers()
            )
        case "view":
            return values.cast(pa.binary()).cast(pa.binary_view()).view(pa.string_view())
        case "dictionary":
            return pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), values)
        case "struct":
            return pa.StructArray.from_arrays([values], ["a"])
        case "list":
            return pa.ListArray.from_arrays(OFFSETS, values)
        case "key":
            return pa.MapArray.from_arrays(OFFSETS, values, pa.array([1, 2]))
        case "value":
            return pa.MapArray.from_arrays(OFFSETS, pa.array([1, 2]), values)
        case _:
            return pa.StructArray.from_arrays(
                [pa.ListArray.from_arrays(OFFSETS, nested("dictionary", values)[:2])], ["a"]
            )


@pytest.mark.parametrize("kind", ["plain", "large", "view", "dictionary", "struct", "list", "key", "value", "deep"])
def test_they_are_found_in_columns_of_every_kind(kind: str) -> None:
    for values, fine in ((BAD, False), (GOOD, True)):
        column = pa.chunked_array([nested(kind, values)])
        assert are_utf8(column) == fine
        assert are_utf8(pa.table({"id": range(len(column)), "c": column})) == fine


def test_bytes_that_no_row_has_do_not_count() -> None:
    assert are_utf8(pa.chunked_array([BAD.slice(1)]))
    assert are_utf8(pa.table({"c": pa.array([b"\xff"], pa.binary())}))
    assert are_utf8(pa.table({"c": pa.array([], pa.string())}))
