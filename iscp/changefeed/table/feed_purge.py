"""Takes the oldest files out of a changefeed, and keeps in the same commit up to where each shard lost its rows.

Readers compare their cursors with that: one that is behind it has missed something. A file goes as a whole; where
files overlap, after a compaction, rows of a file that stays may lie before what is noted, and are not read any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import RemoveAction

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.delta.storage.locations import place
from iscp.changefeed.table.feed_files import list_files
from iscp.changefeed.table.feed_table import FeedTable

SHARDS_PER_TEXT = 256
"""Shards whose purge positions share one text of the log; the others have texts of their own."""

PURGED_FILES_MAX = 10_000
"""Files that one commit of a purge removes; further commits remove the others."""


@dataclass(frozen=True, slots=True)
class PurgedFiles:
    """`purged`: each shard's last ulid that is gone, as text, of all purges up to this one; `more`: files are left."""

    files: int
    rows: int
    purged: Mapping[int, str]
    more: bool


def purged_names(shards: int) -> list[str]:
    """Return the names of the texts that record what was purged of a feed with so many shards."""
    return ["purged", *(f"purged/{first}" for first in range(SHARDS_PER_TEXT, shards, SHARDS_PER_TEXT))]


def read_purged(table: FeedTable) -> dict[int, str]:
    """Return each shard's last ulid that is gone, as text, as of now; without the shards that have lost none."""
    return _parsed(table.texts(purged_names(table.description.shards)))


def purge_files(table: FeedTable, bounds: Mapping[int, str], now_ms: int, *, dry_run: bool = False) -> PurgedFiles:
    """Remove the files of which no ulid lies behind its shard's bound, the oldest first and so many at a time.

    Raises what `FeedTable.commit` does; Conflict where another purge was first.
    """
    seen = table.texts(purged_names(table.description.shards))
    gone = _parsed(seen)
    with delta_faults(f"read the feed {table.uri}"):
        there = list_files(open_delta(place(table.uri)))
    found = _removable(there, bounds)
    found = found.take(pc.sort_indices(found, [("last", "ascending")]))
    taken = found.slice(0, PURGED_FILES_MAX)
    for file in taken.to_pylist():
        gone[file["shard"]] = max(gone.get(file["shard"], ""), file["last"])
    if len(taken) and not dry_run:
        remove = [
            RemoveAction(file["path"], True, now_ms, file["size"], table.description.partition(file["shard"]))
            for file in taken.to_pylist()
        ]
        with table.draft() as draft:
            table.commit(draft, {}, _texts(gone), seen, remove)
    rows = pc.sum(taken["rows"]).as_py() or 0
    return PurgedFiles(len(taken), rows, gone, len(found) > len(taken))


def _removable(files: pa.Table, bounds: Mapping[int, str]) -> pa.Table:
    shards, ulids = pa.array(bounds.keys(), pa.int32()), pa.array(bounds.values(), pa.string())
    bound = ulids.take(pc.index_in(files["shard"].combine_chunks(), shards))
    return files.filter(pc.fill_null(pc.less_equal(files["last"], bound), False))


def _parsed(texts: Mapping[str, str | None]) -> dict[int, str]:
    return {int(shard): ulid for text in texts.values() if text for shard, ulid in json.loads(text).items()}


def _texts(gone: Mapping[int, str]) -> dict[str, str]:
    parts: dict[str, dict[str, str]] = {}
    for shard, ulid in sorted(gone.items()):
        first = shard - shard % SHARDS_PER_TEXT
        parts.setdefault(f"purged/{first}" if first else "purged", {})[str(shard)] = ulid
    return {name: json.dumps(part) for name, part in parts.items()}
