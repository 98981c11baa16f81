"""A part of a changefeed, and how an executor reads it; loads little, as each worker of Spark's does it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from iscp.changefeed.table.feed_schema import FEED, SHARD, ULID_TEXT
from iscp.changefeed.table.page_reader import groups_between
from iscp.storage.bounded_parquet import open_parquet
from iscp.storage.delta_errors import delta_faults


@dataclass(frozen=True, slots=True)
class FeedPart:
    """Rows of one shard behind one ulid up to another, and the files that have them."""

    feed: str
    shard: int
    paths: tuple[str, ...]
    after: str
    upto: str


def read_part(uri: str, part: FeedPart, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the part's rows with the columns of `schema`, file by file. Raises StorageError."""
    stored = [name for name in schema.names if name not in (FEED, SHARD)]
    for rows in part_columns(uri, part, [*stored, *([] if ULID_TEXT in stored else [ULID_TEXT])]):
        constants = {FEED: pa.repeat(part.feed, len(rows)), SHARD: pa.repeat(part.shard, len(rows))}
        columns = [constants[name] if name in constants else rows[name] for name in schema.names]
        yield pa.table(columns, names=schema.names).cast(schema)


def part_columns(uri: str, part: FeedPart, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of the part's files, with the ulids' texts among them, by row groups. Raises StorageError."""
    ulids = pc.field(ULID_TEXT)
    for path in part.paths:
        with (
            delta_faults(f"read {path}"),
            open_parquet(uri, path, None) as file,
        ):
            for number in groups_between(file, part.after, part.upto):
                group = file.read_groups([number], names, None)
                yield group.filter((ulids > part.after) & (ulids <= part.upto))
