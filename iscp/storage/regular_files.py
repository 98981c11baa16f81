"""Files that somebody else may have put there, opened with bounds: regular local files, files that a table's log names,
and the footers of Parquet files.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from iscp.model.access.authorization import lies_below
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError, StorageError
from iscp.storage.locations import S3, followed_places, followed_root, on_s3, place, s3_place

# --- local files ------------------------------------------------------------------------------------------------------
# Regular files alone are opened, without waiting, up to a size. Whoever writes a table's files may put a pipe there,
# which holds up everybody who opens it, a device without an end, or a link to a file that is none of the table's, as
# the file or as a directory that leads to it. A hard link is a file like any other: the kernel lets only those make one
# who may read and write the file (`fs.protected_hardlinks`, which is on by default), and they could copy it as well.

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


# --- files that a log names -------------------------------------------------------------------------------------------
# The paths in a table's log name files below the table or elsewhere; each is taken as all readers of the table here
# have it. Delta's protocol has paths URI-encoded, and absolute ones as those of a clone. A log is written by whoever
# has the table's directory, and read with the rights of the node: so a path that leads out of the table by `..`,
# however it is encoded, or by a link, is refused before anything is opened, and an absolute path is followed only to
# where everybody may read who may read the table.

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NO_NAMES = frozenset({"", ".", ".."})

VECTOR_ID_LENGTH = 20
"""Characters of a relative vector's path that are the id in its file's name; those before it are a directory."""

SHOWN_LENGTH_MAX = 200
"""Characters of a path in a log that messages show; the rest is cut off."""

REMEDY = "Restore the table's log from a backup; or recreate the table, and resync its jobs (a target: move it away)"


def lies_elsewhere(path: str) -> bool:
    """Return whether a file is named by an absolute path, as those of a clone are."""
    return path.startswith("/") or bool(_SCHEME.match(path))


def is_below(path: str) -> bool:
    """Return whether a path, as a log has it, is one below the table: nothing in it leads up, or nowhere."""
    named = unquote(path)
    return (
        not lies_elsewhere(path)
        and not lies_elsewhere(named)
        and "\0" not in named
        and _NO_NAMES.isdisjoint(named.split("/"))
    )


def path_below(path: str) -> str:
    """Return the path below its table that an action's path names, decoded. Raises StorageError where it names none."""
    if not is_below(path):
        raise _refused(path, "leads out of the table")
    return unquote(path)


def place_of_file(uri: str, path: str) -> str:
    """Return the place of a file of the table at `uri`, by its path as the log has it; the file need not exist.

    Raises StorageError where that is not below the table, with links followed.
    """
    named, top = path_below(path), place(uri)
    _require_no_way_out(top, named, path)
    return f"{top}/{named}"


def _require_no_way_out(top: str, named: str, path: str) -> None:
    """Raise StorageError where a directory between the table and its file is a link out of the table; a file that is a
    link is not opened at all.
    """
    folder = posixpath.dirname(named)
    if not folder or top.startswith(S3):
        return
    if not lies_below(os.path.realpath(f"{top}/{folder}"), os.path.realpath(top)):
        raise _refused(path, "leads out of the table by a link")


class Reach:
    """Decides how far absolute paths in logs are followed. Safe for threads: what it knows is replaced whole."""

    def __init__(self, roots: Collection[Collection[str]] = ()) -> None:
        """`roots`: below which places the tables of each account lie that has any; none: everywhere."""
        self._roots = roots

    def limit(self, roots: Collection[Collection[str]]) -> None:
        """Limit it from now on; `roots` are as in the constructor."""
        self._roots = roots

    def follow(self, uri: str, path: str) -> str:
        """Return the place of a file that the log of the table at `uri` names by an absolute path; the file need not
        exist.

        Raises StorageError where it is in another store, PermanentError where an account may have the table and not the
        file, both with links followed.
        """
        at = _followed(unquote(path))
        if at is None:
            raise _refused(path, "is no place that is read here")
        if self._roots:
            table = followed_places(uri)[0]
            for roots in self._roots:
                tops = [followed_root(root) for root in roots]
                if _lies_below_any(table, tops) and not _lies_below_any(at, tops):
                    raise _outside(path)
        return at


REACH = Reach()
"""The places that readers in this process may follow absolute paths to."""


def require_files(uri: str, paths: Iterable[str], reach: Reach = REACH) -> None:
    """Raise StorageError or PermanentError where a file of the table at `uri` is none that may be opened.

    For those who have others open them: a local one has to be a regular file, and so has what Hadoop takes for its
    checksum. One that is not there passes, as whoever opens it says so.
    """
    top, folders = place(uri), {""}
    for path in paths:
        if lies_elsewhere(path):
            below, _, named = reach.follow(uri, path).rpartition("/")
        else:
            below, named = top, path_below(path)
            if (folder := posixpath.dirname(named)) not in folders:
                _require_no_way_out(top, named, path)
                folders.add(folder)
        if not below.startswith(S3):
            _require_openable(below or "/", named)


def _require_openable(below: str, named: str) -> None:
    folder, name = posixpath.split(named)
    for each in (named, posixpath.join(folder, f".{name}.crc")):
        try:
            with open_below(below, each) as (handle, about):
                if each == named:
                    require_short_footer(os.pread(handle, END_BYTES, max(0, about.st_size - END_BYTES)))
        except FileNotFoundError:
            continue
        except OddFooterError as error:
            raise _unreadable(f"{below}/{each}", str(error)) from error
        except RefusedFileError as error:
            raise _unreadable(f"{below}/{each}", str(error.strerror)) from error


def _unreadable(path: str, why: str) -> StorageError:
    return StorageError(f"cannot read {path}: {why}", code=ErrorCode.LOG_CORRUPT, remedy=REMEDY)


def _followed(path: str) -> str | None:
    """Return the one spelling of an absolute path, its directories followed; None: it is none that is read here."""
    if on_s3(path):
        with suppress(InvalidRequest):
            return s3_place(path)
        return None
    local = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
    folder, slash, name = local.rpartition("/")
    if not slash or "\0" in local or not local.startswith("/") or not _NO_NAMES.isdisjoint(local.split("/")[1:]):
        return None
    return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"


def _lies_below_any(at: str, tops: Iterable[str]) -> bool:
    return any(lies_below(at, top) for top in tops)


def _refused(path: str, why: str) -> StorageError:
    return StorageError(
        f"a file in the table's log, {path[:SHOWN_LENGTH_MAX]}, {why}", code=ErrorCode.LOG_CORRUPT, remedy=REMEDY
    )


def _outside(path: str) -> PermanentError:
    return PermanentError(
        f"a file in the table's log, {path[:SHOWN_LENGTH_MAX]}, does not lie below a root of every account that may "
        "have the table",
        remedy="Copy the table, with its files, to one below the account's roots (a shallow clone has them elsewhere)",
        code=ErrorCode.OUTSIDE_ROOTS,
    )


# --- footers of Parquet files -----------------------------------------------------------------------------------------
# The footer of a Parquet file is bounded before deltalake reads it, which sets no bounds. A footer is a struct of
# Thrift's compact protocol (parquet.thrift, `FileMetaData`). The tree of columns is built by recursion: 80 KB that nest
# 10,000 levels overflow the stack of a thread of deltalake, which ends the process. Here the tree is walked without
# recursion, and what no writer of Parquet writes is refused. pyarrow has bounds of its own, and Spark makes an overflow
# an error of the task.

FOOTER_BYTES_MAX = 16 * 1024**2
"""Bytes of a Parquet file's footer; a file that has more is refused."""

COLUMNS_DEPTH_MAX = 100
"""Levels of columns within columns that a Parquet file may have, as pyarrow reads them; one with more is refused."""

STRUCTS_DEPTH_MAX = 32
"""Levels of structs within structs of a footer; those of Parquet's definition have 8."""

LISTED_MAX = 500_000
"""Entries of all lists of a footer, those of its columns and row groups above all; a file with more is refused."""

TAIL_BYTES = 64 * 1024
"""Bytes of a file's end that are read at once; most footers are shorter."""

END_BYTES = 8
"""Bytes of a Parquet file's end that say how long its footer is."""

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_VARINT_BYTES_MAX = 10
_BOOLS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LIST, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 9, 12
_MORE = 15
"""Instead of a list's length: that follows."""
_SCHEMA, _NUM_CHILDREN = 2, 5

ReadAt = Callable[[int, int], bytes]
"""So many bytes (2nd) from a place on (1st)."""


class OddFooterError(ValueError):
    """A footer is not handed to any library: its message says why."""


def check_footer(read_at: ReadAt, size: int) -> None:
    """Check the footer of a file of `size` bytes. Raises OddFooter.

    A file that is not Parquet passes, as every library reports that itself.
    """
    begin = max(0, size - TAIL_BYTES)
    tail = read_at(begin, size - begin)
    length = require_short_footer(tail)
    if not length or length > size - END_BYTES:
        return  # every library says so
    whole = length <= len(tail) - END_BYTES
    footer = tail[-END_BYTES - length : -END_BYTES] if whole else read_at(size - END_BYTES - length, length)
    try:
        _FooterWalk(footer).walk()
    except IndexError:
        raise OddFooterError("its footer ends within a field") from None


def require_short_footer(end: bytes) -> int:
    """Return how many bytes a footer has by the last ones of its file; 0: that is no Parquet file. Raises OddFooter."""
    if end[-4:] == _ENCRYPTED:
        raise OddFooterError("its footer is encrypted")
    length = int.from_bytes(end[-8:-4], "little") if end[-4:] == _MAGIC else 0
    if length > FOOTER_BYTES_MAX:
        raise OddFooterError(f"its footer has {length} bytes, more than {FOOTER_BYTES_MAX}")
    return length


class _FooterWalk:
    """One pass over a footer. Raises OddFooter, and IndexError beyond its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._listed = 0
        self._parents: list[int] = []
        """How many children each column that is open still has."""

    def walk(self) -> None:
        frames: list[tuple[int, int]] = []  # the field that holds a struct, and how many of a list follow on that one
        field = left = children = 0
        while True:
            header = self._byte()
            if not header:  # the end of a struct
                if len(frames) == 1:
                    if frames[0][0] == _SCHEMA:
                        self._take_column(children)
                    children = 0
                if left:
                    field, left = 0, left - 1
                elif frames:
                    field, left = frames.pop()
                else:
                    return
                continue
            kind, step = header & 15, header >> 4
            field = field + step if step else self._number()
            if kind in (_STRUCT, _LIST):
                if structs := 1 if kind == _STRUCT else self._list():
                    frames.append((field, left))
                    field, left = 0, structs - 1
                    if len(frames) > STRUCTS_DEPTH_MAX:
                        raise OddFooterError(f"its footer nests structs more than {STRUCTS_DEPTH_MAX} levels deep")
            elif kind in _VARINTS and field == _NUM_CHILDREN and len(frames) == 1:
                children = self._number()
            elif kind not in _BOOLS:
                self._pass_over(kind)

    def _list(self) -> int:
        """Return how many structs the list has, which follow; pass over entries of other kinds."""
        header = self._byte()
        kind, count = header & 15, header >> 4
        if count == _MORE:
            count = self._varint()
        self._listed += count
        if self._listed > LISTED_MAX:
            raise OddFooterError(f"its footer lists more than {LISTED_MAX} columns and parts of them")
        if kind == _STRUCT:
            return count
        for _ in range(count):
            self._pass_over(_BYTE if kind in _BOOLS else kind)
        return 0

    def _pass_over(self, kind: int) -> None:
        if kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind in (_BYTE, _DOUBLE):
            self._at += 1 if kind == _BYTE else 8
        else:
            raise OddFooterError(f"its footer has a value of the kind {kind}, which Parquet does not have")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise OddFooterError("its footer has a number without an end")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _take_column(self, children: int) -> None:
        """Columns come in the order of their tree, each with the number of its children."""
        parents = self._parents
        while parents and not parents[-1]:
            parents.pop()
        if parents:
            parents[-1] -= 1
        if children > 0:
            parents.append(children)
        if len(parents) > COLUMNS_DEPTH_MAX:
            raise OddFooterError(f"it nests columns more than {COLUMNS_DEPTH_MAX} levels deep")
