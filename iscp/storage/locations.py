"""The places of tables and datasets: the names of what lies in a Lance dataset, the one spelling of a table's URI, and
the file system or bucket where a table lies.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from iscp.model.access.authorization import is_bucket, is_plain_uri
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import require_unicode

# --- names in a Lance dataset -----------------------------------------------------------------------------------------
# Above all, these are the names of manifests, each of which is one version of the dataset. Lance
# (https://lance.org/format/table/) counts down in them from the largest number of 64 bits, so that a listing begins
# with the newest.

VERSIONS = "_versions"
"""The directory of a dataset in which its manifests lie."""

DELETIONS = "_deletions"
"""The directory of a dataset in which the numbers of deleted rows lie."""

TRANSACTIONS = "_transactions"
"""The directory of a dataset in which each commit says what it has changed; a name begins with the version before."""

INDICES = "_indices"
"""The directory of a dataset in which each segment of an index has a directory of its own."""

DATA = "data"
"""The directory of a dataset in which its rows lie."""

DATASET_DIRECTORIES = (VERSIONS, TRANSACTIONS, INDICES, DELETIONS, "_iscp", DATA)
"""The directories of a dataset that is an index, each of which might be a link."""

BUILDS = "_iscp-build"
"""The directory below a target in which builds have what they have staged, until they are published."""

BUILD_BEGUN = "begun.json"
"""The file in the directory of each build that is there from its begin to its end."""

VERSION_HINT = "latest_version_hint.json"
"""The file beside the manifests that names one of the newest."""

_MANIFEST = re.compile(r"(?P<left>\d{20})\.manifest")
_ANY_MANIFEST = re.compile(r"d?\d{1,20}\.manifest")
_VERSION_MAX = 2**64 - 1


def manifest_name(version: int) -> str:
    """Return the name of the file that is this version of a dataset."""
    return f"{_VERSION_MAX - version:020d}.manifest"


def manifest_version(name: str) -> int | None:
    """Return the version that a file in the directory of manifests is; None: it is none."""
    found = _MANIFEST.fullmatch(name)
    version = _VERSION_MAX - int(found["left"]) if found else -1
    return version if version >= 0 else None


def is_manifest(name: str) -> bool:
    """Return whether a file is a manifest by any of Lance's ways to name one: counted up as before, or detached."""
    return _ANY_MANIFEST.fullmatch(name) is not None


# --- the place of a table ---------------------------------------------------------------------------------------------
# By its URI: a local directory, or a place on S3; and the one spelling of it.

S3 = "s3://"
NAME_BYTES_MAX = 255
"""Bytes of one name in a local path, as Linux has it; a longer one is refused."""

_S3_URI = re.compile(r"s3a?://(?P<bucket>[^/]*)/*(?P<key>.*)", re.DOTALL)
# Hadoop, delta-rs and obstore read all else in ways of their own: as a pattern, a fragment, or half of an escape.
_KEY_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=@~-]+")
_READ_IN_TWO_WAYS = "%\\"


def commit_name(version: int) -> str:
    """Return the name that Delta gives to the file of a commit, in the directory of the log."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Return the name that Delta gives to a checkpoint that is a single file."""
    return f"{version:020d}.checkpoint.parquet"


def on_s3(uri: str) -> bool:
    """Return whether the URI names a place on S3; `s3a`, as Hadoop has it, is the same."""
    return uri.startswith((S3, "s3a://"))


def s3_place(uri: str) -> str:
    """Return the one spelling of a place on S3, `s3://BUCKET/KEY`. Raises InvalidRequest for what not all would read
    alike.
    """
    found = _S3_URI.fullmatch(uri)
    if found is None or not is_bucket(found["bucket"]):
        raise InvalidRequest(f"{uri} names no bucket", about="table", remedy="Write it as s3://BUCKET/KEY")
    parts = [part for part in found["key"].split("/") if part]
    if not parts:
        raise InvalidRequest(f"{uri} is a whole bucket", about="table", remedy="Write it as s3://BUCKET/KEY")
    for part in parts:
        if not _KEY_PART.fullmatch(part):
            raise InvalidRequest(
                f"{part!r} is not a name that Spark and delta-rs read alike",
                about="table",
                remedy="Use letters, digits and . _ - = @ ~ in keys on S3",
            )
    return f"{S3}{found['bucket']}/{'/'.join(parts)}"


def local_path(uri: str) -> Path | None:
    """Return the directory of a local table; None for one on S3. Raises InvalidRequest for a URI of another store."""
    if on_s3(uri):
        return None
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    if "://" in path:
        scheme = path.split("://", 1)[0]
        raise InvalidRequest(
            f"tables on {scheme} are not supported yet", about="table", remedy="Use a path, a file: URI or s3://"
        )
    if odd := next((sign for sign in _READ_IN_TWO_WAYS if sign in path), ""):
        raise InvalidRequest(
            f"{uri} has a {odd}, which delta-rs reads as another path than Spark",
            about="table",
            remedy="Use a path without it; blanks and other signs are written as they are",
        )
    require_unicode(path, "table")
    if "\0" in path:
        raise InvalidRequest(f"{path!r} has a NUL, which no path has", about="table", remedy="Check the path")
    return Path("/" + os.path.abspath(path).lstrip("/"))  # POSIX lets two slashes at the beginning be


def first_link(path: Path) -> str:
    """The first part of an absolute path that is a symbolic link, the path itself being its last; empty: none is."""
    return next((str(each) for each in (*reversed(path.parents), path) if os.path.islink(each)), "")


def refuse_no_path(path: Path) -> None:
    """Raises InvalidRequest for what no file system could hold."""
    if any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in path.parts):
        raise InvalidRequest(
            f"has a name of more than {NAME_BYTES_MAX} bytes", field="table", remedy="Give a path with shorter names"
        )


def place(uri: str) -> str:
    """Return the one spelling of a table's place: an absolute path, or `s3://BUCKET/KEY`. Raises InvalidRequest."""
    return s3_place(uri) if on_s3(uri) else str(local_path(uri))


def followed_places(uri: str) -> tuple[str, ...]:
    """Return the places of a table's files with links followed: its directory, and its log, which may be a link itself,
    as may the directories of an index.

    A URI of another store, for a custom consumer, stays as it is. Raises InvalidRequest.
    """
    if is_plain_uri(uri):
        return (uri,)
    path = local_path(uri)
    if path is None:
        return (s3_place(uri),)
    inside = ("_delta_log", *DATASET_DIRECTORIES) if os.path.lexists(path / VERSIONS) else ("_delta_log",)
    return os.path.realpath(path), *(os.path.realpath(path / name) for name in inside)


def followed_root(root: str) -> str:
    """Return a root of an account in the spelling that `followed_places` gives to what lies below it."""
    if on_s3(root):
        return S3 + root.partition("://")[2].rstrip("/")
    return root.rstrip("/") if is_plain_uri(root.rstrip("/")) else os.path.realpath(str(local_path(root)))


# --- file systems and buckets -----------------------------------------------------------------------------------------
# The mounted file system, or the bucket, on which a table lies is found without touching the table: it may hang.

MOUNTS_FRESH_S = 1.0
"""How long the list of mounted file systems is good for."""

MOUNTS_MAX = 10_000
"""Mounted file systems that are distinguished; tables on others count as on the one above."""

LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "bcachefs", "ramfs"}
)
"""Types of file systems that only this machine writes to, so that its kernel notices each change."""

_MOUNTS = Path("/proc/self/mountinfo")
_POINT = 4
_ESCAPED = re.compile(r"\\([0-7]{3})")


def storage_place(uri: str) -> str:
    """Return `s3://BUCKET`, or the mount of the file system, by the path as it is written, wherever links in it
    lead.
    """
    if on_s3(uri):
        return S3 + uri.partition("://")[2].partition("/")[0]
    path = uri.removeprefix("file://").removeprefix("file:")
    points = _mount_points(int(time.monotonic() / MOUNTS_FRESH_S))
    return next((point for point in points if path == point or path.startswith(f"{point}/")), "/")


def on_local_disk(uri: str) -> bool:
    """Return whether all that changes a table at this path is done on this machine, by the path as it is written."""
    return not on_s3(uri) and _types(int(time.monotonic() / MOUNTS_FRESH_S)).get(storage_place(uri), "") in LOCAL_TYPES


@lru_cache(maxsize=1)
def _types(when: int) -> dict[str, str]:
    try:
        return mount_types(_MOUNTS.read_text().splitlines())
    except OSError:
        return {}


def mount_types(lines: Iterable[str]) -> dict[str, str]:
    """Return the types of file systems by their mount points, in lines of Linux's `mountinfo`; the last one counts."""
    named = (line.split(" ") for line in lines)
    return {_unescaped(parts[_POINT]): parts[parts.index("-") + 1] for parts in named if "-" in parts[_POINT + 1 : -1]}


@lru_cache(maxsize=1)
def _mount_points(when: int) -> tuple[str, ...]:
    """Return the mount points, the longest first."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:  # not on this system: all is one place
        return ()
    return mount_points(lines)


def mount_points(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the mount points in lines of Linux's `mountinfo`, without the root; the longest first."""
    named = [parts[_POINT] for line in lines if len(parts := line.split(" ")) > _POINT]
    points = set(map(_unescaped, named))
    return tuple(sorted(points - {"/"}, key=lambda point: (-len(point), point))[:MOUNTS_MAX])


def _unescaped(name: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), name)
