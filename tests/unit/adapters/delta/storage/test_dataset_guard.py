"""Nothing but files and directories may lie in a dataset, and a check of one that stands still is short."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.adapters.delta.storage import dataset_guard
from iscp.adapters.delta.storage.dataset_guard import FOLDERS_MAX, guard_dataset
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


def test_too_many_directories_and_names_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_guard, "FOLDERS_MAX", 6)
    with pytest.raises(RefusedFileError, match="has more than 6 directories"):
        guard_dataset(str(root))
    monkeypatch.setattr(dataset_guard, "FOLDERS_MAX", FOLDERS_MAX)
    monkeypatch.setattr(dataset_guard, "NAMES_MAX", 3)
    for number in range(4):
        (root / "data" / f"{number}.lance").touch()
    with pytest.raises(RefusedFileError, match="data has more than 3 names"):
        guard_dataset(str(root))


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are listed from now on."""
    listed: list[str] = []
    real = os.scandir

    def scandir(path: str) -> object:
        listed.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return listed


def test_what_has_settled_is_not_listed_again_until_it_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = listings(monkeypatch)
    monkeypatch.setattr(dataset_guard, "SETTLED_S", 0.0)
    guard_dataset(str(root))
    assert len(listed) == len(DATASET_DIRECTORIES) + 1
    listed.clear()
    guard_dataset(str(root))
    assert listed == []
    time.sleep(0.02)
    pipe(root / "data" / "x")
    with pytest.raises(RefusedFileError, match="a pipe"):
        guard_dataset(str(root))
    assert listed == [str(root / "data")]


def test_what_has_just_changed_is_listed_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = listings(monkeypatch)
    monkeypatch.setattr(dataset_guard, "SETTLED_S", 3600.0)
    for _ in range(2):
        listed.clear()
        guard_dataset(str(root))
        assert str(root / "data") in listed
