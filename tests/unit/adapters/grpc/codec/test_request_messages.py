"""Changes of many jobs and their outcomes over the wire, also those that only a newer node or client knows."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.codec.request_messages import (
    CHECKED_JOB,
    JOB_CHANGE,
    changes_from_wire,
    filter_from_wire,
    outcome_from_wire,
    outcome_to_wire,
)
from iscp.core.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobFilter, JobName
from iscp.core.api.api_views import Action, CheckedJob
from iscp.core.values.errors import InvalidRequest, JobNotFound, PermanentError
from iscp.wire.v1 import admin_pb2 as pb

JOB = JobName("/lake/t", "j", "acme")


def test_changes_come_back_in_their_order() -> None:
    changes = [JobChange(verb, JOB) for verb in ChangeVerb]
    assert changes_from_wire(map(JOB_CHANGE.to_wire, changes)) == changes


@pytest.mark.parametrize("verb", [0, 99])
def test_a_verb_that_is_not_known_is_refused_by_its_place(verb: int) -> None:
    known = JOB_CHANGE.to_wire(JobChange(ChangeVerb.PAUSE, JOB))
    newer = pb.JobChange.FromString(b"\x08" + bytes([verb]))
    with pytest.raises(InvalidRequest, match=f"{verb} is not known") as refused:
        changes_from_wire([known, newer])
    assert refused.value.field == "changes[1].verb"


@pytest.mark.parametrize("outcome", [True, False])
def test_an_outcome_says_whether_anything_changed(outcome: ChangeOutcome) -> None:
    message = pb.ChangeOutcome.FromString(outcome_to_wire(outcome).SerializeToString())
    assert outcome_from_wire(message) is outcome


def test_a_refusal_comes_back_as_the_same_error() -> None:
    found = outcome_from_wire(outcome_to_wire(JobNotFound("no such job", about="job", remedy="Check it")))
    assert isinstance(found, JobNotFound)
    assert (found.message, found.field, found.remedy) == ("no such job", "job", "Check it")


@pytest.mark.parametrize("detail", [pb.ErrorDetail(), pb.ErrorDetail(code=7, kind="FromTheFuture", message="m")])
def test_a_refusal_of_a_newer_kind_stays_a_refusal(detail: pb.ErrorDetail) -> None:
    found = outcome_from_wire(pb.ChangeOutcome(error=detail))
    assert isinstance(found, PermanentError)
    assert found.message == (detail.message or "the answer is of a newer kind")


def test_a_refusal_that_is_of_a_field_alone_has_its_class() -> None:
    found = outcome_from_wire(outcome_to_wire(InvalidRequest("", about="job")))
    assert isinstance(found, InvalidRequest)
    assert found.field == "job"


def test_a_checked_job_has_its_action_or_its_error() -> None:
    for action in Action:
        checked = CheckedJob(action, "id", "{}", "job")
        assert CHECKED_JOB.from_wire(CHECKED_JOB.to_wire(checked)) == checked
    refused = CHECKED_JOB.from_wire(CHECKED_JOB.to_wire(CheckedJob(error=InvalidRequest("wrong", about="f"))))
    assert isinstance(refused.error, InvalidRequest)
    assert (refused.error.message, refused.error.field) == ("wrong", "f")


def test_a_filter_has_a_default_limit_and_no_states_that_are_not_known() -> None:
    assert filter_from_wire(pb.JobFilter(), 0) == JobFilter()
    assert filter_from_wire(pb.JobFilter(table="t"), 3).limit == 3
    for name, tag in (("state", b"\x18"), ("reason", b"\x20")):
        with pytest.raises(InvalidRequest, match="99 is not known here") as refused:
            filter_from_wire(pb.JobFilter.FromString(tag + b"\x63"), 0)
        assert refused.value.field == f"filter.{name}"
