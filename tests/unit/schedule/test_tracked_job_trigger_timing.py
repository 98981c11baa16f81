"""A job waits until its trigger lets it start, and never longer because some other clock was wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.job.start_rule import NotBefore, StartNow, TriggerFacts
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import TemporaryError
from iscp.model.values.ids import JobKey
from iscp.schedule.lag import CLOCKS_APART_S
from iscp.schedule.tracked_job import Pace, no_triggers, recorded_due_at_s

NOW_S, AT_S = 1_000.0, 1_700_000_000.0
"""The monotonic clock and the wall clock of this node."""

TIMES = st.floats(-1e6, 1e6, allow_nan=False).map(lambda apart_s: AT_S + apart_s)
INTERVALS = st.sampled_from([0.5, 60.0, 86_400.0])


def row(status: JobStatus | None = None) -> JobRow:
    return JobRow(JobKey("a", "t", "j"), "id", "{}", "t", "/t", status_json=status.to_json() if status else "")


def periodic(interval_s: float, *, share: bool = False) -> TriggerSpec:
    return TriggerSpec(TriggerType.PERIODIC, interval_s, share)


def wait_s(pace: Pace, now_s: float, at_s: float, since_s: float = 0.0) -> float:
    pace.hold(row(), 1, since_s, now_s, at_s, no_triggers)
    return max(0.0, pace.delayed_until_s - now_s)


@given(INTERVALS, TIMES)
def test_a_job_that_is_taken_over_waits_at_most_its_interval_whatever_the_other_clock_said(
    interval_s: float, end_at_s: float
) -> None:
    pace = Pace(periodic(interval_s), row(JobStatus(end_at_s=end_at_s)), NOW_S, AT_S)
    left_s = min(interval_s, end_at_s + interval_s - AT_S)
    assert wait_s(pace, NOW_S, AT_S) == pytest.approx(max(0.0, left_s), abs=1e-3)


@given(INTERVALS, TIMES)
def test_jobs_that_share_start_at_multiples_of_their_interval(interval_s: float, end_at_s: float) -> None:
    pace = Pace(periodic(interval_s, share=True), row(JobStatus(end_at_s=end_at_s)), NOW_S, AT_S)
    waited_s = wait_s(pace, NOW_S, AT_S)
    assert waited_s <= interval_s + 0.001
    if floor(end_at_s / interval_s) == floor(AT_S / interval_s):
        assert (AT_S + waited_s) / interval_s == pytest.approx(floor(AT_S / interval_s) + 1, abs=1e-2)
    else:
        assert waited_s == 0.0


def test_the_interval_begins_when_the_job_came_up_to_date_not_when_it_was_cut_off() -> None:
    pace = Pace(periodic(60.0), row(), NOW_S, AT_S)
    assert wait_s(pace, NOW_S, AT_S) == 0.0  # it was never built
    pace.record_run(AT_S, NOW_S + 10, AT_S + 10, up_to_date=True)
    pace.record_run(AT_S, NOW_S + 30, AT_S + 30, up_to_date=False)
    assert wait_s(pace, NOW_S + 30, AT_S + 30) == pytest.approx(40.0)
    assert wait_s(pace, NOW_S + 30, AT_S - 9_999) == pytest.approx(40.0)  # the wall clock is of no account
    assert wait_s(pace, NOW_S + 70, AT_S + 70) == 0.0


SIX = datetime(2023, 11, 15, 6, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
CRON = TriggerSpec(TriggerType.PERIODIC, cron="0 0 6 * * ?")


@pytest.mark.parametrize(
    ("since_s", "at_s", "due_s"),
    [
        (SIX + 10, SIX + 20, SIX + DAY_S),
        (SIX - 10, SIX - 5, SIX),
        (SIX - 10, SIX + 5, 0.0),
        (SIX - 10, SIX + 5 * DAY_S + 1, 0.0),  # however many times were missed, it runs at once
        (SIX + 9 * DAY_S, SIX + 20, SIX + DAY_S),  # a commit of the future counts as one of now
    ],
)
def test_by_cron_it_runs_at_the_next_time_after_what_is_outstanding(since_s: float, at_s: float, due_s: float) -> None:
    pace = Pace(CRON, row(JobStatus(end_at_s=SIX - DAY_S)), NOW_S, SIX)
    pace.settle()
    assert wait_s(pace, NOW_S, at_s, since_s) == pytest.approx(max(0.0, due_s - at_s))


def test_by_cron_what_came_first_counts_until_nothing_is_outstanding() -> None:
    pace = Pace(CRON, row(JobStatus(end_at_s=SIX - DAY_S)), NOW_S, SIX)
    pace.settle()
    assert wait_s(pace, NOW_S, SIX - 5, SIX - 10) > 0
    assert wait_s(pace, NOW_S, SIX + 5, SIX + 4) == 0.0  # a later commit does not put it off
    pace.record_run(SIX, NOW_S, SIX + 6, up_to_date=True)
    for since_s in (SIX + 7, SIX - 1):  # what came before is applied
        assert wait_s(pace, NOW_S, SIX + 8, since_s) == pytest.approx(DAY_S - 8)
        pace.settle()


def test_by_cron_a_node_that_takes_a_job_over_may_have_missed_a_time() -> None:
    pace = Pace(CRON, row(JobStatus(end_at_s=SIX - 10)), NOW_S, SIX + 5)
    assert wait_s(pace, NOW_S, SIX + 5, SIX + 4) == 0.0


@pytest.mark.parametrize(("answer", "expected_s"), [(StartNow(), 0.0), (NotBefore(AT_S + 30), 30.0)])
def test_a_trigger_of_ones_own_is_handed_no_time_of_the_future(answer: object, expected_s: float) -> None:
    handed: list[TriggerFacts] = []

    def evaluate(name: str, facts: TriggerFacts) -> object:
        assert name == "own"
        handed.append(facts)
        return answer

    trigger = TriggerSpec(TriggerType.CUSTOM, name="own", options={"a": 1})
    pace = Pace(trigger, row(JobStatus(start_at_s=AT_S + 50, end_at_s=AT_S + 99)), NOW_S, AT_S)
    pace.hold(row(), None, 0.0, NOW_S, AT_S, evaluate)
    assert pace.delayed_until_s == (NOW_S + expected_s if expected_s else 0.0)
    (facts,) = handed
    assert (facts.last_start_at_s, facts.last_end_at_s, facts.now_s) == (AT_S, AT_S, AT_S)
    assert (facts.applied_version, facts.source_version, facts.options) == (-1, -1, {"a": 1})


def test_a_node_without_the_trigger_says_so() -> None:
    pace = Pace(TriggerSpec(TriggerType.CUSTOM, name="own"), row(), NOW_S, AT_S)
    with pytest.raises(TemporaryError, match="no trigger 'own'"):
        pace.hold(row(), 1, 0.0, NOW_S, AT_S, no_triggers)


@pytest.mark.parametrize(
    ("due_at_s", "end_at_s", "found_s"),
    [
        (0.0, AT_S, 0.0),
        (AT_S + 60, AT_S, AT_S + 60),
        (AT_S + 60, AT_S + CLOCKS_APART_S, AT_S + 60),
        (AT_S + 9_999, AT_S + CLOCKS_APART_S + 1, AT_S),
    ],
)
def test_what_a_clock_that_was_ahead_has_recorded_is_due_now(due_at_s: float, end_at_s: float, found_s: float) -> None:
    assert recorded_due_at_s(row(JobStatus(due_at_s=due_at_s, end_at_s=end_at_s)), AT_S) == found_s


def test_a_status_that_is_damaged_has_no_time() -> None:
    damaged = row()._replace(status_json=json.dumps({"due_at": "soon"}))
    assert recorded_due_at_s(damaged, AT_S) == 0.0
