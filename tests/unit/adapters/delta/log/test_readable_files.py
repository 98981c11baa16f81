"""The files that Spark is to open are gone over each time, and listed only where nobody knows them any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.log.live_files import list_live_files
from iscp.adapters.delta.log.readable_files import Named, ReadableFiles, require_readable_commits
from iscp.core.values.errors import IscpError
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.commit_files import commit_path


class Lister:
    """Lists files as they are; `listed` are the versions, with who listed them."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, int]] = []

    def by(self, who: str) -> Callable[[str, int], list[Named]]:
        def list_files(uri: str, version: int) -> list[Named]:
            self.listed.append((who, version))
            return list_live_files(uri, version)

        return list_files

    def require(self, found: ReadableFiles, uri: str, version: int) -> list[tuple[str, int]]:
        """Return who listed the files of which version for this."""
        before = len(self.listed)
        found.require(uri, version, self.by("here"), self.by("spark"))
        return self.listed[before:]


def append(uri: str, number: int) -> Path:
    """Return the file that this adds."""
    before = {*DeltaTable(uri).file_uris()} if os.path.isdir(uri) else set()
    write_deltalake(uri, pa.table({"id": [number]}), mode="append")
    (path,) = {*DeltaTable(uri).file_uris()} - before
    return Path(path)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of versions 0 to 2."""
    uri = str(tmp_path / "t")
    for number in range(3):
        append(uri, number)
    return uri


def test_files_are_listed_once_and_followed_by_commits(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    assert lister.require(found, uri, 1) == [("here", 1)]
    append(uri, 3)
    assert lister.require(found, uri, 3) == []
    assert lister.require(found, uri, 3) == []
    assert lister.require(found, uri, 2) == [("here", 2)]


def test_what_was_put_in_the_place_of_a_known_file_is_refused(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    lister.require(found, uri, 2)
    added = append(uri, 3)
    lister.require(found, uri, 3)
    replace_by_pipe(added)
    with pytest.raises(IscpError, match="pipe"):
        lister.require(found, uri, 3)
    assert len(lister.listed) == 1


def test_a_file_that_a_later_commit_removes_is_no_file_of_the_table(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    lister.require(found, uri, 2)
    added = append(uri, 3)
    lister.require(found, uri, 3)
    DeltaTable(uri).delete("id = 3")
    replace_by_pipe(added)
    assert lister.require(found, uri, 4) == []
    with pytest.raises(IscpError, match="pipe"):
        lister.require(found, uri, 3)


def test_a_table_in_the_place_of_another_is_listed(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    lister.require(found, uri, 2)
    shutil.rmtree(uri)
    for number in range(3):
        append(uri, number)
    assert lister.require(found, uri, 2) == [("here", 2)]


def test_a_commit_that_is_gone_leads_to_a_list(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    assert lister.require(found, uri, 2) == [("here", 2)]
    append(uri, 3)
    append(uri, 4)
    commit_path(uri, 3).rename(f"{uri}/away")
    with pytest.raises(IscpError):  # nobody can list such a version
        lister.require(found, uri, 4)
    assert lister.listed[-1] == ("here", 4)


def test_a_new_checkpoint_may_say_other_things_than_the_commits(uri: str) -> None:
    lister, found = Lister(), ReadableFiles()
    lister.require(found, uri, 2)
    DeltaTable(uri).create_checkpoint()
    assert lister.require(found, uri, 2) == [("here", 2)]
    assert lister.require(found, uri, 1) == [("spark", 1)]
    log = Path(uri) / "_delta_log"
    shutil.copy(log / f"{2:020d}.checkpoint.parquet", log / f"{2:020d}.checkpoint.0-1-2-3.parquet")
    assert lister.require(found, uri, 2) == [("spark", 2)]


def test_a_large_table_and_one_that_was_not_read_for_long_are_listed_again(uri: str, tmp_path: Path) -> None:
    lister = Lister()
    small = ReadableFiles(files_max=2)
    for _ in range(2):
        assert lister.require(small, uri, 2) == [("here", 2)]
    assert [lister.require(small, uri, 1) for _ in range(2)] == [[("here", 1)], []]
    others = [str(tmp_path / name) for name in "ab"]
    for other in others:
        append(other, 1)
    found = ReadableFiles(tables_max=2)
    for each in (uri, others[0], others[1]):
        lister.require(found, each, 0)
    assert [lister.require(found, each, 0) for each in (others[0], others[1], uri)] == [[], [], [("here", 0)]]


def test_all_files_that_commits_name_have_to_be_readable(uri: str) -> None:
    (first, *_) = sorted(DeltaTable(uri, version=0).file_uris())
    DeltaTable(uri).delete("id = 0")
    require_readable_commits(uri, 0, 3)
    replace_by_pipe(Path(first))
    require_readable_commits(uri, 1, 2)
    for version in (0, 3):  # which adds it, and which removes it
        with pytest.raises(IscpError, match="pipe"):
            require_readable_commits(uri, version, version)
    commit_path(uri, 1).unlink()
    with pytest.raises(ChangesUnavailableError, match="version 1 is not in the log any more"):
        require_readable_commits(uri, 1, 2)
