"""The examples of the documentation that use Spark do what it says, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from iscp import changefeed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEXT = (Path(__file__).parents[3] / "docs/changefeed.md").read_text()


@pytest.mark.further  # each time: test_stream.py, and what runs in test_frames.py
def test_the_examples_run_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    feed = tmp_path / "orders_feed"
    changefeed.create(feed, pa.schema([("id", pa.int64()), ("state", pa.string())]), key=["id"])
    with changefeed.open(feed) as opened:
        opened.append(0, [{"id": 0, "state": "new"}])
        cursor = opened.last_cursor()
    names: dict[str, Any] = {"spark": spark, "changefeed": changefeed, "cursor": cursor}
    for block in blocks:
        exec(block.replace("/lake/", f"{tmp_path}/"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert names["recent"].count() == 1_001
    assert names["frame"].count() == 1_000
    copy = spark.read.format("delta").load(str(tmp_path / "orders_copy"))
    assert [row.id for row in copy.orderBy("ulid_text").collect()] == [0, *range(1_000)]
