"""Versions of the source that bring no rows: any number may pass, faults after them are reported, columns followed."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from iscp.cluster.jobs.job_book import JobBook
from iscp.model.job.iteration import Bounds, JobOutcome
from iscp.model.job.job_row import JobReport, JobRow, JobState
from iscp.model.spec.spec import OnDuplicate
from iscp.model.values.errors import ErrorCode

from .conftest import Pipeline

pytestmark = pytest.mark.spark


def empty_commits(pipeline: Pipeline, number: int) -> None:
    for _ in range(number):
        table = DeltaTable(pipeline.source)
        table.create_write_transaction([], "append", table.schema())


def after(row: JobRow, outcome: JobOutcome) -> JobRow:
    """The row as the node has it from then on."""
    return row._replace(watermark=outcome.watermark, seq=outcome.seq)


def test_more_of_them_than_one_iteration_takes(pipeline: Pipeline) -> None:
    runner = pipeline.new_runner(pipeline.failpoints, Bounds(versions_max=2))
    job = pipeline.job("full", key=("id",))
    job = after(job, pipeline.build(job)[0])
    empty_commits(pipeline, 5)
    pipeline.insert([900])
    reached = []
    while job.watermark.version < 6:
        job = after(job, pipeline.run(job, runner=runner)[0])
        reached.append(job.watermark.version)
    assert reached == [2, 4, 6]
    pipeline.assert_equal("full")


def test_a_fault_after_them_reaches_the_owners_book(pipeline: Pipeline) -> None:
    job = pipeline.job("full", key=("id",), policies={"on_duplicate": OnDuplicate.STOP})
    job = after(job, pipeline.build(job)[0])
    empty_commits(pipeline, 1)
    job = after(job, pipeline.run(job)[0])
    pipeline.insert([900, 900])
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.DUPLICATE_KEY
    book = JobBook([job])
    report = JobReport(job.key, job.job_id, outcome.watermark, outcome.seq, JobState.ERROR)
    assert [row.state for row in book.apply([report]).rows] == [JobState.ERROR]


@pytest.mark.further  # each time: test_column_mapping.py
def test_columns_that_are_renamed_or_lost_without_a_row_are_followed_at_once(pipeline: Pipeline) -> None:
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    job, chosen = pipeline.job("full", key=("id",)), pipeline.job("chosen", key=("id",), columns=("id", "g"))
    pipeline.run(job, chosen)
    for change in ("RENAME COLUMN v TO w", "DROP COLUMN w"):
        pipeline.sql(f"ALTER TABLE SOURCE {change}")
        assert [outcome.error_code for outcome in pipeline.run(job, chosen)] == [0, 0]
        pipeline.assert_equal_by_spark("full")
        pipeline.assert_equal_by_spark("chosen", ("id", "g"))
    pipeline.sql("ALTER TABLE SOURCE DROP COLUMN g")
    assert [outcome.error_code for outcome in pipeline.run(job, chosen)] == [0, ErrorCode.SCHEMA_CHANGED]
