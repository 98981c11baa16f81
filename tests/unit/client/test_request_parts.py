"""What the Python client refuses before it calls anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from iscp.client.admin_client import Client
from iscp.client.codec.api_messages import JOB_FILTER
from iscp.client.request_parts import (
    WAIT_MARGIN_S,
    answer_within_s,
    changed_or_raise,
    job_filter,
    require_all,
    resync_request,
    with_ids,
    with_wait,
)
from iscp.model.api.api_requests import JobFilter, JobName, RegisterRequest
from iscp.model.job.job_row import JobState, Reason
from iscp.model.values.errors import InvalidRequest, JobNotFound
from iscp.system.tls.tls_files import FORMAT_VERSION


@pytest.mark.parametrize("field", ["key", "columns"])
def test_a_text_is_no_list_of_columns(field: str) -> None:
    """Its letters would be taken for columns, which may exist."""
    given: dict[str, Any] = {field: "id"}
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest, match="a text and no list") as refused:
        client.register("/t", "a", target="/copy", **given)
    assert (refused.value.field, refused.value.remedy) == (field, f"Write it as in {field}=['id']")


@pytest.mark.parametrize("limit", [0, -1, 1 << 32])
def test_a_limit_is_a_number_above_0(limit: int) -> None:
    with Client("127.0.0.1:1") as client:
        for call in (lambda: client.jobs(limit=limit), lambda: client.history("/t", "a", limit=limit)):
            with pytest.raises(InvalidRequest, match=f"limit is {limit}: must be a whole number above 0"):
                call()


def test_many_requests_may_come_from_any_iterable() -> None:
    requests = [RegisterRequest(JobName("/t", name), "{}") for name in "ab"]
    assert require_all(iter(requests), RegisterRequest) == requests
    assert [each.job for each in with_ids((each for each in requests), RegisterRequest)] == [
        each.job for each in requests
    ]
    bad: list[Any] = [1, iter([1]), "a"]
    for wrong in bad:
        with pytest.raises(InvalidRequest, match="requests"):
            with_ids(wrong, RegisterRequest)


def test_a_call_that_waits_leaves_time_for_its_answer() -> None:
    @dataclass
    class Wait:
        timeout_s: float = 0.0

    def method(request: Wait, *, timeout: float) -> tuple[float, float]:
        return request.timeout_s, timeout

    assert answer_within_s(10.0, "timeout_s") == 10.0 + WAIT_MARGIN_S
    assert with_wait(method)(Wait(), timeout=10.0 + WAIT_MARGIN_S) == (10.0, 10.0 + WAIT_MARGIN_S)
    assert with_wait(method)(Wait(), timeout=1.0) == (0.0, 1.0)


@pytest.mark.parametrize(("state", "reason", "field"), [("gone", None, "state"), (None, "gone", "reason")])
def test_a_state_or_reason_that_is_none_is_refused_by_its_field(
    state: str | None, reason: str | None, field: str
) -> None:
    with pytest.raises(InvalidRequest, match="'gone' is not known") as refused:
        job_filter("", "", state, reason, "", "", False)
    assert refused.value.field == field
    found = job_filter("a", "/t", "error", Reason.PAUSED, "t*", "n*", True)
    assert JOB_FILTER.from_wire(found) == JobFilter(
        account="a",
        table="/t",
        state=JobState.ERROR,
        reason=Reason.PAUSED,
        table_pattern="t*",
        name_pattern="n*",
        late=True,
    )


def test_the_outcome_of_one_change_is_returned_or_raised() -> None:
    assert changed_or_raise(True)
    assert not changed_or_raise(False)
    with pytest.raises(JobNotFound, match="no such job"):
        changed_or_raise(JobNotFound("no such job"))


def test_a_resync_has_a_request_id_of_its_own() -> None:
    one, other = (resync_request(JobName("/t", "copy"), "/new", "{}") for _ in range(2))
    assert (one.table, one.spec_json, one.format_version) == ("/new", "{}", FORMAT_VERSION)
    assert one.request_id
    assert one.request_id != other.request_id
