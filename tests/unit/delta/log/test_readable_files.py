"""The files that Spark is to open are gone over each time, and listed only where nobody knows them any more.

Deletion vectors as the protocol has them: what is packed is read again, and damage is noticed.
"""

from __future__ import annotations

import os
import shutil
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from iscp.delta.log.live_files import NotReadableHere, list_live_files
from iscp.delta.log.readable_files import (
    GONE_ROWS_MAX,
    VECTOR_BYTES_MAX,
    Named,
    ReadableFiles,
    load_vector,
    pack_vectors,
    read_vector,
    require_readable_commits,
    vectors_path,
)
from iscp.model.values.errors import ErrorCode, FileLost, IscpError, PermanentError, StorageError
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.regular_files import Reach
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


VECTORS = [np.array(each, np.int64) for each in ([0], [3, 4, 7, 11, 18, 29], range(100_000), [5, 2**32 - 1])]


def stored(root: Path) -> list[dict[str, object]]:
    name = uuid.uuid4()
    content, descriptors = pack_vectors(name, VECTORS)
    (root / vectors_path(name)).write_bytes(content)
    return descriptors


def test_vectors_of_one_file_are_read_again(tmp_path: Path) -> None:
    for descriptor, vector in zip(stored(tmp_path), VECTORS, strict=True):
        assert descriptor["cardinality"] == len(vector)
        assert np.array_equal(read_vector(str(tmp_path), descriptor), vector)


def test_an_inline_vector_of_another_writer_is_read(tmp_path: Path) -> None:
    """As the tests of Delta's kernel have it: rows 3, 4, 7, 11, 18 and 29."""
    inline = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    descriptor = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 44, "cardinality": 6}
    assert read_vector(str(tmp_path), descriptor).tolist() == [3, 4, 7, 11, 18, 29]


def test_a_vector_at_an_absolute_path_is_left_to_spark(tmp_path: Path) -> None:
    (descriptor, *_) = stored(tmp_path)
    (path,) = tmp_path.iterdir()
    for name in (str(path), f"file://{path}"):
        with pytest.raises(NotReadableHere):
            read_vector(str(tmp_path), {**descriptor, "storageType": "p", "pathOrInlineDv": name})


def test_a_vector_that_is_gone_says_so(tmp_path: Path) -> None:
    (descriptor, *_) = stored(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    with pytest.raises(FileLost, match="is not there"):
        read_vector(str(tmp_path), descriptor)


@pytest.mark.parametrize("place", [1, 5, 9, 20, 30])
def test_damage_is_noticed(tmp_path: Path, place: int) -> None:
    descriptor = stored(tmp_path)[0]
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(StorageError) as raised:
        read_vector(str(tmp_path), descriptor)
    assert raised.value.code is ErrorCode.LOG_CORRUPT


def test_a_cut_file_is_noticed(tmp_path: Path) -> None:
    descriptor = stored(tmp_path)[-1]
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StorageError):
        read_vector(str(tmp_path), descriptor)


ODD: dict[str, tuple[dict[str, object], str]] = {
    "a size without bound": ({"sizeInBytes": VECTOR_BYTES_MAX + 1}, "are read"),
    "a size below zero": ({"sizeInBytes": -1}, "are read"),
    "a size that is true": ({"sizeInBytes": True}, "are read"),
    "an offset below zero": ({"offset": -5}, "offset"),
    "other rows than the log says": ({"cardinality": 2}, "takes out 1 rows"),
    "a way of storage that nobody knows": ({"storageType": "x"}, "not known here"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_descriptor_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    changed, why = ODD[name]
    with pytest.raises(StorageError, match=why) as raised:
        load_vector(str(tmp_path), {**stored(tmp_path)[0], **changed})
    assert raised.value.code is ErrorCode.LOG_CORRUPT


def test_rows_beyond_what_a_file_can_have_are_refused(tmp_path: Path) -> None:
    name = uuid.uuid4()
    content, (descriptor,) = pack_vectors(name, [np.array([2**62], np.int64)])
    (tmp_path / vectors_path(name)).write_bytes(content)
    with pytest.raises(StorageError, match=r"beyond the first 2 \*\* 32 of a file"):
        read_vector(str(tmp_path), descriptor)


def test_more_rows_than_are_held_here_are_left_to_spark(tmp_path: Path) -> None:
    name, bitmap = uuid.uuid4(), BitMap64()
    bitmap.add_range(0, GONE_ROWS_MAX + 1)
    body = (1_681_511_377).to_bytes(4, "little") + bitmap.serialize()
    assert len(body) < VECTOR_BYTES_MAX
    content = b"\x01" + len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    (tmp_path / vectors_path(name)).write_bytes(content)
    _, (like,) = pack_vectors(name, VECTORS[:1])
    with pytest.raises(NotReadableHere):
        read_vector(str(tmp_path), {**like, "sizeInBytes": len(body), "cardinality": len(bitmap)})


def test_an_absolute_vector_goes_as_far_as_all_who_may_have_the_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "evil" / "t")
    (tmp_path / "other").mkdir()
    (descriptor, *_) = stored(tmp_path / "other")
    (path,) = (tmp_path / "other").iterdir()
    absolute = {**descriptor, "storageType": "p", "pathOrInlineDv": str(path)}
    assert len(load_vector(uri, absolute, Reach())) == 1
    with pytest.raises(PermanentError, match="does not lie below a root"):
        load_vector(uri, absolute, Reach([[str(tmp_path / "evil")], [str(tmp_path)]]))
