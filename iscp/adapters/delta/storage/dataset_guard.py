"""Checks what Lance is about to open of a dataset, which opens whatever lies there, and parses it without a bound.

The kinds of all names in a dataset's directories are read, by which no pipe, link or device is left in them, and the
newest manifest is checked (`dataset_manifest`), with the
files of deleted rows that it names. The result for a directory is kept for as long as nothing in it has
changed, so that the check of a dataset that stands still costs a `stat` for each of its directories, however many rows
and files these have. On S3, which has no links, it is one listing for the manifest.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from stat import S_ISDIR, S_ISLNK
from typing import NamedTuple

import pyarrow as pa

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.arrow_files import OddArrowError, check_arrow
from iscp.adapters.delta.storage.dataset_manifest import (
    MANIFEST_BYTES_MAX,
    ManifestFiles,
    OddManifestError,
    cardinality,
    check_manifest,
)
from iscp.adapters.delta.storage.dataset_names import (
    DATASET_DIRECTORIES,
    VERSIONS,
    is_manifest,
    manifest_name,
    manifest_version,
)
from iscp.adapters.delta.storage.locations import S3
from iscp.adapters.delta.storage.regular_files import RefusedFileError, require_regular, require_size

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
