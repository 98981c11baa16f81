"""Logs in which a file is none that may be opened are refused by its name, before anybody opens it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.log import table_opening
from iscp.delta.log.table_opening import CHECKPOINT_BYTES_MAX, HINT_BYTES_MAX, SIDECARS_MAX, guard_log
from iscp.model.values.errors import StorageError
from iscp.storage.files import FILE_BYTES_MAX

OF_JSON = f"{4:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a table of versions 0 to 5, with a checkpoint of version 3."""
    for number in range(6):
        write_deltalake(tmp_path / "t", pa.table({"id": [number]}), mode="append")
        if number == 3:
            DeltaTable(tmp_path / "t").create_checkpoint()
    return tmp_path / "t" / "_delta_log"


def guard(log: Path, version: int | None = None) -> None:
    guard_log(str(log.parent), version)


def extend(path: Path, size: int) -> None:
    """Let the file have so many bytes, without room on the disk."""
    with path.open("ab") as file:
        file.truncate(size)


def commit(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def sidecars(log: Path, *paths: object) -> None:
    lines = [{"protocol": {}}, *({"sidecar": {"path": path}} for path in paths)]
    (log / OF_JSON).write_text("\n".join(map(json.dumps, lines)))


def test_a_sound_log_is_opened_at_every_version(log: Path) -> None:
    for version in (None, *range(7)):
        guard(log, version)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_nothing_in_the_directory_is_a_pipe_or_a_link_whatever_its_name(
    log: Path, make: Callable[[Path], None]
) -> None:
    make(log / "anything")
    with pytest.raises(StorageError, match="anything"):
        guard(log)


def test_a_commit_that_is_too_large_is_refused_where_it_is_opened(log: Path) -> None:
    extend(commit(log, 1), FILE_BYTES_MAX + 1)
    guard(log)
    guard(log, 3)
    for version in (0, 2):  # Spark begins at the checkpoint before, or at the first commit
        with pytest.raises(StorageError, match=commit(log, 1).name):
            guard(log, version)
    extend(commit(log, 5), FILE_BYTES_MAX + 1)
    with pytest.raises(StorageError, match=commit(log, 5).name):
        guard(log)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("_last_checkpoint", HINT_BYTES_MAX),
        (f"{4:020d}.crc", FILE_BYTES_MAX),
        (f"{4:020d}.{5:020d}.compacted.json", FILE_BYTES_MAX),
        (f"{3:020d}.checkpoint.parquet", CHECKPOINT_BYTES_MAX),
        (f"{3:020d}.checkpoint.{1:010d}.{2:010d}.parquet", CHECKPOINT_BYTES_MAX),
    ],
)
def test_other_files_have_bounds_too(log: Path, name: str, size: int) -> None:
    extend(log / name, size + 1)
    with pytest.raises(StorageError, match=name):
        guard(log)


def test_files_that_nobody_opens_have_no_bounds(log: Path) -> None:
    extend(log / "notes.json", FILE_BYTES_MAX + 1)
    extend(commit(log, 0), FILE_BYTES_MAX + 1)
    guard(log)


def test_sidecars_of_the_directory_are_opened(log: Path) -> None:
    (log / "_sidecars").mkdir()
    (log / "_sidecars" / "a.parquet").write_bytes((log / f"{3:020d}.checkpoint.parquet").read_bytes())
    sidecars(log, "a.parquet", "gone.parquet")
    guard(log)


@pytest.mark.parametrize(
    "path", ["../a.parquet", "/etc/a.parquet", "s3://bucket/a.parquet", "a b.parquet", "a%2Fb.parquet", "a.json", ""]
)
def test_a_sidecar_elsewhere_is_refused(log: Path, path: str) -> None:
    sidecars(log, path)
    with pytest.raises(StorageError, match="names a sidecar that is no file of its directory"):
        guard(log)


def test_a_sidecar_that_is_a_pipe_or_too_large_is_refused(log: Path) -> None:
    (log / "_sidecars").mkdir()
    sidecars(log, "a.parquet")
    os.mkfifo(log / "_sidecars" / "a.parquet")
    with pytest.raises(StorageError, match=r"a\.parquet"):
        guard(log)
    (log / "_sidecars" / "a.parquet").unlink()
    extend(log / "_sidecars" / "a.parquet", CHECKPOINT_BYTES_MAX + 1)
    with pytest.raises(StorageError, match=r"a\.parquet"):
        guard(log)


def test_a_checkpoint_with_too_many_sidecars_is_refused(log: Path) -> None:
    sidecars(log, *(f"{number}.parquet" for number in range(SIDECARS_MAX + 1)))
    with pytest.raises(StorageError, match=f"names more than {SIDECARS_MAX} sidecars"):
        guard(log)


@pytest.mark.parametrize(
    "text",
    [
        '{"sidecar":',
        '{"sidecar": 3}',
        '{"sidecar": {"sizeInBytes": 1}}',
        '["sidecar"]',
        '{"sid\\u0065car": {"path": "/x"}}',
    ],
)
def test_a_checkpoint_of_json_that_is_none_is_refused(log: Path, text: str) -> None:
    (log / OF_JSON).write_text(text)
    with pytest.raises(StorageError, match=OF_JSON):
        guard(log)


def test_a_checkpoint_that_is_replaced_is_gone_over_again(log: Path) -> None:
    sidecars(log, "gone.parquet")
    guard(log)
    checked = table_opening._check_checkpoint.cache_info().misses
    guard(log)
    assert table_opening._check_checkpoint.cache_info().misses == checked
    sidecars(log, "../gone.parquet")
    with pytest.raises(StorageError):
        guard(log)


def test_a_small_checkpoint_that_swells_is_refused(log: Path) -> None:
    """One long path by dictionary, of 300 files: deltalake wrote it out 300 times."""
    paths = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), pa.array(["x" * 1024**2]))
    table = pa.table({"add": pa.StructArray.from_arrays([paths], ["path"])})
    checkpoint = log / f"{3:020d}.checkpoint.parquet"
    pq.write_table(table, checkpoint, compression="zstd", dictionary_pagesize_limit=2 * 1024**2)
    assert checkpoint.stat().st_size < 10_000
    with pytest.raises(StorageError, match=r"checkpoint\.parquet takes more than 256 MiB of memory"):
        guard(log)
    pq.write_table(table.slice(0, 100), checkpoint, compression="zstd", dictionary_pagesize_limit=2 * 1024**2)
    guard(log)
