"""Keys that the statistics of a real table's files exclude are recognised as absent, as its log goes on.

Hashes of keys are XXH64, and what Spark may take for a number is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from iscp.delta.rows.row_keys import (
    FOLLOWED_MAX,
    TEXTS_HASHED_MAX,
    TableKeys,
    bounded,
    bounds_of_arrow,
    bounds_of_row,
    key_hashes,
    may_hold,
    spanning,
    xxh64,
)
from tests.fakes.commit_files import commit_path


def rows(ids: list[int | None], names: list[str | None] | None = None) -> pa.Table:
    return pa.table({"Id": pa.array(ids, pa.int64()), "a.b": pa.array(names or ["n"] * len(ids), pa.string())})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "table")
    write_deltalake(uri, rows([10, 20], ["m", "p"]))
    return uri


@pytest.mark.parametrize(
    ("bounds", "lacks"),
    [
        ({"id": (21, 30)}, True),
        ({"id": (1, 9)}, True),
        ({"id": (20, 30)}, False),
        ({"id": (12, 13)}, False),
        ({"id": (1, 100)}, False),
        ({"a.b": ("q", "z")}, True),
        ({"a.b": ("o", "z")}, False),
        ({"id": (12, 13), "a.b": ("q", "z")}, True),
        ({"id": (12, 13), "a.b": ("n", "n")}, False),
        ({}, False),
        ({"unknown": (1, 2)}, False),
    ],
)
def test_keys_beyond_all_that_is_held_in_one_column_are_not_there(
    uri: str, bounds: dict[str, tuple[Any, Any]], lacks: bool
) -> None:
    assert TableKeys(uri).lack(bounds, 0) is lacks


def test_what_is_held_follows_the_log(uri: str) -> None:
    held = TableKeys(uri)
    assert held.lack({"id": (30, 40)}, 0)
    write_deltalake(uri, rows([30]), mode="append")
    assert held.lack({"id": (30, 40)}, 0)
    assert not held.lack({"id": (30, 40)}, 1)
    DeltaTable(uri).delete('"Id" = 30')
    DeltaTable(uri).optimize.compact()
    newest = DeltaTable(uri).version()
    assert held.lack({"id": (31, 40)}, newest)
    assert held.lack({"a.b": ("q", "q")}, newest), "another column is asked for than before"
    assert held.lack({"id": (31, 40)}, newest)


def test_a_log_too_long_to_follow_or_recreated_is_read_again(uri: str) -> None:
    held = TableKeys(uri)
    assert held.lack({"id": (500, 500)}, 0)
    for _ in range(FOLLOWED_MAX + 1):
        DeltaTable(uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    write_deltalake(uri, rows([500]), mode="append")
    assert not held.lack({"id": (500, 500)}, FOLLOWED_MAX + 2)
    write_deltalake(uri, rows([900]), mode="overwrite")
    assert not held.lack({"id": (900, 900)}, FOLLOWED_MAX + 3)
    assert not TableKeys(uri).lack({"id": (900, 900)}, FOLLOWED_MAX + 3)
    assert TableKeys(uri).lack({"id": (500, 500)}, FOLLOWED_MAX + 3), "it was overwritten before the first look"


def test_a_table_recreated_up_to_the_same_version_is_read_again(uri: str) -> None:
    held = TableKeys(uri)
    assert held.lack({"id": (500, 500)}, 0)
    shutil.rmtree(uri)
    write_deltalake(uri, rows([500]))
    assert not held.lack({"id": (500, 500)}, 0)


def test_a_column_that_got_another_type_may_hold_anything(uri: str) -> None:
    held = TableKeys(uri)
    assert held.lack({"id": (30, 40)}, 0)
    write_deltalake(uri, pa.table({"Id": ["b"]}), mode="overwrite", schema_mode="overwrite")
    assert not held.lack({"id": ("c", "d")}, 1)
    assert not held.lack({"id": ("c", "d")}, 1)
    assert TableKeys(uri).lack({"id": ("c", "d")}, 1)


def test_a_table_without_indexed_columns_may_hold_anything(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    write_deltalake(uri, rows([1]), configuration={"delta.dataSkippingNumIndexedCols": "0"})
    assert not TableKeys(uri).lack({"id": (30, 40)}, 0)


def test_strings_that_are_not_utf_8_have_no_bounds(tmp_path: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"], pa.binary()).buffers())
    assert bounds_of_arrow(pa.table({"s": raw, "id": [1, 2]}), ["s", "id"]) == {"id": (1, 2)}
    assert bounds_of_row(["s"], ["a", "\ufffd", 0]) == {}
    uri = str(tmp_path / "table")
    write_deltalake(uri, rows([1], ["\ufffd"]))
    assert not TableKeys(uri).lack({"a.b": ("x", "y")}, 0)


def test_an_empty_table_and_one_of_nulls_hold_no_value(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    DeltaTable.create(uri, schema=rows([]).schema)
    held = TableKeys(uri)
    assert held.lack({"id": (1, 2)}, 0)
    write_deltalake(uri, rows([None], [None]), mode="append")
    assert held.lack({"id": (1, 2)}, 1)
    assert TableKeys(uri).lack({"id": (1, 2)}, 1)


def test_a_file_without_statistics_may_hold_anything(uri: str) -> None:
    held = TableKeys(uri)
    assert held.lack({"id": (30, 40)}, 0)
    write_deltalake(uri, rows([25]), mode="append")
    path = commit_path(uri, 1)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = None
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert not held.lack({"id": (30, 40)}, 1)
    assert not TableKeys(uri).lack({"id": (30, 40)}, 1)


def test_bounds_of_changes_leave_out_columns_with_a_null_and_types_without_order() -> None:
    schema = T.StructType().add("Id", "long").add("s", "string").add("t", "timestamp").add("v", "long")
    assert bounded(schema, ("id", "S", "t")) == ["Id", "s"]
    changes = pa.table({"Id": [3, 1, 2], "s": ["b", None, "a"]})
    assert bounds_of_arrow(changes, ["Id", "s"]) == {"id": (1, 3)}
    assert bounds_of_arrow(changes.slice(0, 0), ["Id", "s"]) == {}
    assert bounds_of_row(["Id", "s"], [1, 3, 0, "a", "b", 1]) == {"id": (1, 3)}
    assert bounds_of_row(["s"], [None, None, 0]) == {}


def test_bounds_of_several_groups_are_those_of_all_of_them() -> None:
    assert spanning([]) == {}
    assert spanning([{"id": (3, 5), "v": ("a", "b")}, {"id": (1, 4)}]) == {"id": (1, 5)}


STATS = {
    "numRecords": 3,
    "minValues": {"Id": 10, "s": "m"},
    "maxValues": {"Id": 20, "s": "p" * 32},
    "nullCount": {"v": 3},
}


@pytest.mark.parametrize(
    ("column", "values", "may"),
    [
        ("id", [1, 9, 21], False),
        ("id", [1, 15], True),
        ("id", [10], True),
        ("id", [20, 30], True),
        ("id", [], False),
        ("id", ["a"], True),
        ("s", ["a", "l"], False),
        ("s", ["n"], True),
        ("s", ["p" * 32 + "q"], True),
        ("s", ["q"], False),
        ("v", [1], False),
        ("unknown", [1], True),
    ],
)
def test_a_file_that_cannot_have_any_of_the_values_is_passed_over(column: str, values: list[Any], may: bool) -> None:
    """A text that was cut off stands for all that begin with it; nulls are none of the values."""
    assert may_hold({"stats": json.dumps(STATS)}, column, values) is may
    assert may_hold({}, column, values)


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
