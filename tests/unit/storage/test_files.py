"""File operations on local paths; S3 is tested in tests/integration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.storage import files
from tests.fakes.failing_disk import on_a_failing_disk


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


def test_a_file_that_cannot_be_synced_is_not_there_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(OSError, match="Input/output error"):
        on_a_failing_disk(lambda: files.create(str(path), b"first"))
    assert list(tmp_path.iterdir()) == []  # neither the file nor what was to become it
    assert files.create(str(path), b"second")
    with pytest.raises(OSError, match="Input/output error"):
        on_a_failing_disk(lambda: files.create(str(path), b"third"))
    assert not files.create(str(path), b"fourth")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"second", [path])
