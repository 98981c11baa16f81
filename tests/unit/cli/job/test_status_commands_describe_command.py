"""`iscp-admin job describe`: what it prints of one job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from click.testing import Result

from iscp.cli.shell import render
from iscp.model.api.api_requests import EventView
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.values.progress import RunProgress
from tests.fakes.admin import FakeAdmin
from tests.fakes.node_calls import PROGRESS
from tests.fakes.operators import FakeOperator

JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def placement(operator: FakeOperator) -> None:
    """The table of jobs `a` and `b` is one shard, which is not where it should be; two events are its own."""
    operator.shard = replace(operator.shard, table_id="id-of-/t", preferred="n-2", target="n-2", why="n-2 is full")
    operator.terms = [
        [
            EventView(3, 1, 1_700_000_000.0, "dispatch", "n-1", "id-of-/t", "it is new"),
            EventView(3, 2, 1_700_000_001.0, "dispatch", "n-1", "id-of-/u", "it is another's"),
            EventView(3, 3, 1_700_000_002.0, "revoke", "n-1", "id-of-/t", "it did not answer"),
        ]
    ]


def test_a_page_has_spec_state_iterations_place_and_events(
    run: Run, service: FakeAdmin, operator: FakeOperator
) -> None:
    service.apply("/t", "a", 4)
    result = run("job", "describe", "/t", "a")
    assert operator.tables == ["id-of-/t"], "other tables' events are not sent"
    assert result.exit_code == 0, result.output
    page = result.stdout
    for words in (
        "state            fresh",
        "  now, as the source is ahead, together with the table's other default jobs (trigger default)",
        "  target: /copy",
        "  range 1 is on n-1 and not on n-2: n-2 is full",
        "TABLE  RANGE  STATE    NODE  PREFERRED  PINNED  WHY",
        "SEQ  KIND  FROM  TO",
        "3.1      dispatch n-1 id-of-/t  it is new",
        "3.3      revoke   n-1 id-of-/t  it did not answer",
    ):
        assert words in page
    assert "it is another's" not in page


def test_a_job_without_iterations_says_so(run: Run) -> None:
    page = run("job", "describe", "/t", "a").stdout
    assert "none yet" in page
    assert "at once: the first iteration does not wait for the trigger" in page


def test_json_has_the_shapes_of_the_single_commands(run: Run, service: FakeAdmin) -> None:
    for version in (1, 2, 3):
        service.apply("/t", "a", version)
    described = json.loads(run("job", "describe", "/t", "a", "--limit", "2", "-o", "json").stdout)
    assert described["job"] == json.loads(run("job", "status", "/t", "a", "-o", "json").stdout)
    assert [each["to_version"] for each in described["iterations"]] == [3, 2]
    assert described["shards"] == json.loads(run("shard", "list", "/t", "-o", "json").stdout)
    assert [each["number"] for each in described["events"]] == [1, 3]


def test_a_spec_that_was_damaged_is_shown_as_it_is(run: Run, service: FakeAdmin) -> None:
    service.show("/t", "a", spec_json="{", applied_version=7)
    page = run("job", "describe", "/t", "a").stdout
    assert "\nspec\n  {\n" in page
    assert "never: the spec cannot be read" in page


def test_a_running_iteration_shows_what_was_measured_of_it(run: Run, service: FakeAdmin) -> None:
    service.show("/t", "a", state=JobState.RUNNING, progress=PROGRESS)
    for command in ("describe", "status"):
        page = run("job", command, "/t", "a").stdout
        for words in (
            "applying for 2.0 s",
            "7 of 12 tasks of Spark that are known so far",
            "900 rows, 4.0 kB read, 450 rows/s, 2.0 kB/s",
            "500 of 1,000 rows, 2.0 kB written",
            "about 2.0 s left",
        ):
            assert words in page
    assert json.loads(run("job", "status", "/t", "a", "-o", "json").stdout)["progress"]["left_s"] == 2.0
    service.show("/t", "a", progress=None)
    assert json.loads(run("job", "status", "/t", "a", "-o", "json").stdout)["progress"] is None


@pytest.mark.parametrize(
    ("progress", "lines"),
    [
        (RunProgress("apply", 5.0, 61.0), ["applying for 61.0 s"]),
        (
            RunProgress("verify", 5.0, 3.0, 9, 2, 70, 500, rows_per_s=23.0, bytes_per_s=160.0),
            [
                "comparing for 3.0 s",
                "2 of 9 tasks of Spark that are known so far",
                "70 rows, 500 bytes read, 23 rows/s, 160 bytes/s",
            ],
        ),
        (RunProgress("apply", 5.0, 3.0, bytes_total=1_500_000), ["applying for 3.0 s", "1.5 MB to be read"]),
        (
            RunProgress("apply", 5.0, 3.0, rows_written=9, rows_total=8),
            ["applying for 3.0 s", "9 rows, 0 bytes written"],
        ),
    ],
    ids=["nothing measured", "comparison", "range", "more than all"],
)
def test_what_is_not_known_of_an_iteration_is_not_shown(progress: RunProgress, lines: list[str]) -> None:
    assert render.progress_lines(progress) == lines


def test_a_job_that_is_retried_says_when(run: Run, service: FakeAdmin) -> None:
    status = JobStatus(error_code=9, error_msg="away", failures=4, retry_at_s=4_000_000_000.0)
    for reason in (Reason.RETRYING, Reason.QUARANTINED):
        service.show("/t", "a", state=JobState.ERROR, reason=reason, status=status)
        for command in ("status", "describe"):
            page = run("job", command, "/t", "a").stdout
            assert "next retry" in page
            assert "at 2096-10-02 07:06:40Z" in page
            assert "4 failures in a row" in page
        shown = json.loads(run("job", "status", "/t", "a", "-o", "json").stdout)["status"]
        assert (shown["failures"], shown["retry_at_s"]) == (4, 4_000_000_000.0)
    service.show("/t", "a", state=JobState.COMPLETED, reason=Reason.NONE, status=status)
    assert "next retry" not in run("job", "status", "/t", "a").stdout


def test_what_is_wrong_with_a_job_is_in_its_warnings(run: Run, service: FakeAdmin) -> None:
    status = JobStatus(error_code=9, error_msg="cannot be read", dead_letters=3, warning="compared")
    service.show("/t", "a", status=status, state=JobState.ERROR, reason=Reason.RETRYING, late=True, lag_s=9.0)
    warnings = json.loads(run("job", "describe", "/t", "a", "-o", "json").stdout)["warnings"]
    assert warnings == [
        "error 9: cannot be read",
        "late: it lags by 9.0 s, more than its target lag",
        "3 rows share a key, and are left out of the target (dead-lettered)",
        "compared",
        "range 1 is on n-1 and not on n-2: n-2 is full",
    ]


def test_a_job_that_is_not_there_is_refused(run: Run) -> None:
    result = run("job", "describe", "/t", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no job 'x' on /t" in result.stderr
