"""Columns whose types need a table feature, columns that a job names and the source loses, and columns of no type."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.core.errors import ErrorCode
from iscp.core.iteration import DataType

from .conftest import BOTH_WAYS, Pipeline

pytestmark = pytest.mark.spark

FEATURES = {"TIMESTAMP_NTZ": "timestampNtz", "VARIANT": "variantType", "STRUCT<x:TIMESTAMP_NTZ>": "timestampNtz"}
VALUES = {
    "TIMESTAMP_NTZ": "timestamp_ntz'2020-01-01 00:00:00'",
    "VARIANT": "parse_json('[1]')",
    "STRUCT<x:TIMESTAMP_NTZ>": "named_struct('x', timestamp_ntz'2020-01-01 00:00:00')",
}


@pytest.mark.parametrize("kind", FEATURES)
@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "no key"])
def test_a_column_that_needs_a_feature_of_the_target(pipeline: Pipeline, kind: str, key: tuple[str, ...]) -> None:
    job = pipeline.job("copy", key=key)
    pipeline.run(job)
    pipeline.sql(f"ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.feature.{FEATURES[kind]}' = 'supported')")
    pipeline.sql(f"ALTER TABLE SOURCE ADD COLUMN n {kind}")
    pipeline.sql(f"INSERT INTO SOURCE VALUES (100, 'x', 1, {VALUES[kind]})")
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.error_msg) == (0, "")
    pipeline.sql(f"INSERT INTO SOURCE VALUES (101, 'x', 1, {VALUES[kind]})")
    for runner in (
        pipeline.runner,
        pipeline.new_runner(pipeline.failpoints),
    ):  # one that knows the target, one that asks
        pipeline.sql(f"INSERT INTO SOURCE SELECT 102 + count(*), 'x', 1, {VALUES[kind]} FROM SOURCE")
        (outcome,) = pipeline.run(job, runner=runner)
        assert (outcome.error_msg, outcome.data_type, outcome.warning) == ("", DataType.TAIL, "")
    with pipeline.engine.session() as session:
        source, target = (
            session.read.format("delta").load(uri).selectExpr("id", "v", "g", "to_json(struct(n)) AS n").collect()
            for uri in (pipeline.source, pipeline.target("copy"))
        )
    assert sorted(source) == sorted(target)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("spec", "lost", "field"),
    [
        ({"key": ("id", "g")}, "g", "key"),
        ({"key": ("id",), "where": "g < 9"}, "g", "where"),
        ({"where": "g < 9"}, "g", "where"),
        ({"key": ("id",), "columns": ("id", "g")}, "g", "columns"),
    ],
)
@pytest.mark.parametrize("change", ["DROP COLUMN {}", "RENAME COLUMN {} TO other"])
def test_a_column_that_a_job_names_and_the_source_loses(
    pipeline: Pipeline, spec: dict[str, Any], lost: str, field: str, change: str
) -> None:
    """By changes, by a comparison, at a build, and once it is back."""
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN g TO aside")
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN aside TO g")
    job = pipeline.job("copy", **spec)
    other = pipeline.job("other", key=("id",), columns=("id", "v"))
    pipeline.run(job, other)
    pipeline.sql(f"ALTER TABLE SOURCE {change.format(lost)}")
    pipeline.sql("DELETE FROM SOURCE WHERE id = 3")
    anew = job._replace(job_id="copy-2")
    for row in (job, job, anew):
        outcome, fine = pipeline.run(row, other)
        assert (outcome.error_code, fine.error_msg) == (ErrorCode.SCHEMA_CHANGED, ""), outcome.error_msg
        assert outcome.error_msg.startswith(
            f"spec.iteration.consumer.{field}: the source has no column {lost} any more"
        )
        assert "job resync" in outcome.error_msg


@BOTH_WAYS
def test_void_columns_are_not_kept_and_cost_no_comparison(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.source)
    pipeline.sql(
        "CREATE TABLE SOURCE (id BIGINT, nothing VOID, v STRING, s STRUCT<x:INT,y:VOID>) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed=true)"
    )
    pipeline.sql("INSERT INTO SOURCE VALUES (1, NULL, 'x', NULL)")
    keyed, log = pipeline.job("keyed", key=("id",)), pipeline.job("log")
    pipeline.run(keyed, log)
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
