"""Places on local paths and S3: how they are spelled, and what a local one answers (S3 itself: integration)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.adapters.delta.log.commits import commit_file
from iscp.adapters.delta.source.delta_catalog import DeltaCatalog
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import place, s3_place
from iscp.core.errors import InvalidRequest


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


def test_a_local_file_and_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "d" / "f"
    assert not files.exists(str(file))
    assert files.stamp(str(file)) == ()
    assert files.names(str(file.parent)) == []
    file.parent.mkdir()
    file.write_bytes(b"content")
    os.utime(file, (5, 5))
    assert files.read(str(file)) == (b"content", 5.0)
    assert files.stamp(str(file)) == (file.stat().st_ino, 5_000_000_000, 7)
    assert files.names(str(file.parent)) == ["f"]
    assert files.parent_is_there(str(file))
    files.remove_tree(str(file.parent))
    assert not files.parent_is_there(str(file))
    with pytest.raises(FileNotFoundError):
        files.read(str(file))
