"""Deletion vectors as the protocol has them: what is packed is read again, and damage is noticed."""

from __future__ import annotations

import uuid
import zlib
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

from iscp.adapters.delta.log.deletion_vectors import (
    GONE_ROWS_MAX,
    VECTOR_BYTES_MAX,
    load_vector,
    pack_vectors,
    read_vector,
    vectors_path,
)
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.storage.action_paths import Reach
from iscp.core.values.errors import ErrorCode, FileLost, PermanentError, StorageError

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
