"""Which jobs a build is for, by what their rows say."""

from __future__ import annotations

import pytest

from iscp.cluster.builds.builder_loop import fault_report, news_of, plan_of, wanted_builds
from iscp.model.build.build_state import BuildOver, BuildWanted, ShowFault
from iscp.model.build.build_task import BuildRequest
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason, apply_report
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Watermark
from tests.fakes.bench import job

REQUEST = BuildRequest(7, 1 << 30, 2)


def reported(state: JobState, reason: Reason, code: ErrorCode = ErrorCode.OK) -> JobRow:
    status = JobStatus(error_code=int(code), build=REQUEST)
    return job("x")._replace(state=state, reason=reason, status_json=status.to_json())


WANTING = {
    "being built": reported(JobState.PENDING, Reason.BUILDING),
    "retried": reported(JobState.ERROR, Reason.RETRYING, ErrorCode.STORAGE),
    "quarantined": reported(JobState.ERROR, Reason.QUARANTINED, ErrorCode.FILE_LOST),
}
OVER = {
    "paused": reported(JobState.CANCELED, Reason.PAUSED),
    "failed for good": reported(JobState.ERROR, Reason.NONE, ErrorCode.TABLE_UNREADABLE),
    "dropped": reported(JobState.PENDING, Reason.BUILDING)._replace(drop_at_s=5.0),
    "published": reported(JobState.PENDING, Reason.BUILDING)._replace(watermark=Watermark(7)),
}


@pytest.mark.parametrize("name", WANTING)
def test_a_job_that_may_go_on_wants_its_build(name: str) -> None:
    row = WANTING[name]
    plan = plan_of(row)
    assert plan is not None
    assert wanted_builds([row], plan_of) == ([plan], [row.job_id])
    assert news_of([row], {row.job_id}, plan_of) == [BuildWanted(plan)]


@pytest.mark.parametrize("name", OVER)
def test_a_job_that_does_not_gives_its_tables_turn_to_others(name: str) -> None:
    row = OVER[name]
    assert wanted_builds([row], plan_of) == ([], [])
    assert news_of([row], {row.job_id}, plan_of) == [BuildOver(row.job_id)]


def test_a_fault_of_a_build_is_in_the_jobs_status_until_it_goes_on() -> None:
    row = WANTING["being built"]
    failed = fault_report(row, ShowFault(row.job_id, ErrorCode.STORAGE, "no permission"))
    assert failed is not None
    shown = apply_report(row, failed)
    assert shown is not None
    assert (shown.state, shown.reason, shown.status.error_msg) == (JobState.ERROR, Reason.RETRYING, "no permission")
    assert wanted_builds([shown], plan_of)[1] == [row.job_id]
    better = fault_report(shown, ShowFault(row.job_id, ErrorCode.OK))
    assert better is not None
    assert apply_report(shown, better) == row


def test_a_fault_for_good_does_not_end_the_build_and_of_one_that_is_over_nothing_is_said() -> None:
    row = WANTING["being built"]
    report = fault_report(row, ShowFault(row.job_id, ErrorCode.TABLE_UNREADABLE, "nobody reads that"))
    assert report is not None
    shown = apply_report(row, report)
    assert shown is not None
    assert not shown.failed_for_good
    for over in OVER.values():
        assert fault_report(over, ShowFault(over.job_id, ErrorCode.STORAGE, "no permission")) is None
