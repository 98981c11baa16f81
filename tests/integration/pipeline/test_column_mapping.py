"""Columns of a source with mapped names: a name may come to stand for another column, without a change of any row."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import DataType
from iscp.model.spec.spec import OnSchemaChange
from iscp.model.values.errors import ErrorCode
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline

pytestmark = pytest.mark.spark

MAPPED = "'delta.columnMapping.mode' = 'name'"
COLUMNS = """id BIGINT, a STRING, b STRING, s STRUCT<x:INT,y:INT>, l ARRAY<STRUCT<x:INT,y:INT>>,
    m MAP<STRING,STRUCT<x:INT,y:INT>>"""
ROW = """{0}, 'a{0}', 'b{0}', named_struct('x', {0}, 'y', -{0}), array(named_struct('x', {0}, 'y', 0)),
    map('k', named_struct('x', {0}, 'y', 0))"""


EVENTS = {
    "dropped and added": ["DROP COLUMN a", "ADD COLUMN a STRING"],
    "dropped and added within a struct": ["DROP COLUMN s.y", "ADD COLUMN s.y INT"],
    "dropped and added within an array": ["DROP COLUMN l.element.y", "ADD COLUMN l.element.y INT"],
    "dropped and added within a map": ["DROP COLUMN m.value.y", "ADD COLUMN m.value.y INT"],
    "exchanged": ["RENAME COLUMN a TO c", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b"],
    "exchanged within a struct": ["RENAME COLUMN s.x TO z", "RENAME COLUMN s.y TO x", "RENAME COLUMN s.z TO y"],
}


def remake(pipeline: Pipeline, feed: bool = True) -> None:
    pipeline.create(
        f"CREATE TABLE SOURCE ({COLUMNS}) USING delta TBLPROPERTIES "
        f"({MAPPED}, delta.enableChangeDataFeed = {str(feed).lower()})",
        "INSERT INTO SOURCE VALUES " + ",".join(f"({ROW.format(id_)})" for id_ in range(1, 5)),
    )


def alter(pipeline: Pipeline, *changes: str) -> None:
    for change in changes:
        pipeline.sql(f"ALTER TABLE SOURCE {change}")


def assert_right(pipeline: Pipeline, name: str) -> None:
    with pipeline.engine.session() as session:
        source, target = (
            session.read.format("delta").load(uri).selectExpr("to_json(struct(id, a, b, s, l, m)) AS row")
            for uri in (pipeline.source, pipeline.target(name))
        )
        assert sorted(target.collect()) == sorted(source.collect())


@pytest.mark.parametrize("event", in_full(EVENTS))
@pytest.mark.parametrize("feed", in_full([True, False]), ids=["feed", "no feed"])
@pytest.mark.slow
def test_a_name_that_represents_another_column(pipeline: Pipeline, event: str, feed: bool) -> None:
    """With rows before, between and after the changes of the columns, and without any."""
    remake(pipeline, feed)
    job = pipeline.job("copy", key=("id",))
    pipeline.build(job)
    alter(pipeline, *EVENTS[event])
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.data_type) == (0, DataType.DIFFERENCE), outcome.error_msg
    assert_right(pipeline, "copy")
    pipeline.sql(f"INSERT INTO SOURCE (id, a, b, s, l, m) VALUES ({ROW.format(7)})")
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.data_type) == (0, DataType.TAIL), outcome.error_msg
    pipeline.sql(f"INSERT INTO SOURCE (id, a, b, s, l, m) VALUES ({ROW.format(8)})")
    for change in EVENTS[event]:
        alter(pipeline, change)
    pipeline.sql(f"INSERT INTO SOURCE (id, a, b, s, l, m) VALUES ({ROW.format(9)})")
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.data_type) == (0, DataType.DIFFERENCE), outcome.error_msg
    assert_right(pipeline, "copy")


@pytest.mark.further  # each time: another column's name above
@SPARK_IN_FULL
def test_a_column_that_a_filter_names_counts_and_one_that_a_job_does_not_keep_does_not(pipeline: Pipeline) -> None:
    remake(pipeline)
    job = pipeline.job("copy", key=("id",), columns=("id", "b"), where="a > 'a2'")
    other = pipeline.job("ids", columns=("id",))
    pipeline.build(job, other)
    alter(pipeline, *EVENTS["dropped and added"])
    outcomes = pipeline.run(job, other)
    assert [outcome.data_type for outcome in outcomes] == [DataType.DIFFERENCE, DataType.TAIL]
    assert DeltaTable(pipeline.target("copy")).to_pyarrow_table().num_rows == 0
    assert DeltaTable(pipeline.target("ids")).to_pyarrow_table().num_rows == 4


@pytest.mark.further  # each time: another column's name above, and lost columns in test_columns_come_and_go.py
@pytest.mark.parametrize("event", in_full(EVENTS, but=["exchanged within a struct"]))
def test_a_job_that_is_to_stop_at_changed_columns_stops(pipeline: Pipeline, event: str) -> None:
    """Where the log says what happened, and where it was cleaned."""
    remake(pipeline)
    job = pipeline.job("copy", key=("id",), policies={"on_schema_change": OnSchemaChange.STOP})
    pipeline.build(job)
    alter(pipeline, "ADD COLUMN fine STRING")
    assert [outcome.error_msg for outcome in pipeline.run(job)] == [""]
    alter(pipeline, *EVENTS[event])
    name = EVENTS[event][0].split()[2].split(".")[0]
    for cleaned in (False, True):
        if cleaned:
            clean_log(pipeline.source)
        (outcome,) = pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))
        assert outcome.error_code == ErrorCode.SCHEMA_CHANGED
        assert f"no column {name} " in outcome.error_msg
        assert "another one of that name" in outcome.error_msg


@pytest.mark.further  # each time: another column's name above
def test_a_target_from_before_columns_were_remembered(pipeline: Pipeline) -> None:
    """What the source was at the watermark says it, or a comparison; without mapped names neither is needed."""
    remake(pipeline)
    job = pipeline.job("copy", key=("id",))
    for cleaned in (False, True):
        pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))
        forget_columns(pipeline, "copy")
        pipeline.sql(f"INSERT INTO SOURCE (id, a, b, s, l, m) VALUES ({ROW.format(10 + cleaned)})")
        (outcome,) = pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))
        assert outcome.data_type is DataType.TAIL
        forget_columns(pipeline, "copy")
        alter(pipeline, "SET TBLPROPERTIES ('touched' = 'x')")
        version = DeltaTable(pipeline.source).version()
        alter(pipeline, *EVENTS["dropped and added"])
        if cleaned:
            clean_log(pipeline.source, version - 1)
        (outcome,) = pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))
        assert outcome.data_type is DataType.DIFFERENCE
        assert_right(pipeline, "copy")


@pytest.mark.further  # each time: another column's name above
def test_a_table_whose_names_come_to_be_mapped_is_not_compared_for_that(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    alter(pipeline, f"SET TBLPROPERTIES ({MAPPED})")
    pipeline.sql("INSERT INTO SOURCE VALUES (100, 'x', 1)")
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.data_type) == (0, DataType.TAIL), outcome.error_msg
    alter(pipeline, "DROP COLUMN v", "ADD COLUMN v STRING")
    (outcome,) = pipeline.run(job)
    assert outcome.data_type is DataType.DIFFERENCE
    pipeline.assert_equal_by_spark("full", ("id", "v", "g"))


def clean_log(uri: str, before: int | None = None) -> None:
    """Without the commits up to the newest one, or up to `before`, which a checkpoint stands for."""
    table = DeltaTable(uri, version=before) if before is not None else DeltaTable(uri)
    table.create_checkpoint()
    for version in range(table.version() + (before is not None)):
        Path(uri, "_delta_log", f"{version:020d}.json").unlink(missing_ok=True)


def forget_columns(pipeline: Pipeline, name: str) -> None:
    """The newest commit of a target as an earlier release would have written it."""
    newest = DeltaTable(pipeline.target(name)).version()
    path = Path(pipeline.target(name), "_delta_log", f"{newest:020d}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if about := action.get("commitInfo"):
            tag = json.loads(about["userMetadata"])
            del tag["columns"]
            about["userMetadata"] = json.dumps(tag)
    beside = path.with_suffix(".written")
    beside.write_text("\n".join(map(json.dumps, actions)))
    Path(pipeline.target(name), "_delta_log", f".{path.name}.crc").unlink(missing_ok=True)
    os.replace(beside, path)
