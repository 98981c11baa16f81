"""Changefeeds in a real Spark; rows get into them without it, but for those tests that are about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from iscp.changefeed.model.ulid import begin, ulid_text
from iscp.changefeed.spark import stream as changefeed_spark
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import FeedTable
from iscp.changefeed.table.file_writer import FeedRows
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp.spark.session import SparkRuntime

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DRAWN = b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xf0"
"""Of the second half the last byte, and those before, change after 16 rows."""

Appended = Callable[[int, Sequence[int]], str]


@pytest.fixture(scope="module")
def spark(spark_runtime: SparkRuntime) -> SparkSession:
    session = spark_runtime.new_session()
    changefeed_spark.register(session)
    return session


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_feed_table(str(tmp_path / "feed"), SCHEMA, 3)
    return str(tmp_path / "feed")


@pytest.fixture
def append(uri: str) -> Appended:
    """Commits rows with these ids to a shard; the text of the last ulid."""
    return appender(uri)


def appender(uri: str) -> Appended:
    feed, times_ms = opened(uri), iter(range(1_000, 1_000_000))

    def append(shard: int, ids: Sequence[int]) -> str:
        seen = feed.state(shard)
        first = begin(seen.place, next(times_ms), DRAWN)
        rows = pa.table([list(ids), [f"n{number}" for number in ids]], schema=SCHEMA)
        after = feed.append(shard, seen, first, FeedRows(rows, pa.array(["insert"] * len(ids))))
        return ulid_text(after.place.ulid(-1))

    return append


def opened(uri: str) -> FeedTable:
    return FeedTable(uri, SystemClock(), EnvironmentFailpoints({}))
