"""The files that Delta writes beside each commit: written quickly, and none left that misleads other readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iscp.spark.jvm_launch import SIDE_FILES
from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark


def test_each_commit_has_its_summary_and_no_checksum_of_it_is_left(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    uri, log = str(tmp_path / "table"), tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    # As `rm *` leaves it of a log that was there before.
    stale = log / f".{1:020d}.crc.crc"
    stale.write_bytes(b"crc\0\0\0\2\0\0\0\0")
    session = spark_runtime.new_session()
    assert session.conf.get("spark.sql.streaming.checkpointFileManagerClass") == SIDE_FILES
    for version in range(3):
        session.range(version + 1).write.format("delta").mode("append").save(uri)
    summaries = {each.name: json.loads(each.read_text()) for each in log.glob("[0-9]*.crc")}
    assert sorted(summaries) == [f"{version:020d}.crc" for version in range(3)]
    assert summaries[f"{2:020d}.crc"]["numFiles"] > 0
    assert [each.name for each in log.iterdir() if each.name.startswith(".")] == []


@pytest.mark.further  # each time: changefeed_spark/test_stream.py
def test_a_stream_keeps_its_place_by_it(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    source, target, state = (str(tmp_path / name) for name in ("source", "target", "state"))
    session = spark_runtime.new_session()
    for rows in (3, 4):
        session.range(rows).write.format("delta").mode("append").save(source)
        stream = session.readStream.format("delta").load(source)
        writer = stream.writeStream.format("delta").option("checkpointLocation", state)
        writer.trigger(availableNow=True).start(target).awaitTermination()
    assert session.read.format("delta").load(target).count() == 7
    assert sorted(each.name for each in Path(state, "commits").iterdir()) == ["0", "1"]
