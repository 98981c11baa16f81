"""What follows from the measures of a running iteration: only what they show, whatever the clock and the counts say."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import inf, isfinite, nan

from hypothesis import given
from hypothesis import strategies as st

from iscp.client.codec.api_messages import PROGRESS
from iscp.model.values.progress import (
    LEFT_MOST_S,
    UNKNOWN,
    RunProgress,
    StageWork,
    combined_progress,
    measured,
    rate,
    time_left_s,
)
from iscp.model.values.untrusted_values import COUNT_MOST
from iscp.wire.v1 import admin_pb2 as pb

BEGUN = RunProgress("apply", 1_000.0, 10.0, rows_total=1_000, bytes_total=9_000)
READING = StageWork(4, 4, rows_read=1_000, bytes_read=8_000, began_at_s=1_001.0)
WRITING = StageWork(8, 2, rows_written=250, bytes_written=2_000, began_at_s=1_005.0)


def test_a_rate_needs_something_done_and_time_that_has_passed() -> None:
    assert rate(100, 4.0) == 25.0
    assert [rate(0, 4.0), rate(100, 0.0), rate(100, -4.0), rate(-1, 4.0), rate(100, nan)] == [UNKNOWN] * 5
    assert rate(COUNT_MOST, 5e-324) == UNKNOWN, "more than any number"
    assert rate(100, inf) == 0.0


def test_the_time_left_needs_a_pace_and_a_total_that_is_not_exceeded() -> None:
    assert time_left_s(250, 1_000, 5.0) == 15.0
    assert time_left_s(1_000, 1_000, 5.0) == 0.0
    assert time_left_s(1_001, 1_000, 5.0) == UNKNOWN, "the total was wrong"
    assert time_left_s(250, UNKNOWN, 5.0) == UNKNOWN
    assert time_left_s(0, 1_000, 5.0) == UNKNOWN
    assert time_left_s(250, 1_000, -5.0) == UNKNOWN, "the clock stepped back"
    assert time_left_s(1, COUNT_MOST, LEFT_MOST_S) == UNKNOWN


def test_the_time_left_goes_by_the_pace_of_writing_not_by_what_came_before() -> None:
    found = measured(BEGUN, 1_010.0, [READING, WRITING], 0)
    assert (found.tasks, found.tasks_done) == (12, 6)
    assert (found.rows_read, found.bytes_read, found.rows_per_s, found.bytes_per_s) == (1_000, 8_000, 100.0, 800.0)
    assert (found.rows_written, found.bytes_written, found.rows_total, found.left_s) == (250, 2_000, 1_000, 15.0)


def test_rows_handed_to_a_custom_consumer_count_as_written_since_the_start() -> None:
    found = measured(BEGUN, 1_010.0, [READING], 500)
    assert (found.rows_written, found.bytes_written, found.left_s) == (500, 0, 10.0)


def test_a_clock_that_stepped_back_leaves_no_time_left() -> None:
    assert measured(BEGUN, 1_004.0, [WRITING], 0).left_s == UNKNOWN


def test_of_nothing_measured_nothing_follows() -> None:
    assert measured(BEGUN, 1_010.0, [], 0) == BEGUN


@given(st.lists(st.builds(StageWork, *[st.integers(0, 2**63)] * 6, st.floats(0, 1e11))), st.floats(-1e11, 1e11))
def test_whatever_is_measured_can_be_sent(stages: list[StageWork], at_s: float) -> None:
    found = measured(BEGUN, at_s, stages, 0)
    sent = pb.Progress.FromString(PROGRESS.to_wire(found).SerializeToString())
    assert PROGRESS.from_wire(sent) == found
    assert all(isfinite(figure) and UNKNOWN <= figure <= COUNT_MOST for figure in astuple(found)[2:])


def test_of_ranges_the_sums_are_shown_where_all_are_known() -> None:
    one, other = measured(BEGUN, 1_010.0, [READING, WRITING], 0), replace(BEGUN, started_at_s=900.0, rows_total=-1)
    both = combined_progress([one, one])
    assert both is not None
    assert (both.rows_total, both.rows_written, both.left_s, both.rows_per_s) == (2_000, 500, 15.0, 200.0)
    mixed = combined_progress([one, other])
    assert mixed is not None
    assert (mixed.started_at_s, mixed.rows_read, mixed.bytes_total) == (900.0, 1_000, 18_000)
    assert (mixed.rows_total, mixed.left_s, mixed.rows_per_s) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert combined_progress([one]) is one
    assert combined_progress([]) is None
