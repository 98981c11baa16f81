"""Opens local files that somebody else may have put there: regular ones alone, without waiting, up to a size.

Whoever writes a table's files may put a pipe there, which holds up everybody who opens it, a device without an end, or
a link to a file that is none of the table's, as the file or as a directory that leads to it. A hard link is a file like
any other: the kernel lets only those make one who may read and write the file (`fs.protected_hardlinks`, which is on by
default), and they could copy it as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

REFUSED_REMEDY = "Put the file itself in its place, or restore it from a backup"

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    with _open(path, path, None, bytes_max) as opened:
        yield opened


@contextmanager
def open_below(top: str, named: str, bytes_max: int | None = None) -> Iterator[tuple[int, os.stat_result]]:
    """Yield the same of a file that is `named` by its path below the directory `top`, of which no part may be a link.

    Each directory is opened from within the one before it, so that none can be replaced by a link meanwhile. `top` may
    be behind links. Raises as `open_regular`, and the same whether there is a file behind a link or not.
    """
    path, (*folders, name) = f"{top}/{named}", named.split("/")
    if not folders:
        with _open(path, path, None, bytes_max) as opened:
            yield opened
        return
    at, folder = top, os.open(top, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
    try:
        for each in folders:
            at, above = f"{at}/{each}", folder
            folder = _open_folder(at, each, above)
            os.close(above)
        with _open(path, name, folder, bytes_max) as opened:
            yield opened
    finally:
        os.close(folder)


def _open_folder(path: str, name: str, above: int) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            kind = stat.S_IFMT(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
            found = _KINDS.get(kind, "a file")
            raise RefusedFileError(path, f"is {found}, where a directory belongs") from error
        error.filename = path
        raise


@contextmanager
def _open(path: str, name: str, folder: int | None, bytes_max: int | None) -> Iterator[tuple[int, os.stat_result]]:
    """Open `name` in a folder; messages name the `path`."""
    try:
        handle = os.open(name, _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            _require_regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        error.filename = path
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
