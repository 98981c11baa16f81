"""Checks of a Lance dataset before Lance opens it, which opens whatever lies there and parses it without a bound; and a
probe whether a dataset has moved.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from functools import lru_cache
from stat import S_ISDIR, S_ISLNK
from struct import Struct
from typing import NamedTuple

import pyarrow as pa

from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import ErrorCode, StorageError, TableNotFound
from iscp.storage import files
from iscp.storage.delta_errors import storage_error
from iscp.storage.locations import (
    DATA,
    DATASET_DIRECTORIES,
    DELETIONS,
    INDICES,
    S3,
    VERSION_HINT,
    VERSIONS,
    is_manifest,
    manifest_name,
    manifest_version,
    place,
)
from iscp.storage.regular_files import RefusedFileError, require_regular, require_size
from iscp.storage.table_files import OddArrowError, check_arrow

# --- the manifest -----------------------------------------------------------------------------------------------------
# A manifest is Protobuf (https://lance.org/format/table/): the columns, the fragments, and, in a section of its own,
# the segments of indexes. Lance follows the parents of columns by recursion, reads files at any place that a manifest
# names as a base, and makes a list of all numbers that a bitmap of a few bytes stands for. So what would let Lance read
# elsewhere is refused, and what could take all memory or overflow a stack is counted first.

MANIFEST_BYTES_MAX = 64 * 1024**2
"""Bytes of a manifest, which has some 150 for each fragment and 300 for each segment; a larger one is refused."""

COLUMNS_MAX = 10_000
"""Columns of a dataset, those within others among them; a manifest with more is refused."""

DEPTH_MAX = 64
"""Levels to which columns may lie within each other; a manifest with more is refused."""

TYPE_LENGTH_MAX = 1_024
"""Bytes of the name of a column's type; a longer one, which could nest types, is refused."""

FRAGMENTS_MAX = 100_000
"""Fragments of a dataset, and numbers of fragments of one segment; a manifest with more is refused."""

FRAGMENT_ROWS_MAX = 2**31 - 1
"""Rows of a fragment; a manifest that claims more is refused."""

SEGMENTS_MAX = 10_000
"""Segments of all indexes of a dataset; a manifest with more is refused."""

_FOOTER = Struct("<qHH4s")
_LENGTH = Struct("<I")
_PAIR = Struct("<HH")
_HALF = Struct("<H")
_MAGIC = b"LANC"
_COLUMN, _FRAGMENT, _INDEX_SECTION, _BASES = 1, 2, 6, 18
_ID, _PARENT, _TYPE, _DICTIONARY = 3, 4, 5, 8
_FRAGMENT_ID, _DATA_FILE, _DELETION, _PHYSICAL_ROWS = 1, 2, 3, 4
_DATA_PATH = 1
_FILE_TYPE, _READ_VERSION, _FILE_ID = 1, 2, 3
_FRAGMENT_BITMAP, _SEGMENT = 5, 1
_UUID, _UUID_BYTES, _UUID_LENGTH = 1, 1, 16
_BASE_ID = 9
_COOKIE_PLAIN, _COOKIE_RUNS = 12346, 12347
_OFFSETS_FROM, _ARRAY_MAX, _BITMAP_BYTES, _CONTAINERS_MAX = 4, 4_096, 8_192, 65_536
_VARINT_BYTES_MAX = 10
_PLAIN_NAME = re.compile(r"[\w-]+\.lance", re.ASCII)

Value = int | memoryview


class OddManifestError(ValueError):
    """A manifest that Lance is not to open; the text says why."""


class ManifestFiles(NamedTuple):
    """The files that a version has, by their names in its dataset: of rows, and of deleted rows; and the directories of
    its segments.
    """

    data: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


def check_manifest(content: bytes) -> ManifestFiles:
    """Return the files that a manifest has, by its whole content.

    Raises OddManifestError for one that is none of an index.
    """
    data: list[str] = []
    deletions: list[str] = []
    segments: tuple[str, ...] = ()
    columns: dict[int, int] = {}
    fragments = 0
    for number, value in _message_at(content, _metadata_place(content)):
        if number == _COLUMN:
            _add_column(_bytes(value), columns)
        elif number == _FRAGMENT:
            fragments += 1
            data += _data_of(_bytes(value))
            deletions += _deletions_of(_bytes(value))
        elif number == _BASES:
            raise OddManifestError("names another place for files (base_paths), and an index has all below it")
        elif number == _INDEX_SECTION:
            segments = _checked_segments(content, _number(value))
        if len(columns) > COLUMNS_MAX or fragments > FRAGMENTS_MAX:
            raise OddManifestError(f"has more than {COLUMNS_MAX} columns or {FRAGMENTS_MAX} fragments")
    _check_depth(columns)
    return ManifestFiles(tuple(data), tuple(deletions), segments)


def _metadata_place(content: bytes) -> int:
    if len(content) < _FOOTER.size:
        raise OddManifestError("is too short")
    place, _, _, magic = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
    if magic != _MAGIC:
        raise OddManifestError("does not end as one of Lance's does")
    return int(place)


def _message_at(content: bytes, place: int) -> Iterator[tuple[int, Value]]:
    """Yield the fields of the message that stands at a place, after its length."""
    begin = place + _LENGTH.size
    if place < 0 or begin > len(content):
        raise OddManifestError("names a place beyond its end")
    (length,) = _LENGTH.unpack_from(content, place)
    if begin + length > len(content):
        raise OddManifestError("has a part that goes beyond its end")
    return _fields(memoryview(content)[begin : begin + length])


def _fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the numbers of fields of a message, and their values, those within others as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield tag >> 3, number
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise OddManifestError("is not Protobuf as Lance writes it")
        if at + length > len(message):
            raise OddManifestError("has a value that goes beyond its end")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    if at < len(message) and message[at] < 128:
        return message[at], at + 1
    value = shift = 0
    for index in range(at, min(len(message), at + _VARINT_BYTES_MAX)):
        byte = message[index]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, index + 1
        shift += 7
    raise OddManifestError("has a number without an end")


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise OddManifestError("has a number where a message belongs")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise OddManifestError("has a message where a number belongs")
    return value


def _add_column(message: memoryview, columns: dict[int, int]) -> None:
    own = parent = 0
    for number, value in _fields(message):
        if number == _ID:
            own = _signed(_number(value))
        elif number == _PARENT:
            parent = _signed(_number(value))
        elif number == _TYPE and len(_bytes(value)) > TYPE_LENGTH_MAX:
            raise OddManifestError(f"has a type of more than {TYPE_LENGTH_MAX} bytes")
        elif number == _DICTIONARY:
            raise OddManifestError("has a dictionary in it, as Lance has not written for years")
    if own in columns:
        raise OddManifestError(f"has two columns of the number {own}")
    columns[own] = parent


def _signed(number: int) -> int:
    """Return a number of 32 bits, which Protobuf extends to 64 where it is negative."""
    low = number & 0xFFFFFFFF
    return low - 2**32 if low >= 2**31 else low


def _check_depth(columns: dict[int, int]) -> None:
    for column in columns:
        for _ in range(DEPTH_MAX):
            column = columns.get(column, -1)
            if column < 0:
                break
        else:
            raise OddManifestError(f"has columns within each other to more than {DEPTH_MAX} levels")


def _data_of(message: memoryview) -> Iterator[str]:
    """Yield the names of the files with a fragment's rows."""
    for number, value in _fields(message):
        if number == _DATA_FILE:
            for field, name in _fields(_bytes(value)):
                if field == _DATA_PATH:
                    text = str(_bytes(name), errors="replace")
                    if not _PLAIN_NAME.fullmatch(text):  # Lance would read it by another name
                        raise OddManifestError("has a file of rows whose name is none of Lance's")
                    yield f"{DATA}/{text}"


def _deletions_of(message: memoryview) -> Iterator[str]:
    """Yield the name of the file with a fragment's deleted rows, if it has one."""
    own, deletion = 0, None
    for number, value in _fields(message):
        if number == _PHYSICAL_ROWS and _number(value) > FRAGMENT_ROWS_MAX:
            raise OddManifestError(f"has a fragment of more than {FRAGMENT_ROWS_MAX} rows")
        if number == _FRAGMENT_ID:
            own = _number(value)
        elif number == _DELETION:
            deletion = {field: _number(each) for field, each in _fields(_bytes(value))}
    if deletion is not None:
        kind = "bin" if deletion.get(_FILE_TYPE) else "arrow"
        yield f"{DELETIONS}/{own}-{deletion.get(_READ_VERSION, 0)}-{deletion.get(_FILE_ID, 0)}.{kind}"


def _checked_segments(content: bytes, place: int) -> tuple[str, ...]:
    """Return the directories of the segments that stand at a place."""
    segments: list[str] = []
    for number, segment in _message_at(content, place):
        if number != _SEGMENT:
            continue
        if len(segments) >= SEGMENTS_MAX:
            raise OddManifestError(f"has more than {SEGMENTS_MAX} segments of indexes")
        for field, value in _fields(_bytes(segment)):
            if field == _BASE_ID:
                raise OddManifestError("has a segment of an index at another place (base_id)")
            if field == _FRAGMENT_BITMAP and cardinality(_bytes(value), FRAGMENTS_MAX) > FRAGMENTS_MAX:
                raise OddManifestError(f"has a segment of more than {FRAGMENTS_MAX} fragments")
            if field == _UUID:
                segments.append(f"{INDICES}/{_uuid_of(_bytes(value))}")
    return tuple(segments)


def _uuid_of(message: memoryview) -> uuid.UUID:
    for number, value in _fields(message):
        if number == _UUID_BYTES and len(found := _bytes(value)) == _UUID_LENGTH:
            return uuid.UUID(bytes=bytes(found))
    raise OddManifestError("has a segment whose UUID is none")


def cardinality(bitmap: memoryview, most: int) -> int:
    """Return how many numbers a bitmap has, in Roaring's portable format
    (https://github.com/RoaringBitmap/RoaringFormatSpec), without making them; a number above `most` stands for any.
    """
    try:
        return _counted(bitmap, most)
    except (IndexError, ValueError) as error:
        raise OddManifestError("has a bitmap that is none") from error


def _counted(bitmap: memoryview, most: int) -> int:
    cookie = int.from_bytes(_cut(bitmap, 0, 4), "little")
    if cookie & 0xFFFF == _COOKIE_RUNS:
        containers = (cookie >> 16) + 1
        flags = _cut(bitmap, 4, (containers + 7) // 8)
        at = 4 + len(flags)
        has_offsets = containers >= _OFFSETS_FROM
    elif cookie == _COOKIE_PLAIN:
        containers = int.from_bytes(_cut(bitmap, 4, 4), "little")
        flags, at, has_offsets = None, 8, True
    else:
        raise ValueError(cookie)
    if containers > _CONTAINERS_MAX:
        raise ValueError(containers)
    heads = _cut(bitmap, at, 4 * containers)
    at += len(heads) + (4 * containers if has_offsets else 0)
    total = 0
    for each in range(containers):
        if flags is not None and flags[each // 8] >> (each % 8) & 1:
            runs = int.from_bytes(_cut(bitmap, at, 2), "little")
            pairs = _cut(bitmap, at + 2, 4 * runs)
            total += sum(length + 1 for _, length in _PAIR.iter_unpack(pairs))
            at += 2 + len(pairs)
        else:
            size = int(_HALF.unpack_from(heads, 4 * each + 2)[0]) + 1
            total += size
            at += 2 * size if size <= _ARRAY_MAX else _BITMAP_BYTES
        if total > most:
            return total
    return total


def _cut(buffer: memoryview, begin: int, length: int) -> memoryview:
    part = buffer[begin : begin + length]
    if len(part) < length:
        raise IndexError(begin)
    return part


# --- the directories of a dataset -------------------------------------------------------------------------------------
# The kinds of all names in a dataset's directories are read, by which no pipe, link or device is left in them, and the
# newest manifest is checked, with the files of deleted rows that it names. The result for a directory is kept for as
# long as nothing in the directory has changed, so that the check of a dataset that stands still costs a `stat` for each
# of its directories, however many rows and files these have. On S3, which has no links, the check is one listing for
# the manifest.

NAMES_MAX = 1_000_000
"""Names in one directory of a dataset; one with more is not opened."""

FOLDERS_MAX = 10_000
"""Directories in a dataset; one with more is not opened."""

CHECKED_MAX = 50_000
"""Directories and manifests that are known to be in order; of more the longest unused are checked again."""

SETTLED_S = 2.0
"""Seconds for which a directory has to stand still before a check of it is kept: its time has no finer steps on some
file systems, and a change right after the check would not show."""

DELETIONS_BYTES_MAX = 64 * 1024**2
"""Bytes of a file with deleted rows, as it is and unpacked; a dataset with a larger one is not opened."""

DELETED_MAX = 2**28
"""Rows that one file may have as deleted; a dataset with one that has more is not opened."""

_DELETED = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_LISTED = 100
_NOTHING = -1

Stamp = tuple[int, ...]


class _Folder(NamedTuple):
    """A directory has `folders` in it, and `newest` is the newest version if manifests are in it."""

    folders: tuple[str, ...]
    newest: int


class GuardBounds(NamedTuple):
    """The bounds of a check, as the constants of these names have them."""

    folders: int = FOLDERS_MAX
    names: int = NAMES_MAX
    settled_s: float = SETTLED_S


_BOUNDS = GuardBounds()


class GuardedVersion(NamedTuple):
    """A version of a dataset that Lance may open, with the names of its files in it; of a segment, its directory."""

    version: int
    files: tuple[str, ...]


def guard_dataset(root: str, version: int | None = None, bounds: GuardBounds = _BOUNDS) -> GuardedVersion | None:
    """Return what Lance may open of the dataset at a place, at its newest version or at `version`; None where there is
    none. Raise RefusedFileError with the name of what it may not open.

    `root` is as `place` returns it. A missing file passes, as Lance reports it. Raises OSError.
    """
    if root.startswith(S3):
        return _guard_on_s3(root, version)
    newest = _NOTHING
    waiting = [f"{root}/{name}" for name in DATASET_DIRECTORIES]
    count = 0
    while waiting:
        folder = waiting.pop()
        found = _look_into(folder, bounds)
        if found is None:
            continue
        if folder.endswith(f"/{VERSIONS}"):
            newest = max(newest, found.newest)
        waiting += found.folders
        count += 1
        if count > bounds.folders:
            raise RefusedFileError(root, f"has more than {bounds.folders} directories")
    chosen = newest if version is None else version
    if chosen == _NOTHING:
        return None
    path = f"{root}/{VERSIONS}/{manifest_name(chosen)}"
    return _guard_manifest(root, chosen, path, files.stamp(path))


def _guard_on_s3(root: str, version: int | None) -> GuardedVersion | None:
    versions = f"{root}/{VERSIONS}"
    if version is not None:
        path = f"{versions}/{manifest_name(version)}"
        return _guard_manifest(root, version, path, files.stamp(path))
    found = files.first_stamps(versions, _LISTED)  # names of manifests count down
    _require_names(versions, found)
    for name in sorted(found):
        if (newest := manifest_version(name)) is not None:
            return _guard_manifest(root, newest, f"{versions}/{name}", found[name])
    return None


def _guard_manifest(root: str, version: int, path: str, stamp: Stamp) -> GuardedVersion | None:
    if not stamp:
        return None
    require_size(path, stamp[-1], MANIFEST_BYTES_MAX)
    found = _check_manifest(path, stamp)
    for name in found.deletions:
        # On S3 nobody changes a file without writing all of it, and each of Lance's has a name of its own.
        at = (0,) if root.startswith(S3) else files.stamp(f"{root}/{name}")
        if at:
            _check_deletions(f"{root}/{name}", at)
    return GuardedVersion(version, (*found.data, *found.deletions, *found.segments))


@lru_cache(maxsize=CHECKED_MAX)
def _check_manifest(path: str, stamp: Stamp) -> ManifestFiles:
    try:
        return check_manifest(files.read(path, MANIFEST_BYTES_MAX)[0])
    except FileNotFoundError:
        return ManifestFiles()
    except OddManifestError as error:
        raise RefusedFileError(path, f"is not opened: it {error}") from error


@lru_cache(maxsize=CHECKED_MAX)
def _check_deletions(path: str, stamp: Stamp) -> None:
    try:
        content = files.read(path, DELETIONS_BYTES_MAX)[0]
        if path.endswith(".arrow"):
            check_arrow(content, _DELETED, DELETIONS_BYTES_MAX)
        elif cardinality(memoryview(content), DELETED_MAX) > DELETED_MAX:
            raise OddArrowError(f"it has more than {DELETED_MAX} rows")
    except FileNotFoundError:
        return
    except (OddArrowError, OddManifestError) as error:
        raise RefusedFileError(path, f"is not opened: {error}") from error


def _look_into(folder: str, bounds: GuardBounds) -> _Folder | None:
    """Return what is in a directory; None where there is none. Raises RefusedFileError."""
    try:
        about = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if S_ISLNK(about.st_mode):
        raise RefusedFileError(folder, "is a link, where a directory belongs")
    if not S_ISDIR(about.st_mode):
        raise RefusedFileError(folder, "is no directory")
    if time.time() - max(about.st_ctime, about.st_mtime) < bounds.settled_s:
        return _listed(folder, bounds.names)
    return _listed_before(folder, bounds.names, about.st_ino, about.st_ctime_ns, about.st_mtime_ns)


@lru_cache(maxsize=CHECKED_MAX)
def _listed_before(folder: str, most: int, _inode: int, _changed_ns: int, _modified_ns: int) -> _Folder | None:
    return _listed(folder, most)


def _listed(folder: str, most: int) -> _Folder | None:
    folders, newest, count = [], _NOTHING, 0
    is_versions = folder.endswith(f"/{VERSIONS}")
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > most:
                    raise RefusedFileError(folder, f"has more than {most} names")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    try:
                        require_regular(entry.path)
                    except FileNotFoundError:
                        continue
                elif is_versions:
                    newest = max(newest, _version_of(folder, entry.name))
    except FileNotFoundError:
        return None
    return _Folder(tuple(folders), newest)


def _require_names(folder: str, names: dict[str, Stamp]) -> None:
    for name in names:
        _version_of(folder, name)


def _version_of(folder: str, name: str) -> int:
    found = manifest_version(name)
    if found is None and is_manifest(name):
        raise RefusedFileError(f"{folder}/{name}", "is a manifest as Lance named them before, and none of an index")
    return _NOTHING if found is None else found


# --- the probe --------------------------------------------------------------------------------------------------------

_STAMP = Struct("=QQQQ")
_WORD = (1 << 64) - 1


class VersionProbe:
    """Probes whether a Lance dataset has moved, at the cost of three `stat`s (on S3: HEAD requests) where it has not.

    The last manifest seen must still be the same file, as the dataset may have been recreated, or the version lost; and
    the next one, probed by its name, must not be there. Versions have gaps, unlike those of a Delta log: cleaning keeps
    a version that has a tag, and takes away the next. So the hint that Lance writes beside the manifests must be the
    same file too. The hint alone does not do, as a writer that dies leaves none.

    Port LogProbe; safe for threads. A state does not say since when a dataset has moved.
    """

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        versions = _versions_of(table_uri)
        try:
            if (
                seen.stamp
                and _stamp(versions, seen.version) == seen.stamp
                and not files.exists(f"{versions}/{manifest_name(seen.version + 1)}")
            ):
                return seen
            newest = _list_newest(versions, table_uri)
        except OSError as error:
            raise _unreadable(table_uri, error) from error
        return seen if (seen.version, seen.stamp) == (newest.version, newest.stamp) else newest

    def first_probe(self, table_uri: str) -> ProbeState:
        try:
            return _list_newest(_versions_of(table_uri), table_uri)
        except OSError as error:
            raise _unreadable(table_uri, error) from error


def _versions_of(uri: str) -> str:
    return f"{uri if uri.startswith('/') else place(uri)}/{VERSIONS}"


def _stamp(versions: str, version: int) -> bytes:
    """Return what distinguishes this manifest from any other of its name, and this hint; empty: no manifest is there.

    The hint is written after the manifest, so that a version just committed may get another stamp once more.
    """
    found = files.stamp(f"{versions}/{manifest_name(version)}")
    if not found:
        return b""
    identity, at_ns, size = found
    hint = files.stamp(f"{versions}/{VERSION_HINT}")
    return _STAMP.pack(identity, at_ns & _WORD, size, (hint[0] ^ hint[1]) & _WORD if hint else 0)


def _list_newest(versions: str, table_uri: str) -> ProbeState:
    names = files.names(versions)
    newest = max((version for name in names if (version := manifest_version(name)) is not None), default=None)
    if newest is not None:
        return ProbeState(newest, _stamp(versions, newest))
    if any(map(is_manifest, names)):
        raise StorageError(
            f"cannot read {table_uri}: its manifests are named as Lance named them before",
            code=ErrorCode.LOG_CORRUPT,
            remedy="Let Lance rename them (LanceDataset.migrate_manifest_paths_v2), or choose a new path",
        )
    raise TableNotFound("is not a Lance dataset", field=table_uri, remedy="Check the path")


def _unreadable(table_uri: str, error: OSError) -> StorageError:
    remedy = "Check the path and its permissions"
    return storage_error(error, f"cannot read {table_uri}", error.strerror, remedy)
