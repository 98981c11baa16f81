"""What a local place answers (S3 itself: integration)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.adapters.delta.storage import files


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
