"""How places of tables are spelled: local paths and places on S3, and what is refused.

Names in a dataset are those that Lance itself gives.

Tables are distinguished by the file system or bucket that they lie on, without touching them.
"""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.log.commits import commit_file, table_exists
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.index.lance.word_counts import FOLDER
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.storage.delta_errors import delta_faults
from iscp.storage.files import missing_parent
from iscp.storage.locations import (
    DATASET_DIRECTORIES,
    VERSIONS,
    is_manifest,
    local_path,
    manifest_name,
    manifest_version,
    mount_points,
    mount_types,
    on_local_disk,
    place,
    refuse_no_path,
    s3_place,
    storage_place,
)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("//a/b", "/a/b"),
        ("/a/../b", "/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
    ],
)
def test_paths_and_file_uris_are_spelled_one_way(uri: str, path: str) -> None:
    assert local_path(uri) == Path(path)


def test_a_relative_path_is_taken_from_where_the_process_runs() -> None:
    assert local_path("tables/a") == Path.cwd() / "tables" / "a"


def test_a_place_on_s3_is_no_directory() -> None:
    assert local_path("s3://bucket/t") is None


@pytest.mark.parametrize("uri", ["gs://bucket/t", "abfss://c@a.dfs.core.windows.net/t", "hdfs://n/t"])
def test_other_stores_are_refused_by_name(uri: str) -> None:
    with pytest.raises(InvalidRequest, match=uri.split(":")[0]):
        local_path(uri)


@pytest.mark.parametrize("uri", ["/lake/a%20b", "file:///lake/a%20b", "/lake/a\\b"])
def test_a_path_that_delta_rs_reads_as_another_is_refused(uri: str) -> None:
    """It decodes escapes, so that the rows of one table would go into the log of another."""
    with pytest.raises(InvalidRequest, match="reads as another path") as refused:
        local_path(uri)
    assert (refused.value.field, bool(refused.value.remedy)) == ("table", True)


def test_blanks_and_signs_are_part_of_a_path(tmp_path: Path) -> None:
    uri = str(tmp_path / "a b#{c}?+ü")
    write_deltalake(str(local_path(f"file://{uri}")), pa.table({"a": [1]}))
    assert table_exists(uri)
    assert DeltaTable(uri).to_pyarrow_table().to_pylist() == [{"a": 1}]


SIGNS = [chr(code) for code in range(1, 128) if chr(code) not in "/%\\" and not chr(code).isalnum()]
NAMES = [f"a{sign}b" for sign in (*SIGNS, "é", "e\u0301", "\u202e", "\ufeff", "\u2028", "\x85", "\U0001f600")]
NAMES += ["a.", "...", "a ", " a", "-", "~", "C:", "{a,b}", "_a", ".a", "x" * 255, "é" * 127]


UNWRITTEN = [name for name in NAMES if any(sign in "[]^|\x7f" or ord(sign) < 32 for sign in name)]
WRITTEN = [name for name in NAMES if name not in UNWRITTEN]


@pytest.mark.parametrize("name", WRITTEN)
def test_whatever_is_in_the_name_above_it_a_table_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    uri = str(tmp_path / name / "t")
    assert missing_parent(uri) == ""
    write_deltalake(uri, pa.table({"a": [0, 1]}))
    write_deltalake(DeltaTable(uri), pa.table({"a": [1, 1]}), mode="overwrite", predicate="a = 1")
    assert sorted(DeltaTable(uri).to_pyarrow_table()["a"].to_pylist()) == [0, 1, 1]
    assert table_exists(uri)


@pytest.mark.parametrize("name", UNWRITTEN)
def test_a_name_that_delta_rs_does_not_write_below_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidRequest, match="delta-rs writes nothing") as refused:
        missing_parent(str(tmp_path / name / "t"))
    assert repr(name[1]) in refused.value.message
    assert "[ ] ^ |" in refused.value.remedy


def test_a_panic_of_the_library_is_an_error_that_stays(tmp_path: Path) -> None:
    (tmp_path / "[x]").mkdir()
    with pytest.raises(PermanentError, match="delta-rs gave up") as raised, delta_faults("make a table"):
        write_deltalake(str(tmp_path / "[x]" / "t"), pa.table({"a": [1]}))
    assert not raised.value.code.temporary


@pytest.mark.parametrize("uri", ["s3://lake/a/b", "s3a://lake/a/b", "s3://lake/a/b/", "s3://lake//a//b"])
def test_s3_is_spelled_one_way(uri: str) -> None:
    assert place(uri) == s3_place(uri) == DeltaCatalog(s3=True).normalize(uri) == "s3://lake/a/b"
    assert commit_file(uri, 7) == "s3://lake/a/b/_delta_log/00000000000000000007.json"


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "s3://lake", "s3://lake/", "s3://UPPER/a", "s3://la:1/a"])
def test_what_names_no_table_in_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DeltaCatalog(s3=True).normalize(uri)
    assert "s3://BUCKET/KEY" in refused.value.remedy


@pytest.mark.parametrize("part", ["a b", "a%20b", "a#b", "a?b", "..", ".", "a*", "a\nb", "é"])
def test_what_not_all_would_read_alike_is_refused(part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DeltaCatalog(s3=True).normalize(f"s3://lake/{part}/b")
    assert "letters, digits" in refused.value.remedy


def test_a_node_without_s3_says_what_it_lacks() -> None:
    with pytest.raises(InvalidRequest) as refused:
        DeltaCatalog().normalize("s3://lake/a")
    assert "storage.s3.region" in refused.value.remedy


@pytest.mark.parametrize("path", ["/lake/a\0b", "/lake/" + "x" * 256, "/lake/" + "é" * 128])
def test_what_no_file_system_holds_is_no_path(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DeltaCatalog().normalize(path)
    assert refused.value.remedy
    refuse_no_path(Path("/lake/" + "x" * 255))


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


LINES = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    "30 22 0:5 / /proc rw - proc proc rw",
    "31 22 0:44 / /mnt/a rw - nfs server:/a rw",
    "32 31 0:45 / /mnt/a/deep rw - nfs server:/deep rw",
    r"33 22 0:46 / /mnt/with\040blank rw - nfs server:/b rw",
    "",
)


def test_file_systems_are_read_as_linux_lists_them_the_deepest_first() -> None:
    assert mount_points(LINES) == ("/mnt/with blank", "/mnt/a/deep", "/mnt/a", "/proc")


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("/proc/self", "/proc"),
        ("file:///proc/self", "/proc"),
        ("/proc", "/proc"),
        ("/procedures", "/"),
        ("s3://lake/a/b", "s3://lake"),
        ("s3a://lake/a", "s3://lake"),
        ("", "/"),
    ],
)
def test_a_table_lies_where_its_path_says(uri: str, place: str) -> None:
    assert storage_place(uri) == place


def test_only_a_file_system_that_no_other_machine_writes_to_is_a_local_disk() -> None:
    assert mount_types(LINES) == {
        "/": "ext4",
        "/proc": "proc",
        "/mnt/a": "nfs",
        "/mnt/a/deep": "nfs",
        "/mnt/with blank": "nfs",
    }
    assert not on_local_disk("/proc/self")
    assert not on_local_disk("s3://lake/a")
