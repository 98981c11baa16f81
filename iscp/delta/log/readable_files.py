"""Deletion vectors, and checks of what lies in or around a table's directory: files that Spark may be made to read, and
other tables and indexes.
"""

from __future__ import annotations

import base64
import posixpath
import struct
import uuid
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from pyroaring import BitMap64

from iscp.delta.log.actions import Action, FileKey, is_count, key_of_action, key_of_file
from iscp.delta.log.commits import Descriptor, commit_stamp, list_log, log_of, read_actions, version_of
from iscp.delta.log.live_files import FOLLOWED_MAX, ListFiles, NotReadableHere
from iscp.model.job.start_rule import TargetLog
from iscp.model.values.errors import ErrorCode, FileLost, StorageError
from iscp.ports.source import ChangesUnavailableError
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import VERSIONS, is_manifest, on_s3, place
from iscp.storage.regular_files import (
    REACH,
    SHOWN_LENGTH_MAX,
    VECTOR_ID_LENGTH,
    Reach,
    lies_elsewhere,
    place_of_file,
    require_files,
)
from iscp.system.recent_values import RecentValues

# --- deletion vectors -------------------------------------------------------------------------------------------------
# A deletion vector says which rows of a data file are gone, by their number in it (Delta protocol, "Deletion Vectors").
# The bitmaps are those of Roaring's portable format of 64 bits, one after another in one file of each commit.

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


# --- files that Spark may read ----------------------------------------------------------------------------------------
# The files of a table, and what takes rows out of them, are gone over before Spark is to read them. Spark opens
# whatever a log names, with the rights of the node: a pipe holds a task up for ever, and a file that wants more memory
# than there is ends the JVM. Listing the files costs with the table: so what is known follows the table's commits.

TABLES_CACHED_MAX = 64
"""Tables whose files are remembered from one reading to the next; those of the longest unused are listed again."""

FILES_CACHED_MAX = 20_000
"""Files of such a table; those of a larger one are listed each time."""

Vector = Mapping[str, Any] | None
Named = tuple[str, Vector]
"""A file's path, as the log has it, and its deletion vector."""


Checkpoints = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The files of a version; `stamp`: of its commit; `checkpoints`: the log's newest, by names and stamps."""

    version: int
    stamp: tuple[int, ...] | None
    checkpoints: Checkpoints
    files: Mapping[FileKey, Named]


class ReadableFiles:
    """Safe for threads: what is known of a table is replaced whole."""

    def __init__(self, tables_max: int = TABLES_CACHED_MAX, files_max: int = FILES_CACHED_MAX) -> None:
        self._files_max = files_max
        self._known: RecentValues[str, _Listed] = RecentValues(tables_max)

    def require(self, uri: str, version: int, list_files: ListFiles, list_by_spark: ListFiles) -> None:
        """Raise StorageError or PermanentError where a file of a version is none that may be read; and as ListFiles.

        Each is gone over each time, as whoever writes the table may have put something else in its place. A checkpoint
        may say other things than the commits, or than another one of its version, of which Spark chooses: then Spark
        lists the files itself.
        """
        checkpoints = _newest_checkpoints(uri)
        listed = self._recall(uri, version, checkpoints)
        if listed is None:
            first = version_of(checkpoints[0][0], checkpoints=True) if checkpoints else None
            certain = len(checkpoints) <= 1 and (first or 0) <= version
            found = (list_files if certain else list_by_spark)(uri, version)
            by_key = {key_of_file(*named): named for named in found}
            listed = _Listed(version, commit_stamp(uri, version), checkpoints, by_key)
        require_readable(uri, listed.files.values())
        if len(listed.files) <= self._files_max:
            self._known.put(uri, listed)
        else:
            self._known.take(uri)

    def _recall(self, uri: str, version: int, checkpoints: Checkpoints) -> _Listed | None:
        """Return what is cached of the files of that version; None: they have to be listed."""
        known = self._known.get(uri)
        if known is None or known.checkpoints != checkpoints or commit_stamp(uri, known.version) != known.stamp:
            return None
        if known.version == version:
            return known
        return _follow(uri, known, version) if 0 < version - known.version <= FOLLOWED_MAX else None


def _newest_checkpoints(uri: str) -> Checkpoints:
    return tuple((name, files.stamp(f"{log_of(uri)}/{name}")) for name in list_log(uri).checkpoint)


def _follow(uri: str, known: _Listed, version: int) -> _Listed | None:
    """Return the files of the later version. None: a commit is not there any more."""
    followed = dict(known.files)
    for each in range(known.version + 1, version + 1):
        if (actions := read_actions(uri, each)) is None:
            return None
        for action in actions:
            if "remove" in action:
                followed.pop(key_of_action(action["remove"]), None)
        for add in (action["add"] for action in actions if "add" in action):
            followed[key_of_action(add)] = add["path"], add.get("deletionVector")
    return _Listed(version, commit_stamp(uri, version), known.checkpoints, followed)


READABLE_FILES = ReadableFiles()
"""The files that this process has found readable."""


def require_readable(uri: str, table_files: Iterable[Named]) -> None:
    """Raise StorageError or PermanentError where a file, or its deletion vector, is none that may be read."""
    named = list(table_files)
    require_files(uri, (path for path, _ in named))
    for _, vector in named:
        if vector is not None:
            load_vector(uri, vector)


def require_readable_commits(uri: str, first: int, last: int) -> None:
    """Require all files that these commits name, as `require_readable` does.

    Raises as that one, and ChangesUnavailableError where a commit is gone.
    """
    for version in range(first, last + 1):
        actions = read_actions(uri, version)
        if actions is None:
            raise ChangesUnavailableError(f"version {version} is not in the log any more")
        require_readable(uri, _named_by(actions))


def _named_by(actions: Iterable[Action]) -> Iterable[Named]:
    """Yield the files that the actions name, with the vectors of added ones: those of removed files may have gone
    meanwhile.
    """
    for action in actions:
        for kind, body in action.items():
            if kind in ("add", "remove", "cdc"):
                yield body["path"], body.get("deletionVector") if kind == "add" else None


# --- tables around a place --------------------------------------------------------------------------------------------
# Delta tables and indexes are found in whose directory a place lies, and those in its own, at a bounded cost.

LOOKED_AT_MAX = 1_000
"""Names below a new target among which tables and indexes are searched; one beyond them is not found."""

STAGED = "iscp-staged"
"""The prefix of directories in which rows wait for their commit: a writer that died leaves their log."""

LOG = "_delta_log"
"""The directory of a table in which its log lies."""


def logs_at(uri: str) -> frozenset[TargetLog]:
    """Return the kinds of logs that lie at `uri` itself. Raises OSError, InvalidRequest."""
    path = place(uri)
    table = {TargetLog.DELTA} if files.names(log_of(path)) else set()
    return frozenset(table | {TargetLog.LANCE} if _is_index(path) else table)


def table_around(uri: str) -> str:
    """Return a table or index above or below `uri`, which itself may be one; empty: none was found. Raises OSError,
    InvalidRequest.
    """
    path = place(uri)
    above, roots = posixpath.dirname(path), 3 if on_s3(path) else 1
    while above.count("/") >= roots and above != "/":
        if files.names(log_of(above)) or _is_index(above):
            return above
        above = posixpath.dirname(above)
    tried = {""}
    for name in files.names_below(path, LOOKED_AT_MAX):
        table, _, rest = name.partition(f"/{LOG}")
        if rest[:1] in ("", "/") and table != name and not table.startswith(STAGED):
            return f"{path}/{table}"
        index = name.partition(f"/{VERSIONS}")[0]
        if index != name and index not in tried:
            tried.add(index)
            if _is_index(f"{path}/{index}"):
                return f"{path}/{index}"
    return ""


def _is_index(path: str) -> bool:
    """Return whether a Lance dataset is there, as indexes are."""
    return any(is_manifest(name) for name in files.names(f"{path}/{VERSIONS}"))
