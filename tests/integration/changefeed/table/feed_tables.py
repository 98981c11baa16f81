"""A feed's table, written and read without the feed around it."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable

from iscp.changefeed.model.ulid import begin
from iscp.changefeed.table.feed_table import FeedShardState, FeedTable
from iscp.changefeed.table.file_writer import FeedRows
from iscp.changefeed.table.page_reader import READ_ROWS_MAX, FeedPage, PageReader
from iscp.delta.log.table_opening import open_delta
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.feed_program import ROWS, rows_of

INSERTS = pa.array(["insert"] * ROWS)
DRAWN = b"0123456789"


def opened(uri: str) -> FeedTable:
    return FeedTable(uri, SystemClock(), EnvironmentFailpoints({}))


def append(feed: FeedTable, shard: int, who: str, number: int = 0, now_ms: int = 1_000) -> FeedShardState:
    seen = feed.state(shard)
    return feed.append(shard, seen, begin(seen.place, now_ms, DRAWN), FeedRows(rows_of(who, number), INSERTS))


def read(uri: str, cursor: dict[int, str] | None = None, limit: int = READ_ROWS_MAX) -> FeedPage:
    return PageReader(uri).page(open_delta(uri), cursor or {}, limit)


def told(rows: pa.Table) -> list[tuple[str, int, int]]:
    """Who, in which append, and the number in it."""
    return [(each["who"], each["append"], each["number"]) for each in rows["row"].to_pylist()]


def bounds_and_paths(uri: str) -> list[tuple[str, str]]:
    actions = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    return list(zip(actions["min.ulid_text"].to_pylist(), actions["path"].to_pylist(), strict=True))
