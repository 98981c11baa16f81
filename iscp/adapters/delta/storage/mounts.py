"""On which mounted file system, or in which bucket, a table lies, found without touching it: it may hang."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from iscp.adapters.delta.storage.locations import S3, on_s3

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
