"""`iscp-admin job check`: what it finds, and its exit status."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.values.errors import PermanentError
from tests.fakes.admin import FakeAdmin

JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

Run = Callable[..., Result]

QUOTA = JobStatus(error_code=5, error_msg="disk full")
AWAY = JobStatus(error_code=9, error_msg="away")
GONE = JobStatus(error_code=10_001, error_msg="no table")


@pytest.fixture(autouse=True)
def fresh(service: FakeAdmin) -> None:
    """All three jobs are up to date, as of now."""
    for table, name in (("/t", "a"), ("/t", "b"), ("/u", "c")):
        service.show(table, name, applied_version=7, lag_s=0.0, checked_at_s=time.time())


def test_fresh_jobs_end_with_0(run: Run) -> None:
    result = run("job", "check", "--max-lag", "5m")
    assert (result.exit_code, result.stdout) == (0, "3 jobs: 3 fresh\n")


@pytest.mark.parametrize(
    ("fields", "freshness", "why"),
    [
        ({"lag_s": 301.0}, "late", "it lags by 301.0 s"),
        ({"lag_s": 301.0, "reason": Reason.PAUSED}, "paused", "it lags by 301.0 s, and it is paused"),
        ({"lag_s": 301.0, "status": QUOTA}, "late", "it lags by 301.0 s: 5 disk full"),
        ({"lag_s": -1.0}, "late", "its lag is not known"),
        ({"applied_version": -1}, "building", "it is not built yet"),
        ({"checked_at_s": 0.0}, "late", "its source was last probed"),
        ({"state": JobState.ERROR, "status": GONE}, "failed", "it waits for somebody to act: 10001 no table"),
        ({"lag_s": 301.0, "reason": Reason.QUARANTINED, "status": AWAY}, "retrying", "it lags by 301.0 s: 9 away"),
        ({"reason": Reason.QUARANTINED, "status": QUOTA}, "quarantined", "it is quarantined: 5 disk full"),
    ],
)
def test_one_that_is_not_fresh_ends_with_5(
    run: Run, service: FakeAdmin, fields: dict[str, Any], freshness: str, why: str
) -> None:
    service.show("/t", "b", **fields)
    result = run("job", "check", "--max-lag", "5m", "-o", "json")
    assert result.exit_code == 5
    answer = json.loads(result.stdout)
    (found,) = answer["findings"]
    assert (found["name"], found["freshness"], found["condition"]) == ("b", freshness, freshness)
    assert found["why"].startswith(why)
    assert (answer["checked"], answer["fresh"], answer[freshness]) == (3, 2, 1)
    assert f"3 jobs: 1 {freshness}, 2 fresh\n" in run("job", "check", "--max-lag", "5m").stdout


@pytest.mark.parametrize(
    "fields",
    [
        {"lag_s": 299.0},
        {"reason": Reason.PAUSED},
        {"state": JobState.ERROR, "reason": Reason.RETRYING, "status": QUOTA, "lag_s": 10.0},
        {"late": True, "lag_s": 100.0},
    ],
)
def test_what_is_within_the_lag_is_fresh_whatever_else_it_is(
    run: Run, service: FakeAdmin, fields: dict[str, Any]
) -> None:
    service.show("/t", "b", **fields)
    assert run("job", "check", "--max-lag", "5m").exit_code == 0


def test_without_the_option_each_jobs_own_target_lag_counts(run: Run, service: FakeAdmin) -> None:
    service.show("/t", "b", lag_s=10_000.0)
    assert run("job", "check").exit_code == 0
    service.show("/t", "b", lag_s=20.0, late=True)
    assert run("job", "check").exit_code == 5


def test_an_idle_table_is_probed_rarely_and_that_is_no_fault(run: Run, service: FakeAdmin) -> None:
    service.show("/t", "b", checked_at_s=time.time() - 500)
    assert run("job", "check", "--max-lag", "1m").exit_code == 0


def test_a_pattern_chooses_and_one_that_matches_nothing_is_a_fault(run: Run, service: FakeAdmin) -> None:
    service.show("/u", "c", lag_s=9e9)
    assert run("job", "check", "/t", "--max-lag", "5m").exit_code == 0
    assert run("job", "check", "/t*", "b", "--max-lag", "5m").exit_code == 0
    assert run("job", "check", "/u*", "--max-lag", "5m").exit_code == 5
    nothing = run("job", "check", "/t*", "x")
    assert nothing.exit_code == 1
    assert nothing.stderr == "error: no job matches\n  field: T\n  remedy: See `iscp-admin job list`\n"


def test_a_node_that_refuses_ends_with_1(service: FakeAdmin, run: Run) -> None:
    service.failures = [PermanentError("no such account")]
    result = run("job", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: no such account" in result.stderr


def test_wrong_usage_ends_with_2(run: Run) -> None:
    assert run("job", "check", "--max-lag", "soon").exit_code == 2


def test_names_of_what_is_not_fresh_are_printed(run: Run, service: FakeAdmin) -> None:
    service.show("/u", "c", lag_s=9e9)
    assert run("job", "check", "--max-lag", "5m", "-o", "name").stdout == "/u\tc\n"


def test_findings_are_shown_as_yaml(run: Run, service: FakeAdmin) -> None:
    service.show("/u", "c", lag_s=9e9)
    assert "freshness: late" in run("-o", "yaml", "job", "check", "/u*", "--max-lag", "5m").stdout
