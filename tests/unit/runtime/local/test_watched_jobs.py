"""What a page is shown of a watch: rows as reports make them, and why a job is not taken in."""

from __future__ import annotations

import pytest

from iscp.coordination.protocol.events import Reports, Seen
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason
from iscp.core.values.errors import ErrorCode, JobNotFound, TableNotFound
from iscp.core.values.watermark import DeadLetters, Position, Watermark
from iscp.runtime.local import watched_jobs
from iscp.runtime.local.job_registrar import RunOrders
from iscp.runtime.local.local_run import failed
from iscp.runtime.local.watched_jobs import HISTORY_MAX, WatchedJobs
from tests.fakes.local_runs import TABLE, Local
from tests.fakes.viewed_cluster import history_entry


class Watched:
    """Two replicas of one table, of which the first is taken in."""

    def __init__(self, local: Local) -> None:
        self.local = local
        requests = local.request("copy"), local.request("late")
        self.requested = dict(enumerate(local.requested(*requests)))
        self.jobs = WatchedJobs(self.requested, "run", local.clock)
        self.row = local.registrar.register(requests[0], RunOrders()).row
        self.jobs.take(0, self.row)

    def report(self, version: int, seq: int, state: JobState = JobState.COMPLETED, rows: int = 0) -> None:
        status = JobStatus(rows=rows)
        report = JobReport(self.row.key, self.row.job_id, Watermark(version, 1.0), seq, state, Reason.NONE, status)
        self.jobs.hear_reports(Reports(self.row.key.shard, (report,)))

    def see(self, version: int, lag_s: float = 0.0) -> None:
        at_s = self.local.clock.now_s()
        self.jobs.hear_seen(Seen(SourceSeen(self.row.key.shard, version, at_s, lag_s)))

    def iterate(self, row: JobRow, *seqs: int) -> None:
        named = {"account": row.key.account, "table_id": row.key.table_id, "job_name": row.key.job_name}
        self.jobs.hear_reports(Reports(row.key.shard, (), tuple(history_entry(seq, **named) for seq in seqs)))


@pytest.fixture
def watched(local: Local) -> Watched:
    return Watched(local)


def test_a_job_is_as_its_last_report_and_probe_say(watched: Watched) -> None:
    watched.report(4, 2, JobState.RUNNING)
    watched.report(5, 3, rows=7)
    watched.report(4, 2)  # has come late
    watched.see(5)
    view = watched.jobs.view(TABLE, "copy", "")
    assert (view.state, view.applied_version, view.source_version, view.seq) == (JobState.COMPLETED, 5, 5, 3)
    assert (view.status.rows, view.lag_s, view.node_id) == (7, 0.0, "run")
    watched.see(9, lag_s=3.0)
    assert watched.jobs.view(TABLE, "copy", "").lag_s == pytest.approx(3.0)


def test_reports_of_another_registration_are_ignored(watched: Watched) -> None:
    watched.row = watched.row._replace(job_id="of-before")
    watched.report(5, 3)
    assert watched.jobs.view(TABLE, "copy", "").applied_version == -1


def test_a_job_that_waits_for_its_table_says_so_until_it_is_taken_in(watched: Watched) -> None:
    assert [view.reason for view in watched.jobs.views()] == [Reason.NONE, Reason.NONE]
    fault = failed(watched.requested[1], TableNotFound("is not a table", field="table", remedy="Create it"))
    watched.jobs.refuse(1, fault, again=True)
    late = watched.jobs.views()[1]
    assert (late.state, late.reason, late.name) == (JobState.COMPLETED, Reason.RETRYING, "late")
    assert late.status.error_code == ErrorCode.TABLE_NOT_FOUND
    assert "Create it" in late.status.error_msg

    row = watched.local.registrar.register(watched.requested[1].request, RunOrders()).row
    watched.jobs.take(1, row)
    assert [(view.job_id, view.reason) for view in watched.jobs.views()][1] == (row.job_id, Reason.NONE)


def test_a_job_that_is_refused_for_good_has_failed(watched: Watched) -> None:
    watched.jobs.refuse(1, failed(watched.requested[1], ValueError("odd")), again=False)
    assert [view.state for view in watched.jobs.views()] == [JobState.COMPLETED, JobState.ERROR]
    assert watched.jobs.row(TABLE, "late", "") is None
    assert watched.jobs.history(TABLE, "late", "", 9) == []


def test_the_last_iterations_are_remembered_the_newest_first(watched: Watched) -> None:
    watched.iterate(watched.row, *range(1, HISTORY_MAX + 3))
    found = watched.jobs.history(TABLE, "copy", "", 3)
    assert [each.seq for each in found] == [HISTORY_MAX + 2, HISTORY_MAX + 1, HISTORY_MAX]
    assert len(watched.jobs.history(TABLE, "copy", "", 10_000)) == HISTORY_MAX


def test_of_many_jobs_fewer_iterations_are_remembered(local: Local) -> None:
    (job,) = local.requested(local.request("copy"))
    many = dict.fromkeys(range(watched_jobs.ENTRIES_MAX // 2), job)
    jobs = WatchedJobs(many, "run", local.clock)
    watched = Watched(local)
    watched.jobs = jobs
    jobs.take(0, watched.row)
    watched.iterate(watched.row, 1, 2, 3)
    assert [each.seq for each in jobs.history(TABLE, "copy", "", 10)] == [3, 2]


@pytest.mark.parametrize("named", [("/lake/other", "copy", ""), (TABLE, "other", ""), (TABLE, "copy", "acme")])
def test_a_job_that_is_none_of_the_run_is_not_found(watched: Watched, named: tuple[str, str, str]) -> None:
    with pytest.raises(JobNotFound):
        watched.jobs.view(*named)


def test_a_job_is_found_by_the_id_and_the_place_of_its_table(watched: Watched) -> None:
    for table in (TABLE, watched.row.key.table_id):
        assert watched.jobs.row(table, "copy", watched.row.key.account) == watched.row


def test_jobs_that_lag_are_found_those_that_lag_most_first(watched: Watched) -> None:
    row = watched.local.registrar.register(watched.requested[1].request, RunOrders()).row
    now_s = watched.local.clock.now_s()
    watched.jobs.take(0, watched.row._replace(watermark=Watermark(1, now_s - 50.0)))
    watched.jobs.take(1, row._replace(watermark=Watermark(1, now_s - 90.0)))
    watched.see(2, lag_s=100.0)
    assert [each.key.job_name for each in watched.jobs.lagging(40.0)] == ["late", "copy"]
    assert [each.key.job_name for each in watched.jobs.lagging(60.0)] == ["late"]
    assert watched.jobs.lagging(95.0) == []


def test_a_job_is_found_by_the_place_of_its_target_once_it_is_taken_in(watched: Watched) -> None:
    assert [row.key.job_name for row in watched.jobs.at("/lake/copy")] == ["copy"]
    assert watched.jobs.at("/lake/late") == []
    assert watched.jobs.at(TABLE) == []


def test_a_job_is_shown_with_what_its_source_retains(local: Local) -> None:
    (job,) = local.requested(local.request("copy"))
    jobs = WatchedJobs({0: job}, "run", local.clock, lambda row: 60.0)
    assert jobs.views()[0].retained_s == 0.0
    jobs.take(0, local.registrar.register(job.request, RunOrders()).row)
    assert jobs.views()[0].retained_s == 60.0


def test_a_job_is_shown_with_what_its_target_says_until_it_has_run(watched: Watched) -> None:
    position = Position(3, Watermark(1, 1.0), "id", "t-1", dead=DeadLetters(1, 4))
    watched.jobs.take(0, watched.row, position)
    assert watched.jobs.view(TABLE, "copy", "").status.dead_letters == 0  # it is to be built again
    watched.jobs.take(0, watched.row._replace(watermark=position.watermark), position)
    assert watched.jobs.view(TABLE, "copy", "").status.dead_letters == 4
