"""Files of rows that Spark has written for a changefeed: what their footers say, and what a commit says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.changefeed.model.ulid import UlidPlace, parse_ulid
from iscp.changefeed.table.feed_schema import ULID_TEXT
from iscp.changefeed.table.file_writer import file_stats
from iscp.core.values.errors import EngineError

FOOTER_READERS = 8
"""Threads that read the footers of the files that were written; more files queue."""


@dataclass(frozen=True, slots=True)
class UlidGroup:
    """Rows of a file, with the first and the last text of their ulids."""

    rows: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class FileFooter:
    """The footer of a file; `groups` are set for a file with ulids."""

    path: str
    size: int
    rows: int
    groups: tuple[UlidGroup, ...] = ()


def number_of(path: str) -> int:
    """Return the number of the partition that a sorted file was."""
    return int(path.rpartition("/")[2].split("-")[1])


def read_footers(files: pafs.FileSystem, directory: str) -> list[FileFooter]:
    """Return the footers of all files in a directory. Raises StorageError."""
    with delta_faults(f"list {directory}"):
        found = files.get_file_info(pafs.FileSelector(directory))
        paths = [each.path for each in found if each.is_file and each.path.endswith(".parquet")]
        with ThreadPoolExecutor(FOOTER_READERS, "iscp-feed-footer") as pool:
            return list(pool.map(partial(_read_footer, files), paths))


def _read_footer(files: pafs.FileSystem, path: str) -> FileFooter:
    with files.open_input_file(path) as stream:
        size = stream.size()
        found = pq.read_metadata(stream)
    names = [found.schema.column(number).path for number in range(len(found.schema))]
    if ULID_TEXT not in names:
        return FileFooter(path, size, found.num_rows)
    column = names.index(ULID_TEXT)
    groups = map(found.row_group, range(found.num_row_groups))
    bounds = ((group.num_rows, group.column(column).statistics) for group in groups)
    return FileFooter(path, size, found.num_rows, tuple(UlidGroup(rows, each.min, each.max) for rows, each in bounds))


def check_adds(
    files: Sequence[FileFooter], partition: dict[str, str | None], first: UlidPlace, count: int
) -> Iterator[AddAction]:
    """Raises EngineError unless the files have all ulids from `first` on, each once."""
    at, rows = first, 0
    for file in files:
        begins = at
        for group in file.groups:
            if (parse_ulid(group.first), parse_ulid(group.last)) != (at.ulid(), at.ulid(group.rows - 1)):
                raise EngineError(f"{file.path} has other ulids than those of its rows")
            at = at.after(group.rows)
        at_ms, stats = int(time.time() * 1000), file_stats(begins, file.rows)
        yield AddAction(file.path, file.size, partition, at_ms, True, stats)
        rows += file.rows
    if rows != count:
        raise EngineError(f"{rows} rows were written of {count} that were sorted")
