"""Arrow files of others: they are read as they were written, or refused before they take memory."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from iscp.adapters.delta.storage.arrow_files import OddArrowError, read_arrow

SCHEMA = pa.schema([("word", pa.string()), ("rows", pa.int64())])
MAX = 64 * 1024**2


def written(table: pa.Table, compression: str | None = "lz4", batch: int | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, batch)
    return bytes(sink.getvalue())


def words(count: int) -> pa.Table:
    return pa.table({"word": [f"w{each}" for each in range(count)], "rows": range(count)}, schema=SCHEMA)


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_what_was_written_is_read_with_its_metadata(compression: str | None, count: int) -> None:
    table = words(count).replace_schema_metadata({"a": "b"})
    found = read_arrow(written(table, compression, 1_000), SCHEMA, MAX)
    assert found.equals(table)
    assert found.schema.metadata == {b"a": b"b"}


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_no_more_is_unpacked_than_was_said(compression: str | None) -> None:
    content = written(words(20_000), compression)
    size = words(20_000).nbytes
    assert len(read_arrow(content, SCHEMA, 2 * size)) == 20_000
    with pytest.raises(OddArrowError, match="bytes once unpacked"):
        read_arrow(content, SCHEMA, size // 2)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = written(pa.table({"word": pa.array(["a" * 500_000] * 500), "rows": range(500)}, schema=SCHEMA), "zstd")
    assert len(bomb) < 1024**2
    before = pa.total_allocated_bytes()
    with pytest.raises(OddArrowError, match="bytes once unpacked"):
        read_arrow(bomb, SCHEMA, MAX)
    assert pa.total_allocated_bytes() - before < MAX


def test_other_columns_are_refused() -> None:
    with pytest.raises(OddArrowError, match="its columns are x"):
        read_arrow(written(pa.table({"x": [1]})), SCHEMA, MAX)
    coded = pa.table({"word": pa.array(["a"]).dictionary_encode(), "rows": pa.array([1], pa.int64())})
    with pytest.raises(OddArrowError, match="its columns are word, rows"):
        read_arrow(written(coded), SCHEMA, MAX)
    with pytest.raises(OddArrowError, match="no Arrow file"):
        read_arrow(b"", SCHEMA, MAX)


def test_texts_that_end_outside_of_their_file_are_refused() -> None:
    content = written(words(100), None)
    offsets = b"".join(each.to_bytes(4, "little") for each in (0, 2, 4, 6))
    assert content.count(offsets) == 1
    place = content.index(offsets)
    forged = content[: place + 4] + (2**30).to_bytes(4, "little") + content[place + 8 :]
    with pytest.raises(OddArrowError, match="damaged"):
        read_arrow(forged, SCHEMA, MAX)


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_whatever_stands_there_is_refused_or_read_in_order(compression: str | None) -> None:
    whole, chance = written(words(300), compression, 100), random.Random(1)
    for _ in range(1_500):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        end = chance.choice((len(content), chance.randrange(len(content))))
        try:
            found = read_arrow(bytes(content[:end]), SCHEMA, MAX)
        except OddArrowError:
            continue
        assert sum(len(each) for each in found["word"].to_pylist() if each) <= MAX
