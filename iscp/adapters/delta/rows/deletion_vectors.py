"""Deletion vectors: which rows of a data file are gone, by their number in it (Delta protocol, "Deletion Vectors").

The bitmaps are those of Roaring's portable format of 64 bits, one after another in one file of each commit.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap64

from iscp.adapters.delta.log.delta_errors import storage_faults
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import place
from iscp.core.errors import ErrorCode, StorageError

_MAGIC, _FILE_VERSION = 1_681_511_377, b"\x01"
_OF_UUID = 20
"""Characters that an id takes at the end of a path; those before it are a directory."""

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHONS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_PYTHON, _FROM_PYTHON = str.maketrans(_Z85, _PYTHONS), str.maketrans(_PYTHONS, _Z85)

Descriptor = Mapping[str, Any]
"""What an action says of its file's vector."""

Places = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of rows in a file, ascending."""


def read_vector(uri: str, descriptor: Descriptor) -> Places:
    """Raises StorageError where it cannot be read, NotReadableHere where it is neither inline nor below the table."""
    if descriptor.get("storageType") not in ("i", "u"):
        raise NotReadableHere
    where = f"the deletion vector of {uri} at {descriptor.get('pathOrInlineDv')}"
    try:
        if descriptor["storageType"] == "i":
            content = base64.b85decode(descriptor["pathOrInlineDv"].translate(_TO_PYTHON))
        else:
            content = _stored(uri, descriptor)
        if struct.unpack_from("<i", content)[0] != _MAGIC:
            raise ValueError("it is of another format")
        return np.array(BitMap64.deserialize(content[4 : descriptor["sizeInBytes"]]).to_array(), np.int64)
    except FileNotFoundError as error:
        raise StorageError(f"{where} is gone", remedy="Restore it, or resync the job") from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise StorageError(f"{where} cannot be read: {error}", code=ErrorCode.LOG_CORRUPT) from error


def _stored(uri: str, descriptor: Descriptor) -> bytes:
    name = _path(descriptor)
    with storage_faults(f"read {name}"):
        content, _ = files.read(f"{place(uri)}/{name}")
    size, begin = descriptor["sizeInBytes"], descriptor.get("offset") or 0
    found = content[begin + 4 : begin + 4 + size]
    if struct.unpack_from(">i", content, begin)[0] != size:
        raise ValueError("its size is another one")
    if struct.unpack_from(">I", content, begin + 4 + size)[0] != zlib.crc32(found):
        raise ValueError("its checksum is another one")
    return found


def _path(descriptor: Descriptor) -> str:
    text = str(descriptor["pathOrInlineDv"])
    folder, coded = text[:-_OF_UUID], text[-_OF_UUID:]
    name = vectors_path(uuid.UUID(bytes=base64.b85decode(coded.translate(_TO_PYTHON))))
    return f"{folder}/{name}" if folder else name


def pack_vectors(name: uuid.UUID, vectors: Sequence[Places]) -> tuple[bytes, list[dict[str, Any]]]:
    """The content of the file `vectors_path(name)`, and a descriptor for each of the vectors."""
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
    """Below the table."""
    return f"deletion_vector_{name}.bin"
