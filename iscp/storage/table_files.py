"""The files of a table: the one way to open one that others may have written, and what this process writes itself:
notes and durable commits. Arrow files of others are read with a bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, error

import pyarrow as pa

from iscp.model.values.errors import StorageError
from iscp.ports.system import Failpoints
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.files import write_beside
from iscp.storage.locations import S3, commit_name, local_path, place
from iscp.storage.regular_files import open_below, path_below
from iscp.storage.s3_settings import table_options
from iscp.system.late_imports import pafs

# --- files that others have written -----------------------------------------------------------------------------------

UNSAID_BYTES_MAX = 1024**2
"""Bytes that a data file may have beyond those that the log says; a larger one is not read without Spark."""


def files_of(uri: str) -> pafs.FileSystem:
    """Return the file system of the table at `uri`, in which paths are those of the table's log."""
    path = local_path(uri)
    if path is not None:
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(uri, options=table_options(uri) or {}))


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table that is open; `read_at` returns so many bytes (2nd) from a place on (1st), fewer at its end."""

    path: str
    size: int
    read_at: Callable[[int, int], bytes]

    def read(self) -> bytes:
        """Return all of it, as much as it had when it was opened."""
        parts, at = [], 0
        while at < self.size and (part := self.read_at(at, self.size - at)):
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_input(uri: str, path: str, size: int | None) -> Iterator[TableFile]:
    """Open a file that whoever writes the table has put there, by its path and size as the log has them.

    This is the one way to such a file (`tests/unit/test_table_files_only.py`): a regular one, below the table, to which
    no link leads. Raises FileNotFoundError, OSError, RefusedFile where it is no such file, or a larger one, and
    StorageError where the path leads out of the table.
    """
    named, top = path_below(path), place(uri)
    if top.startswith(S3):
        with files_of(uri).open_input_file(named) as opened:
            yield TableFile(f"{top}/{named}", opened.size(), lambda begin, length: opened.read_at(length, begin))
        return
    with open_below(top, named, None if size is None else size + UNSAID_BYTES_MAX) as (handle, about):
        yield TableFile(f"{top}/{named}", about.st_size, lambda begin, length: os.pread(handle, length, begin))


# --- notes, and syncs -------------------------------------------------------------------------------------------------
# Notes lie in the directory of a Delta table and are no part of it: small files about what lies there. Their names
# begin with an underscore: such files are neither data to Spark, when it reads a directory without its log, nor
# anything that VACUUM removes, whoever runs it.


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_note(uri: str, name: str, bytes_max: int) -> bytes | None:
    """Return the content of a note; None: there is none.

    Raises StorageError, also for one that is larger, or no regular file, of which nothing is read.
    """
    path = _path(uri, name)
    try:
        with storage_faults(f"read {path}"):
            return files.read(path, bytes_max)[0]
    except FileNotFoundError:
        return None


def write_note(uri: str, name: str, content: bytes) -> None:
    """Write a note in the place of the one that is there. Raises StorageError."""
    path = _path(uri, name)
    try:
        with storage_faults(f"write {path}"):
            files.replace(path, content)
    except FileNotFoundError as error:
        raise StorageError(f"cannot write {path}: the directory is gone") from error


def _path(uri: str, name: str) -> str:
    return f"{place(uri)}/_iscp-{name}.json"


# --- durable commits --------------------------------------------------------------------------------------------------
# The commit files of logs that are written here.

_doubted: dict[Path, set[int]] = {}
"""Versions of each log that can be seen and may be lost, whoever in this process has written them: nothing that lies
behind them is acknowledged either."""


class DurableCommits:
    """Makes the commits of the table at `path` outlive a power loss; None: it is not local, and nothing is done.

    What is acknowledged outlives a power loss too, not only the process. After an fsync that failed another one of the
    same pages proves nothing: the kernel may count them as written. So the file is replaced by a copy, whose pages and
    name are new. An object store makes what it takes durable by itself. The failpoints of its syncs are `NAME.sync` and
    `NAME.rewrite`.
    """

    def __init__(self, path: Path | None, failpoints: Failpoints, name: str = "log") -> None:
        self._log = path / "_delta_log" if path is not None else None
        self._failpoints = failpoints
        self._name = name

    def sync(self, version: int, *, content: bool = True) -> None:
        """Raises OSError where it cannot be had, also by a copy. `content`: False where only the file's name is new."""
        if self._log is None:
            return
        try:
            self._failpoints.reach(f"{self._name}.sync")
            self._rewrite_doubted(self._log)
            if content:
                sync(self._log / commit_name(version))
            sync(self._log)
        except FileNotFoundError:
            return  # cleaned away, far behind the log's end: the next check sees that
        except OSError:
            _doubted.setdefault(self._log, set()).add(version)
            self._rewrite_doubted(self._log)

    def rewrite(self, version: int) -> None:
        """Replace a commit's file by a copy, as nobody knows whether it was synced. Raises OSError."""
        if self._log is None:
            return
        self._failpoints.reach(f"{self._name}.rewrite")
        with suppress(FileNotFoundError):  # a checkpoint has made it unneeded
            _replace_by_copy(self._log / commit_name(version))

    def _rewrite_doubted(self, log: Path) -> None:
        doubted = _doubted.get(log, set())
        for version in sorted(doubted):
            self.rewrite(version)
            doubted.discard(version)


def _replace_by_copy(path: Path) -> None:
    """Put a copy in the file's place that outlives a power loss. Raises OSError."""
    with write_beside(str(path), path.read_bytes()) as hidden:
        os.replace(hidden, path)
    sync(path.parent)


# --- Arrow files ------------------------------------------------------------------------------------------------------
# Arrow files that somebody else may have put there are read with one schema, and no more memory than was said. A file
# of Arrow's may claim any length for what it has compressed, name one part many times in its footer, and have texts
# that end outside of it. So the file's messages are read one after the other, as they stand, without the footer; the
# lengths that they claim are added up before anything is unpacked; and all values are checked
# (https://arrow.apache.org/docs/format/Columnar.html has the format).

_PREFIX = b"ARROW1\0\0"
_SCHEMA, _BATCH = "schema", "record batch"
_INT32, _UINT32, _UINT16, _INT64 = Struct("<i"), Struct("<I"), Struct("<H"), Struct("<q")
_BUFFER, _BLOCK = Struct("<qq"), Struct("<qi4xq")
_FOOTER_END = 10
_DICTIONARIES, _BATCHES = 2, 3
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3


class OddArrowError(ValueError):
    """A file that is not read; the text says why."""


def read_arrow(content: bytes, schema: pa.Schema, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow file of this schema, with the file's own metadata.

    Raises OddArrowError for another schema, for more than `bytes_max` bytes once unpacked, and for what is damaged.
    """
    if not content.startswith(_PREFIX):
        raise OddArrowError("it is no Arrow file")
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content)[len(_PREFIX) :])
        first = messages.read_next_message()
        if first.type != _SCHEMA:  # pyarrow reads it as one, and ends the process
            raise OddArrowError(f"it begins with a message of the type {first.type}")
        found = pa.ipc.read_schema(first)
        if found != schema:
            raise OddArrowError(f"its columns are {', '.join(found.names[:10])}"[:200])
        batches, left = [], bytes_max
        for message in messages:
            if message.type != _BATCH:
                raise OddArrowError(f"it has a message of the type {message.type}")
            left -= _unpacked_bytes(message)
            if left < 0:
                raise OddArrowError(f"it has more than {bytes_max} bytes once unpacked")
            batch = pa.ipc.read_record_batch(message, found)
            batch.validate(full=True)
            batches.append(batch)
        return pa.Table.from_batches(batches, found)
    except OddArrowError:
        raise
    except (pa.ArrowException, OSError, ValueError, StopIteration, EOFError, MemoryError, error) as fault:
        raise OddArrowError(f"it is damaged ({str(fault)[:200]})") from fault


def check_arrow(content: bytes, schema: pa.Schema, bytes_max: int) -> None:
    """Raise OddArrowError unless another reader, which goes by the footer, takes at most `bytes_max` bytes for a file.

    Others reserve whatever lengths a footer and a message claim, and end the process where there is no such memory.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(content))
        if reader.schema != schema:
            raise OddArrowError("its columns are others")
        (length,) = _INT32.unpack_from(content, len(content) - _FOOTER_END)
        footer = content[len(content) - _FOOTER_END - length : -_FOOTER_END]
        table = _UINT32.unpack_from(footer, 0)[0]
        if (field := _field(footer, table, _DICTIONARIES)) is not None:
            place = field + _UINT32.unpack_from(footer, field)[0]
            if _UINT32.unpack_from(footer, place)[0]:
                raise OddArrowError("it has dictionaries")
        blocks, left = _child(footer, table, _BATCHES), bytes_max
        for number in range(_UINT32.unpack_from(footer, blocks)[0]):
            place, head, body = _BLOCK.unpack_from(footer, blocks + _UINT32.size + number * _BLOCK.size)
            if min(place, head, body) < 0 or place + head + body > len(content):
                raise OddArrowError("it has a part beyond its end")
            message = pa.ipc.read_message(pa.py_buffer(content)[place : place + head + body])
            left -= _unpacked_bytes(message)
            if message.type != _BATCH or left < 0:
                raise OddArrowError(f"it has another message, or more than {bytes_max} bytes once unpacked")
    except OddArrowError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError, error) as fault:
        raise OddArrowError(f"it is damaged ({str(fault)[:200]})") from fault


def _unpacked_bytes(message: pa.ipc.Message) -> int:
    """Return how many bytes the columns of a message take once it is unpacked, as it says itself."""
    head, body = message.metadata.to_pybytes(), memoryview(message.body)
    batch = _child(head, _UINT32.unpack_from(head, 0)[0], _HEADER)
    buffers = _child(head, batch, _BUFFERS)
    count = _UINT32.unpack_from(head, buffers)[0]
    compressed = _field(head, batch, _COMPRESSION) is not None
    total = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(head, buffers + _UINT32.size + number * _BUFFER.size)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise OddArrowError("it has a part beyond its end")
        claimed = _INT64.unpack_from(body, offset)[0] if compressed and length else -1
        total += length if claimed < 0 else claimed
    return total


def _child(head: bytes, table: int, number: int) -> int:
    """Return the place of the table or list that a field of a table of Flatbuffers' leads to."""
    place = _field(head, table, number)
    if place is None:
        raise OddArrowError("it has a message without a content")
    return int(place + _UINT32.unpack_from(head, place)[0])


def _field(head: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a table of Flatbuffers'; None where it is not there."""
    known = table - _INT32.unpack_from(head, table)[0]
    if known < 0 or table < 0:
        raise OddArrowError("it has a table outside of a message")
    entry = 4 + 2 * number
    if entry >= _UINT16.unpack_from(head, known)[0]:
        return None
    offset = _UINT16.unpack_from(head, known + entry)[0]
    return table + offset if offset else None
