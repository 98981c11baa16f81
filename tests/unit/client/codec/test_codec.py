"""Values survive encoding and decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.client.codec.api_messages import (
    HISTORY_ENTRY,
    JOB,
    JOB_FILTER,
    JOB_NAME,
    JOB_UPDATE,
    REGISTER_RESULT,
    REGISTRATION,
    cluster_from_wire,
    cluster_to_wire,
    filter_from_wire,
)
from iscp.model.api.api_requests import (
    ClusterView,
    JobFilter,
    JobName,
    JobView,
    RegisterRequest,
    RegisterResult,
    UpdateRequest,
)
from iscp.model.job.iteration import HistoryEntry, JobMaintenance, MaintenanceFigures
from iscp.model.job.job_row import JobStatus
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import AT_S_MOST, COUNT_MOST, printable
from iscp.wire.v1 import admin_pb2 as pb

# Floats as protobuf's doubles are; integers as int64 and, for codes, int32; texts as UTF-8 can hold.
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
st.register_type_strategy(str, TEXT)
CODES = st.integers(-(2**31), 2**31 - 1)
T = TypeVar("T")


def filled(kind: type[T], **given: Any) -> st.SearchStrategy[T]:
    """Values all of whose fields vary, those with a default too; `builds` alone would leave these as they are."""
    assert is_dataclass(kind)
    return st.builds(kind, **{field.name: ... for field in fields(kind)} | given)


STEPS = st.integers(0, 2**31 - 1)
STATUSES = filled(JobStatus, error_code=CODES, step=STEPS, steps=STEPS)
COUNTS = st.integers(0, COUNT_MOST)
FIGURES = st.builds(
    MaintenanceFigures,
    **dict.fromkeys(("submitted", "running", "waiting", "completed", "failed", "timeout", "rejected"), COUNTS),
    **dict.fromkeys(("hanging", "quarantined"), st.booleans()),
    error_code=st.integers(0, 2**31 - 1),
    error_msg=TEXT.map(printable),
    next_at_s=st.floats(0.0, AT_S_MOST),
)
SPANS = st.floats(-1.0, 1e9)
RUNS = st.builds(
    RunProgress,
    purpose=TEXT,
    started_at_s=st.floats(0.0, AT_S_MOST),
    elapsed_s=SPANS,
    **dict.fromkeys(("tasks", "tasks_done", "rows_read", "bytes_read", "rows_written", "bytes_written"), COUNTS),
    **dict.fromkeys(("rows_total", "bytes_total"), st.integers(-1, COUNT_MOST)),
    **dict.fromkeys(("rows_per_s", "bytes_per_s", "left_s"), SPANS),
)
UPKEEPS = st.builds(JobMaintenance, refresh=st.none() | FIGURES, purge=st.none() | FIGURES)
TARGET_FIGURES = st.dictionaries(TEXT, SPANS, max_size=3)
JOBS = filled(JobView, status=STATUSES, upkeep=UPKEEPS, progress=st.none() | RUNS, ranges=STEPS, figures=TARGET_FIGURES)
NAMES = filled(JobName, account=TEXT.filter(bool))


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    ("values", "there", "back"),
    [
        (NAMES, JOB_NAME.to_wire, JOB_NAME.from_wire),
        (
            filled(RegisterRequest, job=NAMES),
            REGISTRATION.to_wire,
            REGISTRATION.from_wire,
        ),
        (filled(UpdateRequest, job=NAMES), JOB_UPDATE.to_wire, JOB_UPDATE.from_wire),
        (filled(RegisterResult), REGISTER_RESULT.to_wire, REGISTER_RESULT.from_wire),
        (JOBS, JOB.to_wire, JOB.from_wire),
        (filled(HistoryEntry, error_code=CODES), HISTORY_ENTRY.to_wire, HISTORY_ENTRY.from_wire),
    ],
    ids=["name", "registration", "update", "result", "job", "history"],
)
def test_every_value_comes_back_the_same(
    values: st.SearchStrategy[Any], there: Callable[[Any], Any], back: Callable[[Any], Any]
) -> None:
    @given(values)
    def holds(value: Any) -> None:
        assert back(over_the_wire(there(value))) == value

    holds()


@given(filled(JobFilter, limit=st.integers(1, 2**31)))
def test_a_filter_comes_back_the_same(wanted: JobFilter) -> None:
    assert filter_from_wire(over_the_wire(JOB_FILTER.to_wire(wanted)), wanted.limit) == wanted


@given(filled(ClusterView))
def test_a_cluster_comes_back_the_same(cluster: ClusterView) -> None:
    found = [over_the_wire(page) for page in cluster_to_wire(cluster)]
    assert cluster_from_wire(found) == cluster


def test_an_unset_account_is_the_default_one() -> None:
    assert JOB_NAME.from_wire(pb.JobName(table="/t", name="n")) == JobName("/t", "n", "default")


def test_an_unset_limit_is_the_default_one() -> None:
    assert filter_from_wire(pb.JobFilter(), 0) == JobFilter()


def test_states_of_a_newer_version_are_refused_not_guessed() -> None:
    filter_of_newer = pb.JobFilter.FromString(b"\x18\x63")  # state = 99
    with pytest.raises(InvalidRequest, match=r"filter\.state"):
        filter_from_wire(filter_of_newer, 0)
    with pytest.raises(PermanentError, match="as new as the node"):
        JOB.from_wire(pb.Job.FromString(b"\x38\x63"))  # state = 99
