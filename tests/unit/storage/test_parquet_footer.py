"""Footers of Parquet: those of any writer pass, and what nests or lists without bound is refused, whatever it is."""

from __future__ import annotations

import io
import random
import struct
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.storage.parquet_footer import (
    COLUMNS_DEPTH_MAX,
    FOOTER_BYTES_MAX,
    LISTED_MAX,
    OddFooterError,
    check_footer,
)
from tests.fakes.poisoned_tables import LEVELS, nested_parquet


def check(content: bytes) -> None:
    check_footer(lambda begin, length: content[begin : begin + length], len(content))


def file_of(footer: bytes) -> bytes:
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def written(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


TABLES = {
    "plain": pa.table({"a": [1, None], "b": ["x", "y"], "c": [True, False], "d": [1.5, 2.5]}),
    "nested": pa.table({"s": [{"a": [{"b": {"c": [1, 2]}}]}], "m": pa.array([[("k", 1)]], pa.map_("string", "int32"))}),
    "wide": pa.table({f"c{number}": [number] for number in range(300)}),
    "no columns": pa.table({}),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "options",
    [{}, {"row_group_size": 1}, {"write_page_index": True, "use_dictionary": False, "version": "1.0"}],
    ids=["plain", "many groups", "with indexes"],
)
def test_what_is_written_passes(name: str, options: dict[str, object]) -> None:
    check(written(TABLES[name].replace_schema_metadata({"k": "v" * 100_000}), **options))


def test_nesting_up_to_a_bound_passes() -> None:
    check(nested_parquet(COLUMNS_DEPTH_MAX - 1))
    for levels in (COLUMNS_DEPTH_MAX, LEVELS, 40 * LEVELS):
        with pytest.raises(OddFooterError, match="levels deep"):
            check(nested_parquet(levels))


STRUCTS = b"\x1c"
"""A field that is a struct, one after the last."""

ODD = {
    "structs within structs": (STRUCTS * 10_000 + b"\x00" * 10_001, "nests structs"),
    "structs within a list of them": (b"\x19\x1c" * 10_000, "nests structs"),
    "more entries than bytes": (b"\x49\xfc\xff\xff\xff\xff\x07\x00", "lists more than"),
    "many entries": (b"\x49\xfc" + b"\xa1\xc2\x1e" + b"\x00" * LISTED_MAX * 2, "lists more than"),
    "a number without an end": (b"\x16" + b"\xff" * 20, "without an end"),
    "a text that is longer than the footer": (b"\x18\xff\xff\xff\xff\x07", "ends within a field"),
    "a map": (b"\x1b\x01\x88", "does not have"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_no_writer_writes_is_refused(name: str) -> None:
    footer, why = ODD[name]
    with pytest.raises(OddFooterError, match=why):
        check(file_of(footer))


def test_a_footer_that_is_encrypted_or_too_long_is_not_even_read() -> None:
    with pytest.raises(OddFooterError, match="encrypted"):
        check(b"PAR1" + b"\x00" * 20 + b"PARE")
    with pytest.raises(OddFooterError, match="bytes, more than"):
        check(b"\x00" * 20 + struct.pack("<I", FOOTER_BYTES_MAX + 1) + b"PAR1")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"garbage" * 100, b"\x00" * 8 + b"\xff\x00\x00\x00PAR1"])
def test_what_is_no_parquet_file_is_for_its_readers_to_name(content: bytes) -> None:
    check(content)


def test_damage_of_any_kind_is_refused_or_passes() -> None:
    whole, draw = written(TABLES["nested"]), random.Random(7)
    for _ in range(2_000):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content) - 8)] = draw.randrange(256)
        with suppress(OddFooterError):
            check(bytes(content))
