"""Manifests that Lance writes pass; those that would have it read elsewhere, or take all memory, do not.

Nothing but files and directories may lie in a dataset, and a check of one that stands still is short.

The probe finds the newest version of real datasets, whatever writers and cleaning leave.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import ErrorCode, StorageError, TableNotFound
from iscp.storage.dataset_manifest import (
    COLUMNS_MAX,
    DEPTH_MAX,
    FRAGMENT_ROWS_MAX,
    FRAGMENTS_MAX,
    MANIFEST_BYTES_MAX,
    GuardBounds,
    OddManifestError,
    VersionProbe,
    check_manifest,
    guard_dataset,
)
from iscp.storage.locations import DATASET_DIRECTORIES, VERSIONS, manifest_name
from iscp.storage.regular_files import RefusedFileError
from tests.fakes.forged_manifest import Fields, field, fields_of, forge, message

COLUMN, FRAGMENT, BASES = 1, 2, 18


def manifest_of(directory: Path) -> Path:
    """The manifest of a dataset with nested columns, two fragments, deleted rows and a segment of an index."""
    rows = pa.table({"a": range(10), "b": [{"c": [each, 2]} for each in range(10)]})
    lance.write_dataset(rows, directory)
    dataset = lance.write_dataset(rows, directory, mode="append")
    dataset.delete("a = 3 AND _rowid < 100")
    dataset.create_scalar_index("a", "BTREE")
    return directory / VERSIONS / manifest_name(dataset.version)


def test_what_lance_writes_passes(tmp_path: Path) -> None:
    manifest_of(tmp_path)
    manifests = sorted((tmp_path / VERSIONS).glob("*.manifest"))
    assert len(manifests) == 4
    for each in manifests:
        check_manifest(each.read_bytes())
    named = check_manifest(manifests[0].read_bytes())
    for folder, found in (("data", named.data), ("_deletions", named.deletions), ("_indices", named.segments)):
        assert sorted(found) == sorted(f"{folder}/{path.name}" for path in (tmp_path / folder).iterdir())


def column(number: int, parent: int, kind: bytes = b"struct") -> tuple[int, bytes]:
    return COLUMN, field(2, b"c%d" % number) + field(3, number) + field(4, parent) + field(5, kind)


def chain(depth: int) -> Callable[[Fields], Fields]:
    return lambda found: [
        *(each for each in found if each[0] != COLUMN),
        *(column(number, number - 1 if number else -1) for number in range(depth)),
    ]


def with_rows(rows: int) -> Callable[[Fields], Fields]:
    def change(found: Fields) -> Fields:
        return [
            (
                number,
                message([*fields_of(value), (4, rows)]) if number == FRAGMENT and isinstance(value, bytes) else value,
            )
            for number, value in found
        ]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: [*found, (BASES, field(1, 1) + field(4, b"/etc"))], "names another place for files"),
        (chain(DEPTH_MAX + 2), f"to more than {DEPTH_MAX} levels"),
        (lambda found: [*found, column(100, 101), column(101, 100)], f"to more than {DEPTH_MAX} levels"),
        (lambda found: [*found, column(100, -1, b"fixed_size_list:" * 100 + b"float")], "a type of more than"),
        (lambda found: [*found, column(100, -1), column(100, -1)], "two columns of the number 100"),
        (
            lambda found: [*found, *(column(number, -1) for number in range(100, 101 + COLUMNS_MAX))],
            f"more than {COLUMNS_MAX} columns",
        ),
        (lambda found: [*found, *[(FRAGMENT, b"")] * (FRAGMENTS_MAX + 1)], f"or {FRAGMENTS_MAX} fragments"),
        (with_rows(FRAGMENT_ROWS_MAX + 1), f"a fragment of more than {FRAGMENT_ROWS_MAX} rows"),
        (lambda found: [*found, (COLUMN, field(3, 100) + field(4, -1) + field(8, b""))], "has a dictionary"),
        (lambda found: [*found, (6, 2**40)], "a place beyond its end"),
        (lambda found: [*found, (COLUMN, 7)], "a number where a message belongs"),
    ],
)
def test_what_lance_is_not_to_open_is_refused(tmp_path: Path, change: Callable[[Fields], Fields], why: str) -> None:
    with pytest.raises(OddManifestError, match=why):
        check_manifest(forge(manifest_of(tmp_path), change))


def test_the_deepest_columns_that_are_taken_pass(tmp_path: Path) -> None:
    check_manifest(forge(manifest_of(tmp_path), chain(DEPTH_MAX)))


def roaring(runs: list[tuple[int, int]]) -> bytes:
    """A bitmap of one container with these runs, each a first number and how many more."""
    head = (12347).to_bytes(4, "little") + b"\1" + b"\0\0\0\0" + len(runs).to_bytes(2, "little")
    return head + b"".join(first.to_bytes(2, "little") + more.to_bytes(2, "little") for first, more in runs)


def plain(containers: int) -> bytes:
    """A bitmap of containers that are full, each of which would be 8 KiB."""
    heads = b"".join(each.to_bytes(2, "little") + b"\xff\xff" for each in range(containers))
    return (12346).to_bytes(4, "little") + containers.to_bytes(4, "little") + heads + b"\0" * 4 * containers


@pytest.mark.parametrize(
    ("bitmap", "why"),
    [
        (roaring([(0, 9)]), ""),
        (roaring([(0, 65_535)] * 2), f"more than {FRAGMENTS_MAX} fragments"),
        (plain(2), f"more than {FRAGMENTS_MAX} fragments"),
        (roaring([(0, 9)])[:-1], "a bitmap that is none"),
        (b"\0\0\0\0", "a bitmap that is none"),
    ],
)
def test_a_segment_has_no_more_fragments_than_a_dataset(tmp_path: Path, bitmap: bytes, why: str) -> None:
    content = with_segment(manifest_of(tmp_path), field(3, b"i") + field(5, bitmap))
    if not why:
        check_manifest(content)
        return
    with pytest.raises(OddManifestError, match=why):
        check_manifest(content)


def test_a_segment_at_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OddManifestError, match="base_id"):
        check_manifest(with_segment(manifest_of(tmp_path), field(3, b"i") + field(9, 1)))


def with_segment(manifest: Path, segment: bytes) -> bytes:
    """The manifest with one segment alone, put before it."""
    content = forge(manifest, lambda found: [each for each in found if each[0] != 6] + [(6, 0)])
    section = field(1, segment)
    put = len(section).to_bytes(4, "little") + section
    place = int.from_bytes(content[-16:-8], "little") + len(put)
    return put + content[:-16] + place.to_bytes(8, "little") + content[-8:]


def test_whatever_stands_there_is_refused_or_passes_in_order(tmp_path: Path) -> None:
    whole, chance = manifest_of(tmp_path).read_bytes(), random.Random(1)
    for _ in range(3_000):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            check_manifest(bytes(content[: chance.choice((len(content), chance.randrange(len(content))))]))
        except OddManifestError:
            continue


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


PROBE = VersionProbe()


class Dataset:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        self.write("create")

    def write(self, mode: str) -> None:
        lance.write_dataset(pa.table({"id": [1, 2, 3]}), self.uri, mode=mode)

    def clean(self) -> None:
        lance.dataset(self.uri).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)

    def manifest(self, version: int) -> Path:
        return self.path / VERSIONS / manifest_name(version)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = Dataset(tmp_path / "index")
    made.write("append")
    return made


def test_an_idle_dataset_gives_the_very_state_it_was_probed_with_and_is_not_listed(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    assert seen.version == 2
    dataset.manifest(9).write_bytes(b"")  # which Lance would never put there: a listing alone shows it
    assert PROBE.probe(dataset.uri, seen) is seen
    assert PROBE.first_probe(dataset.uri).version == 9


def test_each_commit_is_noticed(dataset: Dataset) -> None:
    changes: list[Callable[[], object]] = [
        lambda: dataset.write("append"),
        lambda: lance.dataset(dataset.uri).delete("id = 2"),
        lambda: lance.dataset(dataset.uri).create_scalar_index("id", "BTREE"),
        lambda: dataset.write("overwrite"),
        lambda: lance.dataset(dataset.uri, version=1).restore(),  # type: ignore[no-untyped-call]
    ]
    seen = PROBE.first_probe(dataset.uri)
    for version, change in enumerate(changes, start=3):
        change()
        moved = PROBE.probe(dataset.uri, seen)
        assert (moved.version, moved.stamp != seen.stamp) == (version, True)
        assert PROBE.probe(dataset.uri, moved) is moved
        seen = moved
    assert lance.dataset(dataset.uri).version == seen.version


def test_many_commits_whose_versions_are_cleaned_away_are_noticed(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    for _ in range(4):
        dataset.write("overwrite")
    dataset.clean()
    assert not dataset.manifest(3).exists()
    assert PROBE.probe(dataset.uri, seen).version == 6


def test_a_commit_is_noticed_beyond_a_gap_that_cleaning_left_behind_a_tagged_version(dataset: Dataset) -> None:
    lance.dataset(dataset.uri).tags.create("kept", 2)
    seen = PROBE.first_probe(dataset.uri)
    dataset.write("overwrite")
    dataset.write("overwrite")
    dataset.clean()
    assert dataset.manifest(2).exists()
    assert not dataset.manifest(3).exists()
    assert PROBE.probe(dataset.uri, seen).version == 4


def test_a_commit_whose_writer_left_no_hint_is_noticed(dataset: Dataset) -> None:
    (hint,) = (dataset.path / VERSIONS).glob("*.json")
    kept, seen = hint.stat(), PROBE.first_probe(dataset.uri)
    content = hint.read_bytes()
    hint.rename(dataset.path / "hint")
    dataset.write("append")
    hint.unlink()
    (dataset.path / "hint").rename(hint)
    assert (hint.stat().st_ino, hint.stat().st_mtime_ns, hint.read_bytes()) == (kept.st_ino, kept.st_mtime_ns, content)
    assert PROBE.probe(dataset.uri, seen).version == 3


def test_a_dataset_made_again_in_its_place_is_noticed_at_the_same_version(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    shutil.rmtree(dataset.path)
    Dataset(dataset.path).write("append")
    found = PROBE.probe(dataset.uri, seen)
    assert (found.version, found.stamp != seen.stamp) == (2, True)


def test_a_lost_version_is_noticed(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    dataset.manifest(2).unlink()
    assert PROBE.probe(dataset.uri, seen).version == 1


def test_branches_and_tags_are_no_version(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    handle = lance.dataset(dataset.uri)
    handle.tags.create("kept", 1)
    lance.write_dataset(pa.table({"id": [9]}), handle.create_branch("tried"), mode="append")
    assert PROBE.probe(dataset.uri, seen) is seen


def test_from_a_version_alone_the_newest_is_found(dataset: Dataset) -> None:
    assert PROBE.probe(dataset.uri, ProbeState(1)) == PROBE.first_probe(dataset.uri)


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "first look"])
def test_what_is_no_dataset_is_refused(dataset: Dataset, known: bool) -> None:
    seen = PROBE.first_probe(dataset.uri)
    shutil.rmtree(dataset.path / VERSIONS)
    with pytest.raises(TableNotFound, match="is not a Lance dataset"):
        PROBE.probe(dataset.uri, seen) if known else PROBE.first_probe(dataset.uri)


def test_a_dataset_with_manifests_named_in_the_former_way_is_refused_by_name(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "old"), enable_v2_manifest_paths=False)
    with pytest.raises(StorageError, match="named as Lance named them before") as refused:
        PROBE.first_probe(str(tmp_path / "old"))
    assert refused.value.code == ErrorCode.LOG_CORRUPT
    assert "migrate_manifest_paths_v2" in refused.value.remedy
    dataset.migrate_manifest_paths_v2()  # type: ignore[no-untyped-call]
    assert PROBE.first_probe(str(tmp_path / "old")).version == 1


def test_what_cannot_be_read_is_reported_with_the_place(dataset: Dataset) -> None:
    seen = PROBE.first_probe(dataset.uri)
    shutil.rmtree(dataset.path)
    dataset.path.symlink_to(dataset.path.name)
    with pytest.raises(StorageError, match=f"cannot read {dataset.uri}"):
        PROBE.probe(dataset.uri, seen)
    with pytest.raises(StorageError, match=f"cannot read {dataset.uri}"):
        PROBE.first_probe(dataset.uri)
