"""Opens local files that somebody else may have put there: regular ones alone, without waiting, up to a size.

Whoever writes a table's files may put a pipe there, which holds up everybody who opens it, a device without an end, or
a link to a file that is none of the table's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

REFUSED_REMEDY = "Put the file itself in its place, or restore it from a backup"

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


class RefusedFileError(OSError):
    """A file is not opened, or not read, for what it is: `strerror` has its path and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EINVAL, f"{path} {why}")


@contextmanager
def open_regular(path: str, bytes_max: int | None = None) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a descriptor of the file, and its status. Raises OSError, RefusedFile where it is no regular file, or
    larger.
    """
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            require_regular(path)
        raise
    try:
        found = os.fstat(handle)
        _require_regular(path, found.st_mode)
        if bytes_max is not None:
            require_size(path, found.st_size, bytes_max)
        yield handle, found
    finally:
        os.close(handle)


def require_regular(path: str) -> os.stat_result:
    """Return the status of the file at `path`, without opening it.

    Raises FileNotFoundError, OSError, and RefusedFile for anything but a regular file.
    """
    found = os.lstat(path)
    _require_regular(path, found.st_mode)
    return found


def require_size(path: str, size: int, bytes_max: int) -> None:
    """Raises RefusedFile where it is larger."""
    if size > bytes_max:
        raise RefusedFileError(path, f"has {size} bytes, more than the {bytes_max} that are read")


def _require_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise RefusedFileError(path, f"is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, where a regular file belongs")
