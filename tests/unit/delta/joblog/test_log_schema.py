"""Damaged rows of the job log: each is read as far as it can be, and no other row is affected."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.jobs.job_book import JobBook
from iscp.delta.joblog.log_schema import LOG_SCHEMA, last_entries, log_table, numbered
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, apply_report
from iscp.model.protocol.events import StartShard
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.spec.spec_parsing import target_of
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.schedule.schedule_machine import Schedule

SPEC = JobSpec(ConsumerSpec("replica", "/copy", key=("id",))).to_json()
DAMAGED = JobRow(
    JobKey("a", "t-1", "damaged"), "id-1", SPEC, "t", "/t", JobState.ERROR, watermark=Watermark(5, 5.0), seq=5
)
GOOD = JobRow(JobKey("a", "t-1", "good"), "id-2", SPEC, "t", "/t", watermark=Watermark(5, 5.0), seq=5)


def damaged(column: str, value: Any) -> pa.Table:
    """The two jobs' rows as they lie in the log, with one value of the first changed."""
    rows = numbered(log_table([DAMAGED, GOOD], [(), ()]), 1, 1).to_pylist()
    rows[0][column] = value
    return pa.Table.from_pylist(rows, LOG_SCHEMA)


TEXTS: list[Any] = ["", "{", "5", "[1]", '{"trigger":5}', '{"error_code":"x"}', '{"end_at":1e999}']
TEXTS += ["[" * 10_000, "\x00", "unknown"]
COUNTS: list[Any] = [-(2**63), -2, -1, 2**63 - 1]
TIMES: list[Any] = [None, -(2**63) + 1, 2**63 - 1]
VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(("job_spec", "job_state", "reason", "job_status", "table_name", "table_uri", "origin"), TEXTS),
    **dict.fromkeys(("watermark", "iteration_seq"), COUNTS),
    **dict.fromkeys(("watermark_at", "create_at"), TIMES),
    "range_id": [None, 0, -1, 128, 2**40],
    "job_id": ["", "x"],
    "table_id": ["", "x"],
}
CASES = [(column, value) for column, values in VALUES.items() for value in values]


@given(st.sampled_from(CASES))
def test_a_damaged_row_ends_neither_owner_nor_node_and_its_neighbour_goes_on(case: tuple[str, Any]) -> None:
    rows, _ = last_entries(damaged(*case))
    assert GOOD in rows
    book = JobBook(rows)
    for row in book.select():
        assert isinstance(row.status, JobStatus)
        target_of(row.spec_json)
    book.targets()
    book.sources()
    schedule = Schedule("n1", ProbeConfig(), BackoffConfig(), lambda: 0.5)
    shards = {row.key.shard for row in rows}
    for shard in shards:
        schedule.step(StartShard(shard, TableEpoch(1, 1), book.jobs_in(shard)), 1.0, 1_000.0)
    assert ShardId("t-1") in shards
    moved = apply_report(GOOD, JobReport(GOOD.key, GOOD.job_id, Watermark(6, 6.0), 6))
    assert moved is not None
    log_table(rows, [()] * len(rows))


@pytest.mark.parametrize(("column", "value"), [("watermark", -5), ("iteration_seq", -1), ("create_at", 2**63 - 1)])
def test_a_number_that_cannot_be_is_forgotten_as_the_sink_knows_better(
    column: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows, _ = last_entries(damaged(column, value))
    assert [row.watermark for row in rows] == [Watermark(), GOOD.watermark]
    assert [row.spec_json for row in rows] == [SPEC, SPEC]
    assert [record.message for record in caplog.records] == ["joblog.row_repaired"]


def test_a_row_of_no_range_is_left_out_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert last_entries(damaged("range_id", 4096))[0] == [GOOD]
    assert [record.message for record in caplog.records] == ["joblog.row_left_out"]
