"""Notes beside the data of a local table; those on S3 are tested in tests/integration.

Commits whose fsync fails: none counts as durable, and the next writer replaces their files.

Arrow files of others: they are read as they were written, or refused before they take memory.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.model.values.errors import StorageError
from iscp.storage import files
from iscp.storage.table_files import DurableCommits, OddArrowError, read_arrow, read_note, write_note
from tests.fakes.failing_disk import on_a_failing_disk
from tests.fakes.guards import ScriptedFailpoints


def test_a_note_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    uri = str(tmp_path)
    assert read_note(uri, "n", 100) is None
    for content in (b"one", b"another"):
        write_note(uri, "n", content)
        assert read_note(uri, "n", len(content)) == content
    assert os.listdir(uri) == ["_iscp-n.json"]
    with pytest.raises(StorageError, match="more than the 3"):
        read_note(uri, "n", 3)


def test_a_link_is_neither_followed_nor_written_through(tmp_path: Path) -> None:
    secret, table = tmp_path / "secret", tmp_path / "table"
    secret.write_text("s")
    table.mkdir()
    (table / "_iscp-n.json").symlink_to(secret)
    with pytest.raises(StorageError, match="is a link"):
        read_note(str(table), "n", 100)
    write_note(str(table), "n", b"own")
    assert secret.read_text() == "s"
    assert read_note(str(table), "n", 100) == b"own"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "_iscp-n.json")
    with pytest.raises(StorageError):
        read_note(str(tmp_path), "n", 100)


def test_a_directory_that_is_gone_is_a_fault_of_the_storage(tmp_path: Path) -> None:
    assert read_note(str(tmp_path / "gone"), "n", 100) is None
    with pytest.raises(StorageError, match="is gone"):
        write_note(str(tmp_path / "gone"), "n", b"x")


@pytest.mark.parametrize("content", [True, False], ids=["the file", "the directory"])
def test_what_cannot_be_synced_is_replaced_by_a_copy_before_anything_behind_it_counts(
    tmp_path: Path, content: bool
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    commits = DurableCommits(tmp_path, ScriptedFailpoints())
    written = [log / f"{version:020d}.json" for version in range(2)]
    for file in written:
        assert files.create(str(file), file.name.encode())
    inodes = [file.stat().st_ino for file in written]

    for _ in range(2):  # a disk that goes on failing
        with pytest.raises(OSError, match="Input/output error"):
            on_a_failing_disk(lambda: commits.sync(0, content=content))
    assert [file.stat().st_ino for file in written] == inodes

    # Whoever writes to this log in the process, not only who got the error.
    DurableCommits(tmp_path, ScriptedFailpoints()).sync(1, content=content)
    assert [file.stat().st_ino == inode for file, inode in zip(written, inodes, strict=True)] == [False, True]
    assert [file.read_bytes() for file in written] == [file.name.encode() for file in written]
    assert sorted(log.iterdir()) == written


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
