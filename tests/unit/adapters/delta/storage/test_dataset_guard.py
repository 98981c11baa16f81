"""Nothing but files and directories may lie in a dataset, and a check of one that stands still is short."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.adapters.delta.storage.dataset_guard import GuardBounds, guard_dataset
from iscp.adapters.delta.storage.dataset_manifest import MANIFEST_BYTES_MAX
from iscp.adapters.delta.storage.dataset_names import DATASET_DIRECTORIES, VERSIONS, manifest_name
from iscp.adapters.delta.storage.regular_files import RefusedFileError

SEGMENT = "_indices/00000000-0000-4000-8000-000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "index"
    lance.write_dataset(pa.table({"a": [1]}), place)
    for name in (*DATASET_DIRECTORIES, SEGMENT):
        (place / name).mkdir(parents=True, exist_ok=True)
    return place


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(("make", "what"), [(link, "a link"), (pipe, "a pipe")])
@pytest.mark.parametrize("folder", [*DATASET_DIRECTORIES, SEGMENT])
def test_a_file_that_is_none_is_refused_by_its_name(
    root: Path, folder: str, make: Callable[[Path], None], what: str
) -> None:
    guard_dataset(str(root))
    make(root / folder / "x")
    with pytest.raises(RefusedFileError) as refused:
        guard_dataset(str(root))
    assert refused.value.strerror == f"{root / folder / 'x'} is {what}, where a regular file belongs"


@pytest.mark.parametrize("folder", DATASET_DIRECTORIES)
def test_a_directory_that_is_a_link_is_refused(root: Path, tmp_path: Path, folder: str) -> None:
    (root / folder).rename(tmp_path / "elsewhere")
    (root / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedFileError, match=f"{folder} is a link"):
        guard_dataset(str(root))


def test_a_place_without_a_dataset_passes(tmp_path: Path) -> None:
    guard_dataset(str(tmp_path / "nothing"))


def test_a_manifest_is_checked_at_its_version(root: Path) -> None:
    (root / VERSIONS / manifest_name(2)).write_bytes(b"x" * 20)
    with pytest.raises(RefusedFileError, match="is not opened: it does not end as one of Lance's does"):
        guard_dataset(str(root))
    guard_dataset(str(root), 1)
    with (root / VERSIONS / manifest_name(3)).open("wb") as sparse:
        sparse.truncate(MANIFEST_BYTES_MAX + 1)
    with pytest.raises(RefusedFileError, match=f"more than the {MANIFEST_BYTES_MAX} that are read"):
        guard_dataset(str(root))


def test_manifests_named_as_before_are_refused(root: Path) -> None:
    (root / VERSIONS / "9.manifest").touch()
    with pytest.raises(RefusedFileError, match="as Lance named them before"):
        guard_dataset(str(root))


def test_too_many_directories_and_names_are_refused(root: Path) -> None:
    with pytest.raises(RefusedFileError, match="has more than 6 directories"):
        guard_dataset(str(root), bounds=GuardBounds(folders=6))
    for number in range(4):
        (root / "data" / f"{number}.lance").touch()
    with pytest.raises(RefusedFileError, match="data has more than 3 names"):
        guard_dataset(str(root), bounds=GuardBounds(names=3))


def test_deleted_rows_are_checked_and_checked_again_where_they_change(root: Path) -> None:
    lance.write_dataset(pa.table({"a": range(100)}), root, mode="overwrite").delete("a < 3")
    guard_dataset(str(root))
    (file,) = (root / "_deletions").iterdir()
    content = bytearray(file.read_bytes())
    for place in range(len(content) - 200, len(content) - 10):
        content[place] |= 0x40
    file.write_bytes(content)
    with pytest.raises(RefusedFileError, match=f"{file.name} is not opened"):
        guard_dataset(str(root))


LISTED: list[str] = []
"""The directories that were listed, while `RECORDING` says so: a hook stays for the whole process."""

RECORDING = [False]


def record(event: str, arguments: tuple[object, ...]) -> None:
    if RECORDING[0] and event == "os.scandir":
        LISTED.append(str(arguments[0]))


@pytest.fixture(scope="module")
def _hook() -> None:
    sys.addaudithook(record)


@pytest.fixture
def listed(_hook: None) -> Iterator[list[str]]:
    LISTED.clear()
    RECORDING[0] = True
    yield LISTED
    RECORDING[0] = False


def test_what_has_settled_is_not_listed_again_until_it_changes(root: Path, listed: list[str]) -> None:
    at_once = GuardBounds(settled_s=0.0)
    guard_dataset(str(root), bounds=at_once)
    assert len(listed) == len(DATASET_DIRECTORIES) + 1
    listed.clear()
    guard_dataset(str(root), bounds=at_once)
    assert listed == []
    time.sleep(0.02)
    pipe(root / "data" / "x")
    with pytest.raises(RefusedFileError, match="a pipe"):
        guard_dataset(str(root), bounds=at_once)
    assert listed == [str(root / "data")]


def test_what_has_just_changed_is_listed_each_time(root: Path, listed: list[str]) -> None:
    for _ in range(2):
        listed.clear()
        guard_dataset(str(root), bounds=GuardBounds(settled_s=3_600.0))
        assert str(root / "data") in listed
