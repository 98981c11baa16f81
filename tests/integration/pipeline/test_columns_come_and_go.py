"""Columns whose types need a table feature, columns that a job names and the source loses, and columns of no type."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import DataType
from iscp.model.values.errors import ErrorCode
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline

pytestmark = pytest.mark.spark

FEATURES = {"TIMESTAMP_NTZ": "timestampNtz", "VARIANT": "variantType", "STRUCT<x:TIMESTAMP_NTZ>": "timestampNtz"}
VALUES = {
    "TIMESTAMP_NTZ": "timestamp_ntz'2020-01-01 00:00:00'",
    "VARIANT": "parse_json('[1]')",
    "STRUCT<x:TIMESTAMP_NTZ>": "named_struct('x', timestamp_ntz'2020-01-01 00:00:00')",
}


@pytest.mark.further  # each time: test_schema_histories.py, and what Spark reads in test_odd_tables.py
@pytest.mark.parametrize("kind", in_full(FEATURES, but=["TIMESTAMP_NTZ"]))
def test_a_column_that_needs_a_feature_of_the_target(pipeline: Pipeline, kind: str) -> None:
    jobs = [pipeline.job("keyed", key=("id",)), pipeline.job("log")]
    pipeline.build(*jobs)
    pipeline.sql(f"ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.feature.{FEATURES[kind]}' = 'supported')")
    pipeline.sql(f"ALTER TABLE SOURCE ADD COLUMN n {kind}")
    pipeline.sql(f"INSERT INTO SOURCE VALUES (100, 'x', 1, {VALUES[kind]})")
    for outcome in pipeline.run(*jobs):
        assert (outcome.error_code, outcome.error_msg) == (0, "")
    pipeline.sql(f"INSERT INTO SOURCE VALUES (101, 'x', 1, {VALUES[kind]})")
    # One runner that knows the target, one that has to read it.
    for id_, runner in ((102, pipeline.runner), (103, pipeline.new_runner(pipeline.failpoints))):
        pipeline.sql(f"INSERT INTO SOURCE VALUES ({id_}, 'x', 1, {VALUES[kind]})")
        for outcome in pipeline.run(*jobs, runner=runner):
            assert (outcome.error_msg, outcome.data_type, outcome.warning) == ("", DataType.TAIL, "")
    with pipeline.engine.session() as session:
        source, *targets = (
            session.read.format("delta").load(uri).selectExpr("id", "v", "g", "to_json(struct(n)) AS n").collect()
            for uri in (pipeline.source, *(pipeline.target(job.key.job_name) for job in jobs))
        )
    for target in targets:
        assert sorted(source) == sorted(target)


NAMING: dict[str, tuple[dict[str, Any], str]] = {
    "in_its_key": ({"key": ("id", "g")}, "key"),
    "in_its_filter": ({"key": ("id",), "where": "g < 9"}, "where"),
    "in_its_filter_without_a_key": ({"where": "g < 9"}, "where"),
    "in_its_columns": ({"key": ("id",), "columns": ("id", "g")}, "columns"),
}
"""Jobs that name the column `g`, and the field in which they do."""


@SPARK_IN_FULL
@pytest.mark.parametrize("change", in_full(["DROP COLUMN g", "RENAME COLUMN g TO other"]))
def test_a_column_that_jobs_name_and_the_source_loses(pipeline: Pipeline, change: str) -> None:
    """By changes, by a comparison, at a build, and once it is back; a job that does not name it goes on."""
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN g TO aside")
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN aside TO g")
    jobs = [pipeline.job(name, **spec) for name, (spec, _) in NAMING.items()]
    other = pipeline.job("other", key=("id",), columns=("id", "v"))
    built = pipeline.run(*jobs, other)
    assert [outcome.error_msg for outcome in built] == [""] * len(built)
    pipeline.sql(f"ALTER TABLE SOURCE {change}")
    pipeline.sql("DELETE FROM SOURCE WHERE id = 3")
    anew = [job._replace(job_id=f"{job.key.job_name}-2") for job in jobs]
    for rows in (jobs, jobs, anew):
        *outcomes, fine = pipeline.run(*rows, other)
        assert fine.error_msg == ""
        for outcome, (_, field) in zip(outcomes, NAMING.values(), strict=True):
            assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
            assert outcome.error_msg.startswith(f"spec.iteration.consumer.{field}: the source has no column g any more")
            assert "job resync" in outcome.error_msg


@pytest.mark.further  # each time: test_schema_histories.py
@SPARK_IN_FULL
def test_void_columns_are_not_kept_and_cost_no_comparison(pipeline: Pipeline) -> None:
    pipeline.create(
        "CREATE TABLE SOURCE (id BIGINT, nothing VOID, v STRING, s STRUCT<x:INT,y:VOID>) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed=true)",
        "INSERT INTO SOURCE VALUES (1, NULL, 'x', NULL)",
    )
    keyed, log = pipeline.job("keyed", key=("id",)), pipeline.job("log")
    pipeline.build(keyed, log)
    pipeline.sql("INSERT INTO SOURCE VALUES (2, NULL, 'y', named_struct('x', 1, 'y', NULL))")
    outcomes = pipeline.run(keyed, log)
    assert [(outcome.error_msg, outcome.data_type) for outcome in outcomes] == [("", DataType.TAIL)] * 2
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMN more VOID")
    pipeline.sql("INSERT INTO SOURCE VALUES (3, NULL, 'z', NULL, NULL)")
    outcomes = pipeline.run(keyed, log)
    assert [(outcome.error_msg, outcome.data_type) for outcome in outcomes] == [("", DataType.TAIL)] * 2
    for name in ("keyed", "log"):
        held = DeltaTable(pipeline.target(name)).to_pyarrow_table()
        assert (held.column_names, sorted(held["v"].to_pylist())) == (["id", "v", "s"], ["x", "y", "z"])
        assert {"x": 1} in held["s"].to_pylist()
