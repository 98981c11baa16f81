"""What happens to a source: after each event the target equals a recomputation, and ordinary tails go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from delta.tables import DeltaTable as SparkDeltaTable
from delta.tables import IdentityGenerator
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ChangeMode, OnReplace, OnSchemaChange
from iscp.model.values.errors import ErrorCode, InvalidRequest

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark

DATA = Path(__file__).parents[2] / "data"
FEED = {"delta.enableChangeDataFeed": "true"}


def follow(pipeline: Pipeline, *jobs: JobRow, expected: DataType | None = None) -> None:
    """One iteration, after which every target has the source's rows; `expected`: how each job was brought there."""
    for outcome in pipeline.run(*jobs):
        assert outcome.error_code == 0, outcome.error_msg
        assert expected is None or outcome.data_type is expected, outcome
    for job in jobs:
        pipeline.assert_equal_by_spark(job.key.job_name, job.spec.consumer.columns)


@pytest.mark.slow
def test_overwrites_and_restores_are_read_from_the_change_data_feed(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    pipeline.upsert([1, 2], "changed")
    write_deltalake(pipeline.source, rows(range(10, 70), "overwritten"), mode="overwrite")
    follow(pipeline, job, expected=DataType.TAIL)
    pipeline.delete("id = 20")
    DeltaTable(pipeline.source).restore(1)
    follow(pipeline, job, expected=DataType.TAIL)
    other = rows(range(30, 90), "other").set_column(2, "g", [["text"] * 60])
    write_deltalake(pipeline.source, other, mode="overwrite", schema_mode="overwrite")
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.delete("id = 31")
    follow(pipeline, job, expected=DataType.TAIL)
    pipeline.sql("RESTORE TABLE SOURCE TO VERSION AS OF 1")
    pipeline.insert([900])
    follow(pipeline, job, expected=DataType.DIFFERENCE)


@pytest.mark.further  # each time: test_versions_without_rows.py
def test_commits_without_rows_are_passed_over(pipeline: Pipeline) -> None:
    """Comments, properties, OPTIMIZE and VACUUM: nothing is committed to the target."""
    job = pipeline.job("full", key=("id",))
    pipeline.insert([100])
    pipeline.run(job)
    before = len(pipeline.commits("full"))
    for statement in (
        "ALTER TABLE SOURCE SET TBLPROPERTIES ('kept.by' = 'somebody')",
        "COMMENT ON TABLE SOURCE IS 'a table'",
        "ALTER TABLE SOURCE ALTER COLUMN v COMMENT 'a column'",
        "OPTIMIZE SOURCE",
        "VACUUM SOURCE",
    ):
        pipeline.sql(statement)
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.watermark.version, outcome.rows) == (
        0,
        DeltaTable(pipeline.source).version(),
        0,
    )
    pipeline.insert([101])
    follow(pipeline, job, expected=DataType.TAIL)
    assert sum(commit.changes_data for commit in pipeline.commits("full")[before:]) == 1


def test_changes_that_were_vacuumed_or_cleaned_away_unread(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    pipeline.upsert(range(5), "changed")
    pipeline.delete("id = 20")
    pipeline.insert([100])
    with pipeline.engine.session() as session:
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM delta.`{pipeline.source}` RETAIN 0 HOURS")
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.insert([101])
    follow(pipeline, job, expected=DataType.TAIL)

    pipeline.upsert(range(5), "again")
    pipeline.delete("id = 21")
    pipeline.insert([102])
    table = DeltaTable(pipeline.source)
    table.create_checkpoint()
    for version in range(table.version()):
        os.remove(f"{pipeline.source}/_delta_log/{version:020d}.json")
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.upsert([102], "tail")
    follow(pipeline, job, expected=DataType.TAIL)


@pytest.mark.further  # each time: a source without change data feed in test_iterations.py
def test_a_change_data_feed_that_was_off_for_a_while_or_never_on(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    feed = "ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = {})"
    pipeline.sql(feed.format("false"))
    pipeline.upsert(range(5), "unseen")
    pipeline.sql(feed.format("true"))
    pipeline.upsert(range(3, 8), "seen")
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.upsert([7], "tail")
    follow(pipeline, job, expected=DataType.TAIL)

    shutil.rmtree(pipeline.source)
    write_deltalake(pipeline.source, rows(range(9)))
    never = pipeline.job("never", key=("id",))
    follow(pipeline, never, expected=DataType.SNAPSHOT)
    pipeline.upsert([3, 30], "changed")
    pipeline.delete("id = 4")
    follow(pipeline, never, expected=DataType.DIFFERENCE)

    asked = pipeline.job("asked", key=("id",), policies={"enable_cdf": True})
    follow(pipeline, asked, expected=DataType.SNAPSHOT)
    pipeline.run(never)
    pipeline.delete("id = 5")
    follow(pipeline, asked, never, expected=DataType.TAIL)


@pytest.mark.further  # each time: test_dropped_and_recreated, and restores above
def test_replaced_while_the_log_goes_on_and_restored_past_that(pipeline: Pipeline) -> None:
    """CREATE OR REPLACE changes the table's id, and RESTORE changes it back."""
    job = pipeline.job("full", key=("id",))
    pipeline.build(job)
    replacing = f"CREATE OR REPLACE TABLE SOURCE USING delta TBLPROPERTIES ({'{}'}) AS SELECT "
    feed = "delta.enableChangeDataFeed = true"
    before = DeltaTable(pipeline.source).metadata().id
    pipeline.sql(replacing.format(feed) + "id, 'replaced' AS v, id % 3 AS g FROM range(20)")
    assert DeltaTable(pipeline.source).metadata().id != before
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.insert([100])
    follow(pipeline, job, expected=DataType.TAIL)
    pipeline.sql("RESTORE TABLE SOURCE TO VERSION AS OF 0")
    pipeline.insert([101])
    assert DeltaTable(pipeline.source).metadata().id == before
    follow(pipeline, job, expected=DataType.DIFFERENCE)
    pipeline.upsert([101], "tail")
    follow(pipeline, job, expected=DataType.TAIL)


@pytest.mark.further  # each time: test_column_mapping.py, test_schema_histories.py
def test_a_source_with_all_that_delta_has_while_its_columns_change(pipeline: Pipeline) -> None:
    """Clustered, with identity, generated columns, deletion vectors and names mapped; columns widened and renamed."""
    shutil.rmtree(pipeline.source)
    properties = ("enableChangeDataFeed", "enableDeletionVectors", "enableTypeWidening")
    with pipeline.engine.session() as session:
        new = SparkDeltaTable.create(session).location(pipeline.source).clusterBy("id")
        new = new.addColumn("id", "BIGINT").addColumn("n", "INT").addColumn("v", "STRING")
        new = new.addColumn("made", "BIGINT", generatedAlwaysAs=IdentityGenerator())
        new = new.addColumn("doubled", "BIGINT", generatedAlwaysAs="CAST(id * 2 AS BIGINT)")
        for name in properties:
            new = new.property(f"delta.{name}", "true")
        new.property("delta.columnMapping.mode", "name").execute()
    insert = "INSERT INTO SOURCE (id, n, v) VALUES "
    pipeline.sql(insert + ",".join(f"({id_}, {id_}, 'x')" for id_ in range(9)))
    full, some = pipeline.job("full", key=("id",)), pipeline.job("some", key=("id",), columns=("id", "n"))
    follow(pipeline, full, some, expected=DataType.SNAPSHOT)
    for statement, expected in (
        ("UPDATE SOURCE SET v = 'changed' WHERE id < 3", (DataType.TAIL, DataType.TAIL)),
        ("DELETE FROM SOURCE WHERE id = 4", (DataType.TAIL, DataType.TAIL)),
        ("ALTER TABLE SOURCE ALTER COLUMN n TYPE BIGINT", (DataType.DIFFERENCE, DataType.DIFFERENCE)),
        (insert + "(20, 5000000000, 'wide')", (DataType.TAIL, DataType.TAIL)),
        ("ALTER TABLE SOURCE ADD COLUMN w STRING", (DataType.DIFFERENCE, None)),
        ("UPDATE SOURCE SET w = 'there' WHERE id = 20", (DataType.TAIL, DataType.TAIL)),
        ("ALTER TABLE SOURCE RENAME COLUMN v TO V2", (DataType.DIFFERENCE, None)),
        ("ALTER TABLE SOURCE DROP COLUMN w", (DataType.DIFFERENCE, None)),
        ("OPTIMIZE SOURCE", (None, None)),
    ):
        pipeline.sql(statement)
        outcomes = pipeline.run(full, some)
        assert [(outcome.error_code, outcome.error_msg) for outcome in outcomes] == [(0, "")] * 2, statement
        seen = [outcome.data_type for outcome in outcomes]
        assert all(want in (None, got) for want, got in zip(expected, seen, strict=True)), (statement, seen)
        pipeline.assert_equal_by_spark("full")
        pipeline.assert_equal_by_spark("some", ("id", "n"))


@pytest.mark.further  # each time: test_small_changes.py
def test_a_source_that_spark_3_5_wrote_and_both_go_on_with(pipeline: Pipeline) -> None:
    """Its change data feed, deletion vectors, mapped names and partitions are read as they are."""
    shutil.rmtree(pipeline.source)
    shutil.copytree(DATA / "spark-3.5" / "orders", pipeline.source)
    job = pipeline.job("full", key=("id",))
    early = pipeline.job("early", key=("id",), columns=("id", "state", "day"))
    assert [outcome.error_msg for outcome in pipeline.run(job, early, to=1)] == ["", ""]
    tail = pipeline.run(early, to=4)[0]
    assert (tail.data_type, tail.watermark.version, tail.rows) == (DataType.TAIL, 4, 8)
    follow(pipeline, job, early)
    pipeline.sql("UPDATE SOURCE SET amount = 9 WHERE id IS NULL OR id = 2")
    follow(pipeline, job, early, expected=DataType.TAIL)


def test_dropped_and_recreated(pipeline: Pipeline) -> None:
    """At the version of the watermark, below it and above it: followed only by a job whose policy says so."""
    fails = pipeline.job("fails", key=("id",))
    follows = pipeline.job("follows", key=("id",), policies={"on_replace": OnReplace.FOLLOW})
    pipeline.upsert([3], "changed")
    pipeline.run(fails, follows)
    for commits in (1, 0, 3):
        shutil.rmtree(pipeline.source)
        write_deltalake(pipeline.source, rows(range(7), f"of {commits}"), configuration=FEED)
        for number in range(commits):
            pipeline.insert([100 + number])
        first, second = pipeline.run(fails, follows)
        assert (first.error_code, first.watermark.version) == (ErrorCode.SOURCE_REPLACED, 1)
        assert (second.error_code, second.watermark.version) == (0, commits), second.error_msg
        pipeline.assert_equal("follows")
    pipeline.upsert([100], "tail")
    follow(pipeline, follows, expected=DataType.TAIL)
    again = fails._replace(job_id="fails-2")  # as a resync does
    follow(pipeline, again, expected=DataType.SNAPSHOT)


@pytest.mark.further  # each time: a source without change data feed in test_iterations.py
def test_where_changes_are_read_from(pipeline: Pipeline) -> None:
    """Each policy on the same history, of a source whose change data feed is on, off, and on again."""
    jobs = {policy: pipeline.job(policy, key=("id",), policies={"change_source": policy}) for policy in ChangeMode}
    log = pipeline.job("log", where="g <> 3")
    tail, difference = DataType.TAIL, DataType.DIFFERENCE

    def run(auto: DataType, cdf: DataType | None, append: DataType, keyless: DataType) -> None:
        outcomes = dict(zip((*jobs, "log"), pipeline.run(*jobs.values(), log), strict=True))
        stopped = outcomes.pop(ChangeMode.CDF) if cdf is None else None
        assert stopped is None or stopped.error_code == ErrorCode.CDF_OFF
        assert [outcome.error_msg for outcome in outcomes.values()] == [""] * len(outcomes)
        expected = {"auto": auto, "cdf": cdf, "append": append, "diff": difference, "log": keyless}
        assert {name: outcome.data_type for name, outcome in outcomes.items()} == {
            name: kind for name, kind in expected.items() if name in outcomes
        }
        for name in outcomes:
            if name != "log":
                pipeline.assert_equal(name)

    pipeline.run(*jobs.values(), log)
    pipeline.insert([100])
    run(tail, tail, tail, tail)
    pipeline.upsert([100, 101], "changed")
    run(tail, tail, difference, tail)
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    with pytest.raises(InvalidRequest, match="is off"):
        pipeline.job("late", key=("id",), policies={"change_source": ChangeMode.CDF})
    pipeline.insert([102, 103])
    run(tail, None, tail, tail)
    pipeline.delete("id = 102")
    run(difference, None, difference, difference)
    # Without a key a target keeps what the source has lost, and what it was before.
    held = DeltaTable(pipeline.target("log")).to_pyarrow_table().select(["id"]).to_pydict()["id"]
    now = [id_ for id_ in (*range(50), 100, 103) if id_ % 7 != 3]
    assert sorted(held) == sorted([*now, 100, 102])


@pytest.mark.further  # each time: test_column_mapping.py
def test_a_changed_schema_stops_a_job_that_is_to_stop_but_for_new_columns(pipeline: Pipeline) -> None:
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    job = pipeline.job("full", key=("id",), policies={"on_schema_change": OnSchemaChange.STOP})
    pipeline.run(job)
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMN w STRING")
    follow(pipeline, job)
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN v TO u")
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED
    assert "v string" in outcome.error_msg
    pipeline.sql("ALTER TABLE SOURCE RENAME COLUMN u TO v")
    follow(pipeline, job)
