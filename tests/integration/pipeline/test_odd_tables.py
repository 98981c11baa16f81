"""Tables as other writers leave them: a target equals what Spark reads, or the job is refused, with a reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from iscp.model.job.iteration import DataType
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from tests.fakes.checkpoints import another_table_with, edit_checkpoint
from tests.integration.pipeline.conftest import SPARK_IN_FULL, Pipeline
from tests.integration.pipeline.odd_tables import (
    MAPPING,
    READ,
    READ_ONLY,
    REFUSED,
    SMALL,
    Maker,
    alter,
    by_sql,
    collate,
    collated,
    edited,
    newest_commit,
    plain,
    separate_by_blank_lines,
    with_column,
)
from tests.integration.pipeline.odd_tables import (
    rows as odd_rows,
)
from tests.selection import in_full

pytestmark = pytest.mark.spark


def made(pipeline: Pipeline, make: Maker) -> None:
    pipeline.source = f"{pipeline.root}/odd"
    with pipeline.engine.session() as session:
        make(pipeline.source, session)


def assert_equal(pipeline: Pipeline, name: str) -> None:
    """The target holds just what Spark reads, in columns of the same types."""
    with pipeline.engine.session() as session:
        wanted, found = (_told(session, uri) for uri in (pipeline.source, pipeline.target(name)))
        assert found == wanted


def _told(session: SparkSession, uri: str) -> tuple[list[tuple[str, str]], list[str]]:
    frame = session.read.format("delta").load(uri)
    rows = frame.selectExpr("to_json(struct(*))").collect()
    return frame.dtypes, sorted(row[0] for row in rows)


def keep(pipeline: Pipeline, name: str) -> None:
    """A replica by key and one without are built; the first is brought on by a delete."""
    made(pipeline, READ[name])
    jobs = [pipeline.job("keyed", key=("id",)), pipeline.job("bare")]
    for outcome in pipeline.run(*jobs):
        assert outcome.ok, f"{outcome.error_code}: {outcome.error_msg}"
    for job in jobs:
        assert_equal(pipeline, job.key.job_name)
    if name not in READ_ONLY:
        pipeline.sql("DELETE FROM SOURCE WHERE id = 1")
        (outcome,) = pipeline.run(jobs[0])
        assert outcome.ok, f"{outcome.error_code}: {outcome.error_msg}"
        assert_equal(pipeline, "keyed")


def refuse(pipeline: Pipeline, make: Maker, reason: str) -> None:
    made(pipeline, make)
    with pytest.raises(InvalidRequest) as refused:
        pipeline.job("j", key=("id",))
    assert refused.value.code in (ErrorCode.TABLE_UNREADABLE, ErrorCode.INVALID_REQUEST)
    assert reason in str(refused.value)
    assert refused.value.field == "table"
    assert refused.value.remedy
    assert len(str(refused.value)) < 2_000
    assert not Path(pipeline.target("j")).exists()


@SPARK_IN_FULL
def test_blank_lines_in_a_commit_hold_up_no_job(pipeline: Pipeline) -> None:
    """Spark's reader of changes fails at them."""
    job = pipeline.job("j", key=("id",))
    (built,) = pipeline.run(job)
    assert built.ok, built.error_msg
    for value in "yz":
        pipeline.upsert([1, 100], value)
        separate_by_blank_lines(newest_commit(pipeline.source))
        (outcome,) = pipeline.run(job)
        assert outcome.ok, f"{outcome.error_code}: {outcome.error_msg}"
        pipeline.assert_equal("j")
    pipeline.upsert([2], "y")
    (outcome,) = pipeline.run(job)
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.TAIL)
    pipeline.assert_equal("j")


def test_texts_with_a_collation_are_refused_and_all_else_is_kept(pipeline: Pipeline) -> None:
    made(pipeline, collated)
    for key in (("id",), ()):
        with pytest.raises(InvalidRequest, match="would keep v, whose texts have a collation") as refused:
            pipeline.job("j", key=key)
        assert refused.value.field == "spec.iteration.consumer.columns"
    job = pipeline.job("j", key=("id",), columns=("id",), where="v < 'v3'")
    (outcome,) = pipeline.run(job)
    assert outcome.ok, outcome.error_msg
    pipeline.assert_equal("j", lambda row: str(row["v"]) < "v3", ("id",))


@pytest.mark.further  # each time: texts with a collation above
@SPARK_IN_FULL
def test_a_collation_that_comes_later_stops_the_jobs_that_keep_its_texts(pipeline: Pipeline) -> None:
    """By changes, by a comparison, and at a build."""
    keyed, bare, log = pipeline.job("keyed", key=("id",)), pipeline.job("bare"), pipeline.job("log", columns=("id",))
    without = pipeline.job("without", key=("id",), columns=("id", "g"), where="v < 'y'")
    jobs = (keyed, bare, log, without)
    assert all(outcome.ok for outcome in pipeline.run(*jobs))
    collate(pipeline.source, "v")
    anew = pipeline.job("keyed", registration=2, key=("id",), columns=("id", "g"))
    anew = anew._replace(spec_json=keyed.spec_json)
    for row in (keyed, keyed, anew):
        outcomes = pipeline.run(row, bare, log, without)
        assert [outcome.error_code for outcome in outcomes] == [ErrorCode.SCHEMA_CHANGED] * 2 + [0, 0], outcomes
        for outcome in outcomes[:2]:
            assert outcome.error_msg.startswith("spec.iteration.consumer.columns: the source's v has texts with a coll")
            assert "job resync" in outcome.error_msg
    chosen = pipeline.job("keyed", registration=3, key=("id",), columns=("id", "g"))
    assert pipeline.run(chosen)[0].ok
    pipeline.assert_equal("keyed", columns=("id", "g"))


def test_a_type_change_that_spark_does_not_know_stops_a_job_for_good(pipeline: Pipeline) -> None:
    made(pipeline, plain)
    job = pipeline.job("j", key=("id",))
    assert pipeline.run(job)[0].ok
    change = {
        "type": "decimal(4,1)",
        "metadata": {"delta.typeChanges": [{"fromType": "byte", "toType": "decimal(4,1)"}]},
    }
    alter(pipeline.source, "id", change, readers=("typeWidening",))
    for _ in range(2):
        (outcome,) = pipeline.run(job)
        assert outcome.error_code == ErrorCode.TABLE_UNREADABLE, outcome.error_msg
        assert "decimal(4,1)" in outcome.error_msg.lower()


IN_STRUCT = {"type": "struct", "fields": [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in "xyX"]}


@pytest.mark.parametrize(
    ("change", "names"),
    [({"name": "ID"}, "id and ID"), ({"type": IN_STRUCT}, "v.x and v.X")],
    ids=["columns", "fields"],
)
@pytest.mark.slow(but=1)
def test_names_that_differ_by_case_alone_are_refused_and_stop_the_jobs_that_run(
    pipeline: Pipeline, change: dict[str, object], names: str
) -> None:
    refuse(
        pipeline,
        with_column("v", change),
        f"has columns whose names differ by case alone, which Spark does not distinguish: {names}",
    )
    shutil.rmtree(pipeline.source)
    made(pipeline, plain)
    keyed, bare, narrow = pipeline.job("j", key=("id",)), pipeline.job("bare"), pipeline.job("narrow", columns=("id",))
    assert all(outcome.ok for outcome in pipeline.run(keyed, bare, narrow))
    alter(pipeline.source, "v", change)
    for _ in range(2):
        for outcome in pipeline.run(keyed, bare, narrow):
            assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
            assert f"differ by case alone: {names}. Have one of them renamed or dropped" in outcome.error_msg
    alter(pipeline.source, str(change.get("name", "v")), {"name": "v", "type": "string"})
    write_deltalake(pipeline.source, odd_rows(20), mode="append")
    for outcome in pipeline.run(keyed, bare, narrow):
        assert outcome.ok, outcome.error_msg
    assert_equal(pipeline, "j")
    assert_equal(pipeline, "bare")


def test_a_file_whose_path_is_no_uri_stops_a_job_for_good_with_that_path(pipeline: Pipeline) -> None:
    name = "at=1971-07-22T03:06:40Z.parquet"
    path = edited(lambda each: {"add": {**each["add"], "path": name}} if "add" in each else each)
    made(pipeline, path)
    (outcome,) = pipeline.run(pipeline.job("j", key=("id",)))
    assert outcome.error_code == ErrorCode.TABLE_UNREADABLE, outcome.error_msg
    assert name in outcome.error_msg


@pytest.mark.further  # each time: test_unreadable_files.py
def test_a_deletion_vector_that_is_gone_is_named_and_not_the_data_that_it_is_of(pipeline: Pipeline) -> None:
    made(pipeline, READ["deletion vectors"])
    (vector,) = Path(pipeline.source).glob("deletion_vector_*.bin")
    kept = vector.rename(vector.with_name("aside"))
    job = pipeline.job("j", key=("id",))
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.error_msg.split(" is not there")[0]) == (ErrorCode.FILE_LOST, str(vector))
    kept.rename(vector)
    assert pipeline.run(job)[0].ok
    assert_equal(pipeline, "j")


def test_an_old_version_of_a_table_that_nobody_has_written_to_for_long_is_read(pipeline: Pipeline) -> None:
    pipeline.insert([100])
    day_s = 86_400
    for days, commit in enumerate(sorted(Path(pipeline.source, "_delta_log").glob("*.json")), start=300):
        at_s = commit.stat().st_mtime - (600 - days) * day_s
        os.utime(commit, (at_s, at_s))
    job = pipeline.job("j", key=("id",))
    (outcome,) = pipeline.run(job, to=0)
    assert (outcome.error_msg, outcome.watermark.version) == ("", 0)
    (outcome,) = pipeline.run(job)
    assert (outcome.error_msg, outcome.watermark.version) == ("", 1)
    pipeline.assert_equal("j")


@pytest.mark.further  # each time: what Spark reads below, and a checkpoint in test_damaged_sources.py
def test_a_checkpoint_that_contradicts_the_commits_is_read_as_spark_reads_it(pipeline: Pipeline) -> None:
    """A column that only the checkpoint has: deltalake and Spark both take its word."""
    made(pipeline, plain)
    jobs = [pipeline.job("keyed", key=("id",)), pipeline.job("bare")]
    assert all(outcome.ok for outcome in pipeline.run(*jobs))
    write_deltalake(pipeline.source, odd_rows(10), mode="append")
    edit_checkpoint(pipeline.source, another_table_with("missing"))
    for outcome in pipeline.run(*jobs):
        assert outcome.error_msg == ""
    for name in ("keyed", "bare"):
        assert_equal(pipeline, name)


@pytest.mark.parametrize("feed", in_full([True, False]), ids=["changes", "appends"])
def test_what_comes_to_a_table_mapped_by_ids_is_read_in_a_session_that_is_new(
    pipeline: Pipeline, spark_runtime: SparkRuntime, feed: bool
) -> None:
    """A node's first work after its start; Delta prepares a session only when it has analysed a query."""
    properties = f"{MAPPING.format('id')}, 'delta.enableChangeDataFeed' = '{feed}'"
    made(pipeline, by_sql("id BIGINT, v STRING", "VALUES (1, 'a')", properties))
    job = pipeline.job("j", key=("id",))
    assert pipeline.run(job)[0].ok
    pipeline.sql("INSERT INTO SOURCE VALUES (2, 'b')")
    pipeline.engine = SparkEngine(spark_runtime.root, spark_runtime.new_session)
    (outcome,) = pipeline.run(job, runner=pipeline.new_runner(pipeline.failpoints))
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.TAIL)
    assert_equal(pipeline, "j")


@pytest.mark.parametrize("name", in_full([*READ][:SMALL]))
@pytest.mark.slow
def test_what_spark_reads_is_kept(pipeline: Pipeline, name: str) -> None:
    keep(pipeline, name)


@pytest.mark.parametrize("name", in_full([*REFUSED][:SMALL]))
def test_what_no_engine_reads_is_refused_with_the_reason(pipeline: Pipeline, name: str) -> None:
    refuse(pipeline, *REFUSED[name])


@pytest.mark.full
@pytest.mark.parametrize("name", [*READ][SMALL:])
def test_everything_that_spark_reads_is_kept(pipeline: Pipeline, name: str) -> None:
    keep(pipeline, name)


@pytest.mark.full
@pytest.mark.parametrize("name", [*REFUSED][SMALL:])
def test_everything_that_no_engine_reads_is_refused_with_the_reason(pipeline: Pipeline, name: str) -> None:
    refuse(pipeline, *REFUSED[name])


def test_a_feature_that_comes_while_a_job_runs_stops_it_for_good(pipeline: Pipeline) -> None:
    made(pipeline, plain)
    job = pipeline.job("j", key=("id",))
    assert pipeline.run(job)[0].ok
    features = {"readerFeatures": ["nobodyKnows"], "writerFeatures": ["nobodyKnows"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    Path(pipeline.source, "_delta_log", f"{2:020d}.json").write_text(json.dumps(protocol))
    repeat_commit(pipeline.source, 3)
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.TABLE_UNREADABLE, outcome.error_msg
    assert "nobodyKnows" in outcome.error_msg


def repeat_commit(uri: str, version: int) -> None:
    """A commit like the one before the last, under another version."""
    log = Path(uri, "_delta_log")
    (log / f"{version:020d}.json").write_text((log / f"{version - 2:020d}.json").read_text())
