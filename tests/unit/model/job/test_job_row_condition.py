"""One word for how a job is: which one, and that every surface says the same.

A spec says which tables a job reads; what is no such thing counts for nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.iscp_admin import cli
from iscp.client.codec.api_messages import JOB
from iscp.model.api.api_requests import JobFilter, JobName, RegisterRequest
from iscp.model.job.job_row import (
    JobCondition,
    JobRow,
    JobState,
    JobStatus,
    Reason,
    condition_of,
    further_tables,
    tables_of,
)
from iscp.model.values.errors import PERMANENT_FROM, ErrorCode
from iscp.model.values.ids import JobKey
from iscp.server.admin.admin_server import AdminServer
from iscp.server.boards.freshness_board import FreshnessFilter, freshness_board
from iscp.server.boards.job_board import all_facts
from tests.fakes.admin import FakeAdmin
from tests.fakes.viewed_cluster import job_view

SPEC = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy", "key": ["id"]}}}'
VIEW = (
    '{"iteration": {"consumer": {"kind": "view", "target": "/v", "options": '
    '{"sql": "SELECT 1", "tables": {"t": "/t"}}}}}'
)

JOBS: dict[str, dict[str, Any]] = {
    "fresh": {},
    "in turn": {"reason": Reason.QUOTA},
    "running": {"state": JobState.RUNNING},
    "late": {"late": True, "lag_s": 99.0},
    "unknown": {"lag_s": -1.0},
    "new": {"applied_version": -1},
    "by ranges": {"state": JobState.PENDING, "reason": Reason.BUILDING, "applied_version": -1},
    "tried": {"state": JobState.ERROR, "reason": Reason.RETRYING, "status": JobStatus(error_code=ErrorCode.ENGINE)},
    "away": {"state": JobState.ERROR, "reason": Reason.QUARANTINED, "status": JobStatus(error_code=ErrorCode.STORAGE)},
    "sick": {"state": JobState.ERROR, "reason": Reason.QUARANTINED, "status": JobStatus(error_code=ErrorCode.ENGINE)},
    "gone": {"state": JobState.ERROR, "status": JobStatus(error_code=ErrorCode.VERSION_GONE), "late": True},
    "stopped": {"reason": Reason.PAUSED, "late": True},
}
"""Jobs by their names, as their rows are."""

WORDS = {
    "fresh": "fresh",
    "in turn": "fresh",
    "running": "fresh",
    "late": "late",
    "unknown": "late",
    "new": "building",
    "by ranges": "building",
    "tried": "retrying",
    "away": "retrying",
    "sick": "quarantined",
    "gone": "failed",
    "stopped": "paused",
}


@given(
    st.sampled_from(JobState),
    st.sampled_from(Reason),
    st.sampled_from(ErrorCode),
    st.sampled_from((-1, 0, 7)),
    st.sampled_from((-1.0, 0.0, 9.0)),
    st.booleans(),
)
def test_a_job_is_fresh_only_where_nothing_else_is_known(
    state: JobState, reason: Reason, code: ErrorCode, version: int, lag_s: float, late: bool
) -> None:
    found = condition_of(state, reason, code, applied_version=version, lag_s=lag_s, late=late)
    held_up = reason in (Reason.RETRYING, Reason.QUARANTINED, Reason.PAUSED, Reason.BUILDING)
    well = state is not JobState.ERROR and not held_up and not late and version >= 0 and lag_s >= 0
    assert (found is JobCondition.FRESH) == well
    if reason is Reason.PAUSED:
        assert found in (JobCondition.PAUSED, JobCondition.FAILED)
    if found is JobCondition.FAILED:
        assert code >= PERMANENT_FROM or code == ErrorCode.OK


def test_a_node_says_the_condition_and_one_of_before_leaves_it_to_the_client() -> None:
    job = job_view(1, late=True)
    message = JOB.to_wire(job)
    assert message.condition == job.condition == "late"
    for unknown in ("", "of a later release"):
        message.condition = unknown
        assert JOB.from_wire(message).condition == "late"
    message.condition = "paused"
    assert JOB.from_wire(message).condition == "paused", "the node knows best"


@pytest.fixture(scope="module")
def service() -> FakeAdmin:
    """A cluster whose jobs are in every condition, each a view and a replica at once."""
    admin = FakeAdmin()
    for kind, spec in (("replica", SPEC), ("view", VIEW)):
        for name, fields in JOBS.items():
            admin.register([RegisterRequest(JobName("/t", f"{kind} {name}"), spec)])
            well = {"applied_version": 7, "lag_s": 0.0, "checked_at_s": 9e9}
            admin.show("/t", f"{kind} {name}", **{**well, **fields})
    return admin


@pytest.fixture(scope="module")
def endpoint(service: FakeAdmin) -> Any:
    server = AdminServer(service, "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


def admin(endpoint: str, *arguments: str) -> Any:
    done = CliRunner().invoke(cli, ["--endpoint", endpoint, *arguments, "-o", "json"])
    assert done.exit_code in (0, 5), done.output
    return json.loads(done.stdout)


def test_every_surface_counts_the_same_states_by_the_same_names(service: FakeAdmin, endpoint: str) -> None:
    wanted = Counter(WORDS[name] for name in JOBS for _ in ("replica", "view"))
    listed = admin(endpoint, "job", "list")
    assert {each["name"].partition(" ")[2]: each["condition"] for each in listed} == WORDS
    assert Counter(each["condition"] for each in listed) == wanted
    assert {each: admin(endpoint, "job", "count", "--state", each.value)["count"] for each in JobCondition} == wanted
    assert {each: len(admin(endpoint, "job", "list", "--state", each.value)) for each in JobCondition} == wanted
    checked = admin(endpoint, "job", "check")
    assert {each: checked[each] for each in JobCondition} == wanted
    assert admin(endpoint, "top", "--once")["counts"] == wanted
    assert admin(endpoint, "job", "count", "--failed")["count"] == wanted["failed"]
    views = admin(endpoint, "view", "list")
    assert Counter(each["condition"] for each in views) == {each: number // 2 for each, number in wanted.items()}
    sent = [JOB.from_wire(JOB.to_wire(each)) for each in service.list_jobs(JobFilter())]
    board = freshness_board(all_facts(sent), FreshnessFilter())
    assert board.counts == wanted


@pytest.mark.parametrize("command", [("job", "list"), ("view", "list"), ("job", "status", "/t", "replica fresh")])
def test_tables_show_these_words_and_none_of_the_job_log(endpoint: str, command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, ["--endpoint", endpoint, *command, "-o", "wide"]).stdout
    assert "fresh" in shown
    assert "completed" not in shown
    for line in shown.splitlines():
        if " away " in f" {line} ":
            assert "quarantined" not in line


def test_scripts_of_before_may_name_the_states_of_the_job_log(endpoint: str) -> None:
    assert admin(endpoint, "job", "count", "--state", "running")["count"] == 2
    refused = CliRunner().invoke(cli, ["--endpoint", endpoint, "job", "list", "--state", "unbuilt"])
    assert (refused.exit_code, "'building'" in refused.stderr) == (2, True)


def reading(tables: object) -> JobRow:
    consumer = {"kind": "view", "target": "/v", "options": {"sql": "…", "tables": tables}}
    spec = {"iteration": {"consumer": consumer}}
    return JobRow(JobKey("a", "t-1", "v"), "j-1", json.dumps(spec), "t", "/t")


def test_further_tables_are_those_besides_its_own_each_once() -> None:
    row = reading({"a": "/t", "b": "/u", "c": "/u", "d": "/w"})
    assert further_tables(row) == ("/u", "/w")
    assert tables_of(row) == {"a": "/t", "b": "/u", "c": "/u", "d": "/w"}
    assert further_tables(reading({"a": "/t"})) == ()


@pytest.mark.parametrize("tables", [{"b": "/u"}, ["/t", "/u"], {"a": "/t", "b": 1}, "/t", None])
def test_an_option_that_means_something_else_names_no_tables(tables: object) -> None:
    assert further_tables(reading(tables)) == ()


def test_a_spec_that_cannot_be_read_names_none() -> None:
    assert further_tables(reading({})._replace(spec_json='{"tables"')) == ()
