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
    points = {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), name) for name in named}
    return tuple(sorted(points - {"/"}, key=lambda point: (-len(point), point))[:MOUNTS_MAX])
