"""Reports change a row only where they still count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, apply_report, parse_status
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import SourceMark, Watermark

KEY = JobKey("default", "t-1", "copy")
SPEC = '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'
ROW = JobRow(KEY, "j-1", SPEC, "flights", "/flights", watermark=Watermark(5, 50.0), seq=3)


def report(version: int = 6, seq: int = 4, **changes: object) -> JobReport:
    made = JobReport(KEY, "j-1", Watermark(version, 60.0), seq, JobState.COMPLETED, Reason.NONE)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_status_survives_its_json() -> None:
    status = JobStatus(1, 2, 3.5, 4.5, 9, 'disk "full"', 6, 7, 8, "slow", source_id="t-2")
    assert parse_status(status.to_json()) == status
    assert parse_status("") == JobStatus()


def test_a_report_moves_its_row() -> None:
    moved = apply_report(ROW, report(status=JobStatus(rows=8)))
    assert moved is not None
    assert (moved.watermark.version, moved.seq, moved.status.rows) == (6, 4, 8)


def test_a_job_follows_the_table_that_its_last_good_iteration_followed() -> None:
    assert ROW.source_id == "t-1"
    row = apply_report(ROW, report(status=JobStatus(source_id="t-2")))
    assert row is not None
    assert row.source_id == "t-2"
    row = apply_report(row, report(7, status=JobStatus()))  # that it runs, or has failed before it could look
    assert row is not None
    assert row.source_id == "t-2"
    row = apply_report(row, report(8, status=JobStatus(source_id="t-1")))
    assert row is not None
    assert (row.source_id, row.status.source_id) == ("t-1", "")


@pytest.mark.parametrize(
    "late",
    [
        report(job_id="j-0"),
        report(seq=2),
        report(version=4, seq=3),
        report(version=5, seq=3, watermark=ROW.watermark),
    ],
    ids=["of another registration", "a lower seq", "a lower watermark", "nothing new"],
)
def test_a_report_that_does_not_count_changes_nothing(late: JobReport) -> None:
    assert apply_report(ROW, late) is None


def test_only_a_later_iteration_may_go_back_to_a_lower_version() -> None:
    """That of a job which follows a source that was recreated."""
    moved = apply_report(ROW, report(version=2))
    assert moved is not None
    assert (moved.watermark.version, moved.seq) == (2, 4)


def test_a_dropped_job_stays_as_it_was() -> None:
    assert apply_report(ROW._replace(drop_at_s=1.0), report()) is None


def test_a_pause_outlives_an_iteration_that_ends_after_it() -> None:
    moved = apply_report(ROW._replace(reason=Reason.PAUSED), report())
    assert moved is not None
    assert moved.paused
    assert moved.watermark.version == 6


def test_a_report_of_the_watermark_alone_leaves_state_and_status() -> None:
    failed = ROW._replace(state=JobState.ERROR, reason=Reason.RETRYING, status_json=JobStatus(error_code=9).to_json())
    moved = apply_report(failed, report(state=None, reason=None))
    assert moved is not None
    assert (moved.state, moved.reason, moved.status_json) == (failed.state, failed.reason, failed.status_json)


def test_a_retry_that_runs_still_says_why_it_is_one_and_what_its_target_lacks() -> None:
    failed = report(status=JobStatus(error_code=99, error_msg="disk", dead_letters=2, warning="void", end_at_s=5.0))
    row = apply_report(ROW, replace(failed, state=JobState.ERROR, reason=Reason.RETRYING))
    assert row is not None
    again = replace(report(status=JobStatus(to_version=9, start_at_s=6.0)), state=JobState.RUNNING)
    runs = apply_report(row, replace(again, reason=Reason.RETRYING))
    assert runs is not None
    want = JobStatus(to_version=9, start_at_s=6.0, error_code=99, error_msg="disk", dead_letters=2, warning="void")
    assert (runs.state, runs.status) == (JobState.RUNNING, want)
    resumed = apply_report(row, replace(again, reason=Reason.NONE))
    assert resumed is not None
    assert resumed.status == replace(want, error_code=0, error_msg="")


def test_only_a_permanent_error_is_failed_for_good() -> None:
    def row(state: JobState, code: int) -> JobRow:
        return ROW._replace(state=state, status_json=JobStatus(error_code=code).to_json())

    assert row(JobState.ERROR, 10_004).failed_for_good
    assert not row(JobState.ERROR, 9).failed_for_good
    assert not row(JobState.COMPLETED, 10_004).failed_for_good


@given(st.permutations([(6, 4), (6, 5), (8, 6), (9, 7)]), st.data())
def test_reports_in_any_order_and_doubled_end_at_the_newest(
    order: list[tuple[int, int]], choose: st.DataObject
) -> None:
    row = ROW
    for version, seq in order + choose.draw(st.lists(st.sampled_from(order), max_size=4)):
        before = row
        row = apply_report(row, report(version, seq)) or row
        assert (row.watermark.version, row.seq) >= (before.watermark.version, before.seq)
    assert (row.watermark.version, row.seq) == (9, 7)


def test_how_far_each_table_was_read_stays_until_a_report_says_otherwise() -> None:
    marks = {"/t": SourceMark("t-1", Watermark(4, 1.5)), "/u": SourceMark("u-1", Watermark(2, 1.0))}
    assert ROW.sources == {}
    row = apply_report(ROW, report(status=JobStatus(sources=marks)))
    assert row is not None
    assert row.sources == row.status.sources == marks
    row = apply_report(row, report(seq=5, status=JobStatus(error_code=1)))
    assert row is not None
    assert row.sources == marks
    row = apply_report(row, report(seq=6, status=JobStatus(sources={"/t": marks["/t"]})))
    assert row is not None
    assert row.sources == {"/t": marks["/t"]}


def test_marks_move_within_a_seq_and_an_old_report_does_not_move_them_back() -> None:
    """Versions without rows are applied without a commit; a report of before comes again to a new owner."""

    def read(version: int, table_id: str = "u-1") -> JobReport:
        return report(status=JobStatus(sources={"/u": SourceMark(table_id, Watermark(version, 1.0))}))

    def version(row: JobRow | None) -> int:
        assert row is not None
        return row.sources["/u"].watermark.version

    row = apply_report(ROW, read(4))
    assert row is not None
    assert apply_report(row, read(3)) is None
    assert version(apply_report(row, read(5))) == 5
    assert version(apply_report(row, read(1, "u-2"))) == 1
