"""Lines of logs name jobs so that each is found by the job that it is about, and by no other."""

from __future__ import annotations

import pytest

from iscp.model.api.api_requests import JobOfLines
from iscp.model.build.build_task import BuildPlan
from iscp.model.job.registration_id import LOGGED_JOBS_MAX, logged_job, logged_jobs, logged_plan
from tests.fakes.bench import URI
from tests.fakes.bench import job as a_job

ROW = a_job("x")
OTHERS = [a_job("x")._replace(job_id="other"), a_job("y")._replace(job_id="y")]


def lines_of(row_id: str) -> JobOfLines:
    return JobOfLines(row_id, ROW.key.job_name, ROW.key.account, (ROW.table_name, URI))


PLAN = BuildPlan(ROW.job_id, ROW.key.account, ROW.key.table_id, ROW.key.job_name, URI, 7, ROW.spec_json, 0, 1)


@pytest.mark.parametrize(
    "fields", [logged_job(ROW), logged_job(ROW, "/elsewhere"), logged_plan(PLAN), logged_jobs([ROW, *OTHERS[1:]])]
)
def test_a_line_about_a_job_is_found_by_it_and_by_no_later_job_of_its_name(fields: dict[str, object]) -> None:
    assert lines_of(ROW.job_id).named_in(fields)
    assert not lines_of("other").named_in(fields)


def test_a_line_about_more_jobs_than_it_names_concerns_all_of_the_table() -> None:
    rows = [ROW._replace(job_id=str(number)) for number in range(LOGGED_JOBS_MAX + 1)]
    assert logged_jobs(rows[1:])["job_ids"] == [row.job_id for row in rows[1:]]
    about = {"table": URI, "account": ROW.key.account}
    assert not lines_of("elsewhere").named_in(about | logged_jobs(rows[1:]))
    assert lines_of("elsewhere").named_in(about | logged_jobs(rows))
