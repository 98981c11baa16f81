"""Files of rows that Spark has written for a changefeed: what their footers say, and what a commit says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow.fs as pafs
from deltalake.transaction import AddAction

from iscp.adapters.delta.storage.bounded_parquet import open_parquet
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.delta.storage.table_files import files_of
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


def read_footers(uri: str, directory: str) -> list[FileFooter]:
    """Return the footers of all files in a directory of the table at `uri`. Raises StorageError."""
    with delta_faults(f"list {directory}"):
        found = files_of(uri).get_file_info(pafs.FileSelector(directory))
        paths = [each.path for each in found if each.is_file and each.path.endswith(".parquet")]
        with ThreadPoolExecutor(FOOTER_READERS, "iscp-feed-footer") as pool:
            return list(pool.map(partial(_read_footer, uri), paths))


def _read_footer(uri: str, path: str) -> FileFooter:
    with open_parquet(uri, path, None) as file:
        size, rows = file.size, file.metadata.num_rows
        if ULID_TEXT not in file.schema_arrow.names:
            return FileFooter(path, size, rows)
        counts = [file.metadata.row_group(number).num_rows for number in file.groups]
        bounds = [each.text_bounds or ("", "") for each in file.chunks(ULID_TEXT)]
    groups = (UlidGroup(count, *each) for count, each in zip(counts, bounds, strict=True))
    return FileFooter(path, size, rows, tuple(groups))


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
