"""Deletion vectors: which rows of a data file are gone, by their number in it (Delta protocol, "Deletion Vectors").

The bitmaps are those of Roaring's portable format of 64 bits, one after another in one file of each commit.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from array import array
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from pyroaring import BitMap64

from iscp.adapters.delta.log.actions import is_count
from iscp.adapters.delta.log.commits import Descriptor
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import (
    REACH,
    SHOWN_LENGTH_MAX,
    VECTOR_ID_LENGTH,
    Reach,
    lies_elsewhere,
    place_of_file,
)
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.values.errors import ErrorCode, FileLost, StorageError

VECTOR_BYTES_MAX = 64 * 1024**2
"""Bytes of a file's deletion vector; a table with a larger one is refused."""

GONE_ROWS_MAX = 16 * 1024**2
"""Rows of a table that its deletion vectors take out while they are in memory, 8 bytes each; where there are more,
Spark reads the table.
"""

_MAGIC, _FILE_VERSION = 1_681_511_377, b"\x01"
_FIRST_KEY_AT = 12

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHONS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_PYTHON, _FROM_PYTHON = str.maketrans(_Z85, _PYTHONS), str.maketrans(_PYTHONS, _Z85)

Places = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of rows in a file, ascending."""


def read_vector(uri: str, descriptor: Descriptor) -> Places:
    """Raises StorageError where it cannot be read, NotReadableHere where it is neither inline nor below the table, or
    takes out more than GONE_ROWS_MAX."""
    if descriptor.get("storageType") not in ("i", "u"):
        raise NotReadableHere
    bitmap = load_vector(uri, descriptor)
    if len(bitmap) > GONE_ROWS_MAX:
        raise NotReadableHere
    return np.array(bitmap.to_array(), np.int64)


def load_vector(uri: str, descriptor: Descriptor, reach: Reach = REACH) -> BitMap64:
    """Return the vector, of any storage type.

    Raises StorageError where it cannot be read or is not what it should be, PermanentError where it lies where its
    reader may not read.
    """
    where = f"the deletion vector of {uri} at {str(descriptor.get('pathOrInlineDv'))[:SHOWN_LENGTH_MAX]}"
    try:
        size = descriptor["sizeInBytes"]
        if not is_count(size) or size > VECTOR_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, of which up to {VECTOR_BYTES_MAX} are read")
        content = _inline(descriptor) if descriptor["storageType"] == "i" else _stored(uri, descriptor, reach)
        return _unpacked(content[:size], descriptor["cardinality"])
    except FileNotFoundError as error:
        file = error.filename or where
        remedy = "Restore it, or restore the table to a version without it"
        raise FileLost(f"{file} is not there, a deletion vector of {uri}", remedy=remedy) from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise StorageError(f"{where} cannot be read: {error}", code=ErrorCode.LOG_CORRUPT) from error


def _unpacked(content: bytes, cardinality: object) -> BitMap64:
    """Return the bitmap of one file's rows, of which there are less than 2 ** 32: so it takes no more memory than its
    bytes.
    """
    magic, count = struct.unpack_from("<iQ", content)
    if magic != _MAGIC:
        raise ValueError("it is of another format")
    if count > 1 or (count and struct.unpack_from("<I", content, _FIRST_KEY_AT)[0]):
        raise ValueError("it takes out rows beyond the first 2 ** 32 of a file")
    bitmap = BitMap64.deserialize(content[4:])
    if len(bitmap) != cardinality:
        raise ValueError(f"it takes out {len(bitmap)} rows, and the log says {cardinality}")
    return bitmap


def _inline(descriptor: Descriptor) -> bytes:
    text = descriptor["pathOrInlineDv"]
    if len(text) > 2 * VECTOR_BYTES_MAX:
        raise ValueError("it is longer than its size")
    return base64.b85decode(text.translate(_TO_PYTHON))


def _stored(uri: str, descriptor: Descriptor, reach: Reach) -> bytes:
    size, begin, path = descriptor["sizeInBytes"], descriptor.get("offset") or 0, vector_file(uri, descriptor, reach)
    if not is_count(begin):
        raise ValueError("its offset is no whole number")
    with storage_faults(f"read {path}"):
        content = files.read_part(path, begin, size + 8)
    if struct.unpack_from(">i", content)[0] != size:
        raise ValueError("its size is another one")
    found = content[4 : 4 + size]
    if struct.unpack_from(">I", content, 4 + size)[0] != zlib.crc32(found):
        raise ValueError("its checksum is another one")
    return found


def vector_file(uri: str, descriptor: Descriptor, reach: Reach = REACH) -> str:
    """Return the place of the file in which a vector is stored that is not inline.

    Raises StorageError; PermanentError where it lies where its reader may not read; and ValueError or KeyError where
    the descriptor names no file.
    """
    text = descriptor["pathOrInlineDv"]
    if descriptor["storageType"] == "p":
        return reach.follow(uri, text) if lies_elsewhere(text) else place_of_file(uri, text)
    if descriptor["storageType"] != "u":
        raise ValueError("it is stored in a way that is not known here")
    folder, coded = text[:-VECTOR_ID_LENGTH], text[-VECTOR_ID_LENGTH:]
    name = vectors_path(uuid.UUID(bytes=base64.b85decode(coded.translate(_TO_PYTHON))))
    return place_of_file(uri, f"{quote(folder)}/{name}" if folder else name)


def pack_vectors(name: uuid.UUID, vectors: Sequence[Places]) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the content of the file `vectors_path(name)`, and a descriptor for each of the vectors."""
    content, descriptors = bytearray(_FILE_VERSION), []
    coded = base64.b85encode(name.bytes).decode().translate(_FROM_PYTHON)
    for each in vectors:
        bitmap = BitMap64(array("Q", each.astype(np.uint64).tobytes()))
        body = struct.pack("<i", _MAGIC) + bitmap.serialize()
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": coded,
                "offset": len(content),
                "sizeInBytes": len(body),
                "cardinality": len(bitmap),
            }
        )
        content += struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    return bytes(content), descriptors


def vectors_path(name: uuid.UUID) -> str:
    """Return the path of a file of vectors below the table."""
    return f"deletion_vector_{name}.bin"
