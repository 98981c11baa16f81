"""Columns of any name and type, of a source that Spark wrote with all that Delta has, come out as they are."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import DataType

from .conftest import Pipeline

pytestmark = pytest.mark.spark

COLUMNS = """id BIGINT, `a.b` STRING, count INT, d DECIMAL(20,4), t TIMESTAMP, n TIMESTAMP_NTZ, dt DATE, bin BINARY,
    c CHAR(5), vc VARCHAR(5), f FLOAT, dbl DOUBLE, s STRUCT<x:INT,`y.z`:STRING>, arr ARRAY<STRING>, m MAP<STRING,INT>"""
ROW = """({id}, 'p', 1, 12.34, timestamp'1850-01-01 00:00:01.5', timestamp_ntz'2020-01-01 00:00:00', date'1500-01-01',
    X'00FF', 'ab', 'vc', float('nan'), -0.0D, named_struct('x', 1, 'y.z', 'w'), array('a', null), map('k', 1))"""
PROPERTIES = "delta.enableChangeDataFeed=true, delta.enableDeletionVectors=true, delta.columnMapping.mode='name'"


def remake(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.source)
    pipeline.sql(f"CREATE TABLE SOURCE ({COLUMNS}) USING delta PARTITIONED BY (count) TBLPROPERTIES ({PROPERTIES})")
    pipeline.sql("INSERT INTO SOURCE VALUES " + ",".join(ROW.format(id=id_) for id_ in range(6)))


@pytest.mark.full
def test_names_and_types_by_every_way(pipeline: Pipeline) -> None:
    """Snapshot, tail in this process and in Spark, and difference; keys of several columns that updates change."""
    remake(pipeline)
    by_spark = pipeline.new_runner(pipeline.failpoints, small_bytes_max=-1)
    all_of_it = pipeline.job("all", key=("ID",))
    some = pipeline.job("some", key=("count", "a.b", "id"), columns=("id", "a.b", "COUNT", "t", "dt"))

    def run(expected: DataType) -> None:
        for outcome in [*pipeline.run(all_of_it, runner=by_spark), *pipeline.run(some)]:
            assert (outcome.error_code, outcome.data_type) == (0, expected), outcome.error_msg
        pipeline.assert_equal_by_spark("all")
        pipeline.assert_equal_by_spark("some", ("id", "a.b", "count", "t", "dt"))

    run(DataType.SNAPSHOT)
    pipeline.sql("UPDATE SOURCE SET `a.b` = 'new' WHERE id < 3")
    pipeline.sql("DELETE FROM SOURCE WHERE id = 4")
    pipeline.sql("INSERT INTO SOURCE VALUES " + ROW.format(id=77))
    run(DataType.TAIL)
    for name in ("all", "some"):
        DeltaTable(pipeline.target(name)).delete("id = 5")
    pipeline.sql("UPDATE SOURCE SET count = 2 WHERE id = 2")
    run(DataType.DIFFERENCE)
