"""Hashes of keys are XXH64, and what Spark may take for a number is left to Spark."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from iscp.adapters.delta.rows.key_hashes import TEXTS_HASHED_MAX, key_hashes, xxh64

SEED = 42

KNOWN = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"message digest": 0x066ED728FCEEB3BE,
    b"abcdefghijklmnopqrstuvwxyz": 0xCFE1F278FA89835C,
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": 0xAAA46907D3047814,
    b"12345678901234567890123456789012345678901234567890123456789012345678901234567890": 0xE04A477F19EE145D,
}
"""Published digests, with the seed 0."""


@pytest.mark.parametrize("data", KNOWN)
def test_digests_are_the_published_ones(data: bytes) -> None:
    assert xxh64(data, 0) == KNOWN[data]


def hashed(values: list[Any], kind: pa.DataType) -> list[int] | None:
    found = key_hashes(pa.table({"ID": pa.array(values, kind)}), ["id"])
    return None if found is None else [each % 2**64 for each in found.to_pylist()]


def of_double(value: float) -> int:
    return xxh64(struct.pack("<d", value), SEED)


def test_numbers_count_as_doubles_whatever_their_type() -> None:
    numbers = [0, 1, -1, 127, -128]
    expected = [of_double(float(each)) for each in numbers]
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        assert hashed(numbers, kind) == expected
    assert hashed([str(each) for each in numbers], pa.string()) == expected
    assert hashed([2**63 - 1, 2**53 + 1], pa.int64()) == [of_double(2.0**63), of_double(2.0**53)]


def test_texts_count_as_their_bytes_and_dates_as_texts() -> None:
    texts = [
        "",
        "ü",
        "none",
        "1-2",
        "3e5a-11",
        "1.2.3",
        " ",
        "0x1",
        "xx 00:00:00",
        "a longer text than a stripe of thirty-two bytes has",
    ]
    plain = [each.replace(" 00:00:00", "").encode() for each in texts]
    for kind in (pa.string(), pa.large_string()):
        assert hashed(texts, kind) == [xxh64(each, SEED) for each in plain]
    days = [dt.date(2026, 1, 2), dt.date(1, 1, 1)]
    assert hashed(days, pa.date32()) == [xxh64(b"2026-01-02", SEED), xxh64(b"0001-01-01", SEED)]
    assert hashed([True, False], pa.bool_()) == [xxh64(b"true", SEED), xxh64(b"false", SEED)]


def test_nulls_are_passed_over_and_each_hash_is_the_next_seed() -> None:
    rows = pa.table({"a": pa.array([1, None, None], pa.int64()), "b": ["x", "y", None]})
    found = key_hashes(rows, ["a", "b"])
    assert found is not None
    expected = [xxh64(b"x", of_double(1.0)), xxh64(b"y", SEED), SEED]
    assert [each % 2**64 for each in found.to_pylist()] == expected


ODD_NUMBERS = ["1.0", " 1", "1d", "01", "-0", "NaN", "infinity ", "nan", "+1", ".5", "1.e3F", "0x1.8p1", "١"]


@pytest.mark.parametrize("text", ODD_NUMBERS)
def test_what_may_be_a_number_in_another_spelling_is_left_to_spark(text: str) -> None:
    assert hashed(["plain", text], pa.string()) is None


def test_other_types_and_many_texts_are_left_to_spark() -> None:
    assert hashed([Decimal("1.1")], pa.decimal128(5, 1)) is None
    assert hashed([dt.datetime(2026, 1, 1)], pa.timestamp("us")) is None
    assert hashed([1.5], pa.float64()) is None
    assert hashed(["x"] * (TEXTS_HASHED_MAX + 1), pa.string()) is None
    assert hashed([], pa.string()) == []
