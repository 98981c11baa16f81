"""Deletion vectors as the protocol has them: what is packed is read again, and damage is noticed."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.deletion_vectors import pack_vectors, read_vector, vectors_path
from iscp.core.errors import ErrorCode, StorageError

VECTORS = [np.array(each, np.int64) for each in ([0], [3, 4, 7, 11, 18, 29], range(100_000), [5, 2**33 + 1])]


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
    with pytest.raises(StorageError, match="is gone"):
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
