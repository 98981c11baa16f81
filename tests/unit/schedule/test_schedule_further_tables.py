"""Tables that a job reads besides its own are probed at its own table's pace, and wake the job when they move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.model.values.watermark import SourceMark, SourceMarks, Watermark
from tests.fakes.timetable import URI, Timetable, job, outcome, seen, specified

OTHER, THIRD = "/tables/t-2", "/tables/t-3"


def marks(**versions: int) -> SourceMarks:
    uris = {"own": URI, "other": OTHER, "third": THIRD}
    return {uris[name]: SourceMark(name, Watermark(version, 1.0)) for name, version in versions.items()}


def view(name: str, version: int = -1, **read: int) -> JobRow:
    """One that was read up to these versions: of its own table, and of those that are named."""
    tables = {"a": URI, "b": OTHER, "c": THIRD} if "third" in read else {"a": URI, "b": OTHER}
    consumer = {"kind": "view", "target": f"/{name}", "options": {"sql": "…", "tables": tables}}
    row = specified(job(name, version), iteration={"consumer": consumer})
    return row._replace(status_json=JobStatus(sources=marks(own=version, **read)).to_json()) if version >= 0 else row


def done(row: JobRow, version: int, *, committed: bool = True, **read: int) -> JobOutcome:
    return replace(outcome(row, version, committed=committed), sources=marks(own=version, **read))


@pytest.fixture
def table() -> Timetable:
    """A view that is up to date with its two tables, and a replica; they have rested for a while."""
    made = Timetable()
    made.source.commit(URI, 8)
    made.source.commit(OTHER, 4)
    made.start(view("v", 7, other=3), job("copy", 7))
    made.wait(2_000)
    assert not made.submitted
    made.forget()
    return made


def test_a_further_table_that_rests_is_probed_as_rarely_as_the_jobs_own(table: Timetable) -> None:
    table.wait(3_600)
    assert table.source.looks[OTHER] == table.source.looks[URI] <= 121
    assert not table.submitted


def test_a_commit_of_a_further_table_has_its_view_run_and_no_other(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    assert table.now_running == [(("v",), None)]
    assert [lag_s > 0 for _, lag_s in seen(table)][-1]
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=4))
    assert table.told("v")[-1] == ("completed", "none")
    assert table.reports[-1].status is not None
    assert table.reports[-1].status.sources == marks(own=7, other=4)
    assert seen(table)[-1] == (7, 0.0)
    table.forget()
    table.wait(3_600)
    assert not table.submitted


def test_that_it_runs_for_a_further_table_puts_no_target_in_doubt(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    table.fail(table.last.number)
    assert table.reports[-1].status is not None
    assert table.reports[-1].status.doubted_at_s == 0


def test_what_was_read_by_a_commit_that_a_failure_followed_is_known(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    committed = replace(done(row, 7, committed=False, other=4), seq=row.seq + 1, error_code=ErrorCode.STORAGE)
    table.end(table.last.number, committed)
    assert table.told("v")[-1][0] == "error"
    assert table.reports[-1].status is not None
    assert table.reports[-1].status.sources == marks(own=7, other=4)
    assert seen(table)[-1] == (7, 0.0)


def test_what_a_further_table_commits_meanwhile_is_taken_next(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    table.source.commit(OTHER)
    table.end(table.last.number, done(row, 7, other=4))
    assert [len(table.running), len(table.submitted)] == [1, 2]
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=5))
    assert not table.running


def test_marks_that_move_without_a_commit_are_reported_too(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, committed=False, other=4))
    assert [report.status.sources for report in table.reports if report.status] == [marks(own=7, other=4)]
    assert not table.running


def test_a_view_that_does_not_come_on_is_retried_by_backoff(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=3))
    assert not table.running
    assert table.reports[-1].status is not None
    assert table.reports[-1].status.error_code == ErrorCode.INTERNAL


def test_a_view_that_comes_on_in_one_of_its_tables_is_not_stuck(table: Timetable) -> None:
    table.update(view("v", 7, other=3, third=1))
    table.source.commit(THIRD, 4)
    table.source.commit(OTHER, 2)
    table.wait(400)
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=5, third=1))
    assert table.told("v")[-1] == ("completed", "none")
    assert table.now_running == [(("v",), None)]


def test_a_further_table_that_was_recreated_has_the_view_run(table: Timetable) -> None:
    table.source.anew(OTHER, 2)
    table.wait(400)
    assert table.now_running == [(("v",), None)]


def test_a_further_table_that_nobody_can_reach_is_the_views_own_fault(table: Timetable) -> None:
    table.source.errors[OTHER] = StorageError("gone")
    table.wait(400)
    assert table.now_running == [(("v",), None)]
    table.fail(table.last.number, ErrorCode.STORAGE)
    assert table.told("v")[-1] == (JobState.ERROR.value, "retrying")
    assert not table.told("copy")


def test_a_node_that_takes_a_view_over_sees_what_was_committed_before() -> None:
    made = Timetable()
    made.source.commit(URI, 8)
    made.source.commit(OTHER, 6)
    made.start(view("v", 7, other=3))
    assert made.now_running == [(("v",), None)]


def test_a_view_shares_no_iteration_with_its_tables_replicas(table: Timetable) -> None:
    table.source.commit(URI)
    table.notify()
    assert sorted(names for names, _ in table.now_running) == [("copy",), ("v",)]


def test_a_view_of_one_table_waits_for_no_replica_of_it() -> None:
    """It goes on while the replica's iteration, which may be a comparison, still runs."""
    made = Timetable()
    made.source.commit(URI, 8)
    consumer = {"kind": "view", "target": "/v", "options": {"sql": "…", "tables": {"a": URI}}}
    made.start(specified(job("v", 7), iteration={"consumer": consumer}), job("copy", 7))
    made.wait(60)
    for version in (8, 9):
        made.source.commit(URI)
        made.notify()
        of_view = [each for each in made.submitted if [row.key.job_name for row in each.jobs] == ["v"]]
        assert len(of_view) == version - 7
        made.end(of_view[-1].number, outcome(of_view[-1].jobs[0], version))
    assert [names for names, _ in made.now_running] == [("copy",)]


def test_what_the_owner_has_lost_of_the_marks_is_reported_again(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=4))
    table.forget()
    table.update(view("v", 7, other=3), job("copy", 7))
    assert [report.status.sources for report in table.reports if report.status] == [marks(own=7, other=4)]
    assert not table.submitted


def test_the_fault_for_which_a_view_is_not_retried_is_reported_again_with_its_marks(table: Timetable) -> None:
    """The owner has a row of before: its status is of an earlier attempt, which was retried."""
    table.source.commit(OTHER)
    table.wait(400)
    (row,) = table.last.jobs
    table.end(table.last.number, done(row, 7, other=4))
    table.source.commit(OTHER)
    table.wait(400)
    table.fail(table.last.number, ErrorCode.SCHEMA_CHANGED)
    assert table.told("v")[-1] == ("error", "none")
    table.forget()
    before = view("v", 7, other=3)
    earlier = replace(before.status, error_code=ErrorCode.TIMEOUT, failures=1).to_json()
    table.update(before._replace(state=JobState.ERROR, reason=Reason.RETRYING, status_json=earlier), job("copy", 7))
    (status,) = [report.status for report in table.reports if report.status]
    assert (status.error_code, status.sources) == (ErrorCode.SCHEMA_CHANGED, marks(own=7, other=4))
    assert table.told("v")[-1] == ("error", "none")
    table.wait(3_600)
    assert not table.submitted
