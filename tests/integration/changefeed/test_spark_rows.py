"""Frames of Spark in a transaction of a changefeed, between other rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from iscp.changefeed import Changefeed, InvalidRequest
from iscp.spark.session import SparkRuntime

Opened = Callable[..., Changefeed]


@pytest.mark.spark
@pytest.mark.slow
def test_a_frame_is_part_of_a_transaction_in_its_order(opened: Opened, uri: str, spark_runtime: SparkRuntime) -> None:
    feed, session = opened(), spark_runtime.new_session()
    frame = session.sql("SELECT 's' AS who, id % 7 AS txn, id AS number FROM range(1000)")
    with feed.transaction(0) as transaction:
        one = transaction.append([{"who": "a", "txn": 0, "number": -1}])
        some = transaction.append(frame, order_by=["txn", ("number", "descending")], operation="loaded")
        other = transaction.append([{"who": "a", "txn": 0, "number": -2}])
        assert (len(one), len(some), len(other)) == (1, 1000, 1)
    rows = feed.read(limit=5_000).rows
    assert rows["ulid_text"].to_pylist() == [*one, *some, *other]
    expected = sorted(range(1000), key=lambda number: (number % 7, -number))
    assert [each["number"] for each in rows["row"].to_pylist()] == [-1, *expected, -2]
    assert set(rows["operation"].to_pylist()) == {"insert", "loaded"}
    before = sorted(path for path in Path(uri).rglob("*") if path.is_file())
    with pytest.raises(InvalidRequest):
        feed.append(1, session.range(5))
    with pytest.raises(InvalidRequest, match="one text for all"):
        feed.append(1, frame, operation=["a"] * 1000)
    assert sorted(path for path in Path(uri).rglob("*") if path.is_file()) == before
    assert not len(feed.append(1, frame.where("false")))
