"""Names in a dataset are those that Lance itself gives."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.adapters.delta.storage.dataset_names import (
    DATASET_DIRECTORIES,
    VERSIONS,
    is_manifest,
    manifest_name,
    manifest_version,
)
from iscp.index.lance.word_counts import FOLDER

ROWS = pa.table({"id": range(100)})


def test_manifests_have_the_names_that_lance_gives_them(tmp_path: Path) -> None:
    for mode in ("create", "append", "append"):
        lance.write_dataset(ROWS, str(tmp_path), mode=mode)
    names = {path.name for path in (tmp_path / VERSIONS).glob("*.manifest")}
    assert names == {manifest_name(version) for version in (1, 2, 3)}
    assert {manifest_version(name) for name in names} == {1, 2, 3}


def test_the_directories_of_an_index_are_all_known(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, str(tmp_path))
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 3")
    assert {FOLDER, *(path.name for path in tmp_path.iterdir())} == {*DATASET_DIRECTORIES}


@pytest.mark.parametrize("name", ["latest_version_hint.json", "7.manifest", "d7.manifest", f"{2**64}.manifest", ""])
def test_other_files_are_no_version(name: str) -> None:
    assert manifest_version(name) is None


def test_a_manifest_is_one_by_whatever_way_it_was_named(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, str(tmp_path / "old"), enable_v2_manifest_paths=False)
    dataset = lance.write_dataset(ROWS, str(tmp_path / "new"))
    lance.LanceDataset.commit(dataset, lance.LanceOperation.Append([]), read_version=1, detached=True)
    found = [path.name for path in tmp_path.rglob("*.manifest")]
    assert len(found) == 3
    assert all(map(is_manifest, found))
    assert {manifest_version(name) for name in found} == {1, None}
    assert not is_manifest("latest_version_hint.json")
