"""How places of tables are spelled: local paths and places on S3, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.log.commits import commit_file, table_exists
from iscp.adapters.delta.source.delta_catalog import DeltaCatalog
from iscp.adapters.delta.storage.locations import local_path, place, refuse_no_path, s3_place
from iscp.core.values.errors import InvalidRequest


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
