"""Changes of many jobs and their outcomes over the wire, also those that only a newer node or client knows.

Explanations survive encoding and decoding, and what a newer node says is not guessed.

What is requested and counted of builds, between versions that know different parts of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.client.codec.api_messages import (
    BUILD_REQUEST,
    CHECKED_JOB,
    JOB_CHANGE,
    changes_from_wire,
    explanation_from_wire,
    explanation_to_wire,
    filter_from_wire,
    finished_from_wire,
    finished_to_wire,
    outcome_from_wire,
    outcome_to_wire,
)
from iscp.model.api.api_requests import Action, ChangeOutcome, ChangeVerb, CheckedJob, JobChange, JobFilter, JobName
from iscp.model.build.build_task import BuildRequest
from iscp.model.query_plan import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.model.values.errors import InvalidRequest, JobNotFound, PermanentError
from iscp.model.values.progress import UNCOUNTED, UNKNOWN, UNSIZED, SnapshotSize, TableSize
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import node_pb2 as node_pb

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


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-1, 2**62)
OPERATORS = st.builds(
    ExplainedOperator,
    depth=st.integers(0, 2**31 - 1),
    operator=TEXT,
    upkeep=st.sampled_from(OperatorUpkeep),
    state=TEXT,
    reason=TEXT,
    remedy=TEXT,
    costs=st.lists(st.builds(ChangeCost, table=TEXT, changed=NUMBERS, read=NUMBERS), max_size=3).map(tuple),
)
SIZES = st.builds(TableSize, rows=NUMBERS, bytes=st.integers(0, 2**62))
TABLES = st.dictionaries(TEXT, st.tuples(TEXT, st.none() | SIZES), max_size=4)


def with_tables(explained: QueryExplanation, tables: dict[str, tuple[str, TableSize | None]]) -> QueryExplanation:
    """Sizes are those of tables, and of some of them alone."""
    sizes = {name: size for name, (_, size) in tables.items() if size is not None}
    return replace(explained, tables={name: uri for name, (uri, _) in tables.items()}, sizes=sizes)


EXPLANATIONS = st.builds(
    QueryExplanation,
    kept=st.lists(st.builds(KeptTable, uri=TEXT, holds=TEXT, size=SIZES), max_size=2).map(tuple),
    operators=st.lists(OPERATORS, max_size=4).map(tuple),
    columns=st.dictionaries(TEXT, TEXT, max_size=4),
    notes=st.lists(TEXT, max_size=3).map(tuple),
)


@given(EXPLANATIONS, TABLES)
def test_explanations_survive_with_their_order(
    explained: QueryExplanation, tables: dict[str, tuple[str, TableSize | None]]
) -> None:
    explained = with_tables(explained, tables)
    back = explanation_from_wire(explanation_to_wire(explained))
    assert back == explained
    assert [*back.columns.items(), *back.tables.items()] == [*explained.columns.items(), *explained.tables.items()]


def test_an_upkeep_of_a_newer_version_is_refused() -> None:
    newer = pb.QueryExplanation(operators=[pb.ExplainedOperator.FromString(b"\x18\x63")])  # upkeep = 99
    with pytest.raises(PermanentError, match="as new as the node"):
        explanation_from_wire(newer)


FINISHED = {"a": TableSize(10, 80), "b": TableSize(UNKNOWN, 0)}


@pytest.mark.parametrize("size", [UNSIZED, SnapshotSize(0, 0, 0), SnapshotSize(1_000, 8_000, 16)])
def test_a_request_comes_as_it_went(size: SnapshotSize) -> None:
    for pin in ("", "abcd"):
        request = BuildRequest(7, 1024, 3, size, pin)
        assert BUILD_REQUEST.from_wire(BUILD_REQUEST.to_wire(request)) == request


def test_of_an_earlier_versions_request_the_size_is_unknown() -> None:
    earlier = pb.BuildRequest(version=7, piece_bytes=1024, depth=3)
    assert BUILD_REQUEST.from_wire(earlier) == BuildRequest(7, 1024, 3, UNSIZED)


def test_what_is_finished_comes_as_it_went() -> None:
    assert finished_from_wire(finished_to_wire(FINISHED)) == FINISHED
    assert list(finished_to_wire(FINISHED).finished) == ["a", "b"], "which an earlier version reads"


def test_what_an_earlier_version_has_finished_is_uncounted() -> None:
    assert finished_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a", "b"])) == dict.fromkeys("ab", UNCOUNTED)


def test_sizes_that_cannot_be_are_refused_and_those_of_nothing_passed_over() -> None:
    sizes = [node_pb.RangeSize(rows=-2)]
    with pytest.raises(ValueError, match=r"sizes\.rows"):
        finished_from_wire(node_pb.WorkOnBuildTasksResponse(finished=["a"], sizes=sizes))
    assert finished_from_wire(node_pb.WorkOnBuildTasksResponse(sizes=[node_pb.RangeSize(rows=1)])) == {}
