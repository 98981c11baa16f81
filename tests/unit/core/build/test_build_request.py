"""What a job requests survives the job log, and is refused where it cannot be meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iscp.core.build.build_request import BuildRequest, build_id, exact_build, parse_build
from iscp.core.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, apply_report, parse_status
from iscp.core.values.progress import UNKNOWN, UNSIZED, SnapshotSize
from tests.unit.core.job.test_job_row import KEY, ROW, SPEC

WANTED = BuildRequest(7, 1024, 3, SnapshotSize(1_000, 8_000, UNKNOWN))


def with_values(**values: Any) -> BuildRequest:
    sizes = {name: values.pop(name) for name in ("rows", "bytes", "pieces") if name in values}
    return replace(WANTED, size=replace(WANTED.size, **sizes), **values)


def test_the_size_that_an_earlier_version_does_not_know_is_unknown() -> None:
    earlier = {"version": 7, "piece_bytes": 1024, "depth": 3}
    assert parse_build(earlier) == BuildRequest(7, 1024, 3, UNSIZED)
    assert WANTED.document().items() >= earlier.items(), "which an earlier version reads"


def test_a_pin_is_said_where_there_is_one_and_distinguishes_builds() -> None:
    pinned = replace(WANTED, pin="abcd")
    assert parse_build(pinned.document()) == pinned
    assert "pin" not in WANTED.document(), "as an earlier version wrote it"
    assert pinned.reading != WANTED.reading
    found = [build_id("j-1", SPEC, each, "t-1", 5.0).digest for each in (WANTED, pinned, replace(WANTED, pin="ef"))]
    assert len({*found}) == 3


def test_it_survives_the_status_of_the_job_log() -> None:
    status = JobStatus(rows=1, build=WANTED)
    assert parse_status(status.to_json()) == status
    assert "build" not in JobStatus().to_json(), "as a row from before has none of it"
    assert JobRow(KEY, "j-1", SPEC, "t", "/t", status_json=status.to_json()).build == WANTED
    assert ROW.build is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": -1},
        {"version": "7"},
        {"version": True},
        {"piece_bytes": -1},
        {"piece_bytes": 2**63},
        {"depth": 17},
        {"depth": -1},
        {"depth": None},
        {"rows": -2},
        {"bytes": None},
        {"pieces": "many"},
        {"pin": 7},
    ],
)
def test_what_no_build_can_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"build.{next(iter(wrong))}"):
        parse_build(WANTED.document() | wrong)
    with pytest.raises(ValueError, match="build"):
        exact_build(with_values(**wrong))
    broken = JobStatus(build=with_values(**wrong)).to_json()
    assert "cannot be read" in parse_status(broken).warning, "of the job log too, and no more is believed of it"
    assert parse_status(broken).build is None


@pytest.mark.parametrize("found", [7, "build", [WANTED], {"version": 7}])
def test_what_is_none_at_all_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="build"):
        exact_build(found)


def test_the_row_keeps_it_while_an_iteration_runs_and_no_longer() -> None:
    waiting = JobReport(KEY, "j-1", ROW.watermark, 4, JobState.PENDING, Reason.BUILDING, JobStatus(build=WANTED))
    row = apply_report(ROW, waiting)
    assert row is not None
    assert (row.reason, row.build) == (Reason.BUILDING, WANTED)
    row = apply_report(row, replace(waiting, state=JobState.RUNNING, status=JobStatus()))
    assert row is not None
    assert row.build == WANTED
    row = apply_report(row, replace(waiting, state=JobState.COMPLETED, reason=Reason.NONE, status=JobStatus()))
    assert row is not None
    assert row.build is None
