"""The global checkpoint: the least of what counts, never back, and cheap."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.checkpoint import GlobalCheckpoint, counts, resolved_at_s
from iscp.coordination.messages import SourceSeen
from iscp.core.ids import ShardId
from iscp.core.job import JobRow, JobState, JobStatus, Reason
from iscp.core.watermark import Watermark
from tests.fakes.loopback import job

A, B = ShardId("a"), ShardId("b")


def at(version: int, at_s: float, name: str = "j") -> JobRow:
    return job("a", name)._replace(watermark=Watermark(version, at_s))


def test_a_job_that_is_up_to_date_is_resolved_up_to_the_look_at_its_source() -> None:
    seen = SourceSeen(A, 5, 100.0, 0.0)
    assert resolved_at_s([at(5, 40.0)], seen) == 100.0
    assert resolved_at_s([at(4, 40.0)], seen) == 40.0
    assert resolved_at_s([at(4, 40.0)], None) == 40.0
    assert resolved_at_s([at(5, 40.0), at(4, 30.0, "k")], seen) == 30.0


def test_what_is_not_built_paused_or_failed_for_good_is_left_out() -> None:
    failed = JobStatus(error_code=10_001, error_msg="no").to_json()
    out = [
        job("a", "unbuilt"),
        at(3, 1.0)._replace(reason=Reason.PAUSED),
        at(3, 1.0)._replace(state=JobState.ERROR, status_json=failed),
    ]
    assert not any(counts(row) for row in out)
    assert resolved_at_s(out, None) == inf
    assert resolved_at_s([*out, at(3, 7.0)], None) == 7.0


def test_it_is_the_least_of_all_and_never_goes_back() -> None:
    checkpoint = GlobalCheckpoint(at_s=10.0)
    checkpoint.take(A, [at(1, 5.0)], None)
    assert not checkpoint.advance(), "an owner before has told a later one"
    checkpoint.take(A, [at(2, 20.0)], None)
    checkpoint.take(B, [at(2, 15.0)], None)
    assert checkpoint.advance()
    assert checkpoint.at_s == 15.0
    checkpoint.take(B, [], None)
    assert checkpoint.advance()
    assert checkpoint.at_s == 20.0
    checkpoint.take(B, [at(0, 3.0)], None)
    assert not checkpoint.advance()
    assert checkpoint.at_s == 20.0


def test_without_a_job_that_counts_nothing_is_told() -> None:
    checkpoint = GlobalCheckpoint()
    checkpoint.take(A, [job("a")], None)
    assert not checkpoint.advance()
    assert checkpoint.at_s == 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(0, 100)), max_size=200))
def test_the_least_is_that_of_the_present_values(moves: list[tuple[int, float | None]]) -> None:
    checkpoint, model = GlobalCheckpoint(), dict[int, float]()
    for number, at_s in moves:
        checkpoint.take(ShardId(f"t{number}"), [] if at_s is None else [at(1, at_s)], None)
        if at_s is None:
            model.pop(number, None)
        else:
            model[number] = at_s
        assert checkpoint.least_s() == min(model.values(), default=inf)
        assert len(checkpoint._heap) <= 2 * len(model) + 17
