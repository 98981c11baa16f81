"""`job list`: its order, its filters, and its formats."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from iscp.model.job.job_row import JobState, JobStatus
from tests.fakes.admin import FakeAdmin

JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def lags(service: FakeAdmin) -> None:
    service.show("/t", "a", lag_s=3.0, late=True, status=JobStatus(rows=1))
    service.show("/t", "b", lag_s=10.0, state=JobState.ERROR)
    service.show("/u", "c", lag_s=-1.0, late=True)


def names(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.split("\t")[1] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("options", "order"),
    [
        (("--sort-by", "lag_s"), ["c", "a", "b"]),
        (("--sort-by", "-lag_s"), ["b", "a", "c"]),
        (("--sort-by", "-status.rows"), ["a", "b", "c"]),
        (("--sort-by", "{.name}"), ["a", "b", "c"]),
        (("--sort-by", "-name", "--limit", "1"), ["c"]),
        (("--late",), ["a", "c"]),
        (("--late", "--limit", "1"), ["a"]),
        (("--failed",), ["b"]),
        (("--failed", "--late"), []),
    ],
)
def test_jobs_are_sorted_and_selected(run: Run, options: tuple[str, ...], order: list[str]) -> None:
    assert names(run("job", "list", "-o", "name", *options)) == order


def test_jobs_without_the_field_come_last_and_a_field_of_none_is_refused(run: Run, service: FakeAdmin) -> None:
    spec = '{"target_lag": 5, "iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}'
    service.show("/u", "c", spec_json=spec)
    assert names(run("job", "list", "-o", "name", "--sort-by", "spec.target_lag")) == ["c", "a", "b"]
    result = run("job", "list", "--sort-by", "lags")
    assert result.exit_code == 2
    assert "no job has such a field" in result.stderr


def test_filters_that_contradict_each_other_are_refused(run: Run) -> None:
    assert run("job", "list", "--failed", "--state", "running").exit_code == 2


def test_late_jobs_are_counted(run: Run) -> None:
    assert run("job", "count", "--late").stdout == "2\n"
    assert run("job", "count", "--failed").stdout == "1\n"


def test_wide_has_more_columns_and_a_path_picks_values(run: Run) -> None:
    wide = run("job", "list", "-o", "wide").stdout.splitlines()
    columns = "TABLE NAME STATE REASON APPLIED SOURCE LAG DEAD ACCOUNT NODE ITERATIONS CHECKED TAGS TARGET ERROR"
    assert wide[0].split() == columns.split(" ")
    assert "/copy" in wide[1]
    assert run("job", "list", "-o", "jsonpath={.items[*].lag_s}").stdout == "3.0\n10.0\n-1.0\n"
    assert run("job", "status", "/t", "a", "-o", "jsonpath=.status.rows").stdout == "1\n"
    rows = json.loads(run("job", "status", "/t", "a", "-o", "jsonpath=.status").stdout)
    assert rows["rows"] == 1
    refused = run("job", "status", "/t", "a", "-o", "jsonpath=.status.row")
    assert refused.exit_code == 2
    assert "there is no field 'row'" in refused.stderr


def test_names_are_what_commands_take(run: Run) -> None:
    assert run("node", "list", "-o", "name").stdout == "n1\n"
    assert run("shard", "list", "-o", "name").stdout == "/t\n"
    assert run("job", "count", "-o", "name").exit_code == 2
