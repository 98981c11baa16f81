"""Notes beside the data of a local table; those on S3 are tested in tests/integration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.adapters.delta.storage.target_notes import read_note, write_note
from iscp.core.values.errors import StorageError


def test_a_note_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    uri = str(tmp_path)
    assert read_note(uri, "n", 100) is None
    for content in (b"one", b"another"):
        write_note(uri, "n", content)
        assert read_note(uri, "n", len(content)) == content
    assert os.listdir(uri) == ["_iscp-n.json"]
    with pytest.raises(StorageError, match="more than the 3"):
        read_note(uri, "n", 3)


def test_a_link_is_neither_followed_nor_written_through(tmp_path: Path) -> None:
    secret, table = tmp_path / "secret", tmp_path / "table"
    secret.write_text("s")
    table.mkdir()
    (table / "_iscp-n.json").symlink_to(secret)
    with pytest.raises(StorageError, match="is a link"):
        read_note(str(table), "n", 100)
    write_note(str(table), "n", b"own")
    assert secret.read_text() == "s"
    assert read_note(str(table), "n", 100) == b"own"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "_iscp-n.json")
    with pytest.raises(StorageError):
        read_note(str(tmp_path), "n", 100)


def test_a_directory_that_is_gone_is_a_fault_of_the_storage(tmp_path: Path) -> None:
    assert read_note(str(tmp_path / "gone"), "n", 100) is None
    with pytest.raises(StorageError, match="is gone"):
        write_note(str(tmp_path / "gone"), "n", b"x")
