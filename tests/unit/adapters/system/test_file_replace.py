"""A file is what it was until it is what it is to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.adapters.system.file_replace import replace_file


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_it_has_the_new_content_and_who_may_read_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.pem"
    path.write_bytes(b"before")
    replace_file(path, b"after", mode)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"after", mode)
    assert list(tmp_path.iterdir()) == [path]


def test_where_it_cannot_be_written_the_fault_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing" / "a.pem", b"after")
