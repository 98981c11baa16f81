"""The probe finds the newest version of real datasets, whatever writers and cleaning leave."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.index.lance.version_probe import VersionProbe
from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import ErrorCode, StorageError, TableNotFound
from iscp.storage.locations import VERSIONS, manifest_name

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
