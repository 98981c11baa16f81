"""Changes in small files: read without Spark only where the rows are small too, and as Spark reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.change_source import DECODED_FACTOR, DeltaChangeSource
from iscp.model.job.iteration import Bounds
from tests.integration.pipeline.conftest import SPARK_IN_FULL, Pipeline
from tests.selection import in_full

pytestmark = pytest.mark.spark

ANCIENT_DAY = -683_003
"""0100-01-01 where the file's dates are of the calendar before 1582; two days earlier where they are not."""
VERSION = "org.apache.spark.version"
FEED = {"delta.enableChangeDataFeed": "true"}
FEED_ON = "delta.enableChangeDataFeed = true"


@SPARK_IN_FULL
@pytest.mark.parametrize("writer", in_full([{VERSION: "2.4.8"}, {VERSION: "3.0.3"}, {VERSION: "3.5.0"}, {}], but=2))
def test_files_of_every_writer_are_read_by_the_calendar_that_spark_reads_them_by(
    pipeline: Pipeline, writer: dict[str, str]
) -> None:
    def days(*ids: int) -> pa.Table:
        day = pa.array([ANCIENT_DAY] * len(ids), pa.int32()).cast(pa.date32())
        return pa.table({"id": pa.array(ids, pa.int64()), "day": day, "at": day.cast(pa.timestamp("us", "UTC"))})

    pipeline.source = f"{pipeline.root}/ancient"
    write_deltalake(pipeline.source, days(1), configuration={"delta.enableChangeDataFeed": "true"})
    jobs = pipeline.job("keyed", key=("id",)), pipeline.job("appended")
    assert [outcome.error_msg for outcome in pipeline.run(*jobs)] == ["", ""]
    write_deltalake(pipeline.source, days(2, 3), mode="append")
    written_by(writer, pipeline.source, version=1)
    assert [outcome.error_msg for outcome in pipeline.run(*jobs)] == ["", ""]
    pipeline.assert_equal_by_spark("keyed")
    pipeline.assert_equal_by_spark("appended")


def written_by(writer: dict[str, str], uri: str, version: int) -> None:
    """Make the files of one commit those of another writer: INT96, as Spark had it, and its name in the footer."""
    commit = Path(uri, "_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for add in (action["add"] for action in actions if "add" in action):
        file = Path(uri, add["path"])
        table = pq.read_table(file).replace_schema_metadata(writer)
        pq.write_table(table, file, use_deprecated_int96_timestamps=True, store_schema=False)
        add["size"] = file.stat().st_size
    commit.write_text("\n".join(map(json.dumps, actions)))


def test_an_empty_partition_is_what_spark_takes_it_for(pipeline: Pipeline) -> None:
    """Delta's protocol has it as a null, as deltalake does; a target has what Spark reads from its source."""
    pipeline.source = f"{pipeline.root}/partitioned"
    for number, value in enumerate(["a", "", None]):
        table = pa.table({"id": [number], "g": pa.array([value], pa.string())})
        write_deltalake(pipeline.source, table, mode="append", partition_by=["g"], configuration=FEED)
        assert [outcome.error_msg for outcome in pipeline.run(pipeline.job("copy", key=("id",)))] == [""]
    pipeline.assert_equal_by_spark("copy")


@pytest.mark.parametrize("key", [("id",), ()])
def test_few_bytes_of_many_rows_are_left_to_spark(pipeline: Pipeline, key: tuple[str, ...]) -> None:
    bound = 100_000
    job, runner = pipeline.job("copy", key=key), pipeline.new_runner(pipeline.failpoints, small_bytes_max=bound)
    pipeline.build(job)
    text, count = "x" * 1_000, bound * DECODED_FACTOR // 1_000 + 1
    ids = range(1_000, 1_000 + count)
    pipeline.insert(ids, text)
    pipeline.delete("id = 1")
    pipeline.delete("id < 5")
    (changed,) = pipeline.run(job, runner=runner)
    assert changed.ok, changed.error_msg
    if key:
        pipeline.assert_equal("copy")
    engines = [each["engineInfo"] for each in DeltaTable(pipeline.target("copy")).history(1)]
    assert "Spark" in engines[0]
    pipeline.insert(range(5_000, 5_003))
    assert [outcome.error_msg for outcome in pipeline.run(job, runner=runner)] == [""]
    assert "delta-rs" in DeltaTable(pipeline.target("copy")).history(1)[0]["engineInfo"]


def test_nothing_is_probed_where_changes_do_not_come_through_arrow(pipeline: Pipeline) -> None:
    pipeline.source = uri = f"{pipeline.root}/nested"
    pipeline.sql(f"CREATE TABLE SOURCE (id BIGINT, s STRUCT<a: INT>) USING delta TBLPROPERTIES ({FEED_ON})")
    for number in range(2):
        pipeline.sql(f"INSERT INTO SOURCE SELECT {number}, named_struct('a', 1)")
    source = DeltaChangeSource(by_spark=pipeline.by_spark)
    span = source.resolve(uri, source.at(uri, 0).to, None, Bounds())
    before_s = pipeline.engine.spent_s()[1]
    with pipeline.engine.session() as session:
        feed = source.read_cdf(session, uri, span, source.columns(uri, 2), 1)
        assert pipeline.engine.spent_s()[1] == before_s
        assert [row["id"] for row in feed.all(("id",)).collect()] == [0, 1]
