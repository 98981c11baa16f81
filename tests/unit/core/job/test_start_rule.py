"""The start rule: which jobs start, which of them together, and up to which version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iscp.core.job.start_rule import Candidate, SharingGroup, Start, decide, run_spec, sharing_group
from iscp.core.spec.spec import ConsumerSpec, JobSpec, TriggerSpec, TriggerType

ALONE: dict[str, Any] = {"group": SharingGroup.NONE}
PERIOD: dict[str, Any] = {"group": SharingGroup.PERIOD}


def job(watermark: int = -1, **facts: Any) -> Candidate:
    return Candidate(account="a", watermark=watermark, **facts)


def test_a_new_job_starts_at_once_from_nothing_to_now() -> None:
    assert decide([job()], newest=None) == [Start((0,), None)]


def test_a_new_job_goes_to_the_others_watermark_and_they_do_not_wait_for_it() -> None:
    assert decide([job(7), job(), job(7)], newest=9) == [Start((1,), 7), Start((0, 2), None)]
    assert decide([job(7), job(busy=True)], newest=9) == [Start((0,), None)]


def test_jobs_that_agree_share_one_iteration_when_the_source_is_ahead() -> None:
    assert decide([job(3), job(3)], newest=4) == [Start((0, 1), None)]
    assert decide([job(3), job(3)], newest=3) == []
    assert decide([job(3), job(3)], newest=None) == []


def test_nothing_starts_while_one_of_them_runs() -> None:
    assert decide([job(3), job(3, busy=True)], newest=4) == []


def test_jobs_that_lag_catch_up_one_at_a_time_to_the_highest() -> None:
    assert decide([job(5), job(2), job(3)], newest=5) == [Start((2,), 5)]
    assert decide([job(5), job(2), job(3, busy=True)], newest=5) == []


def test_leaders_wait_for_one_that_is_near_but_not_for_one_that_is_far() -> None:
    assert decide([job(5), job(2)], newest=6) == [Start((1,), 5), Start((0,), None)]
    assert decide([job(5), job(4, near=True)], newest=6) == [Start((1,), 5)]
    assert decide([job(5), job(4, near=True, busy=True)], newest=6) == []


def test_one_that_is_near_does_not_queue_behind_one_that_is_far() -> None:
    assert decide([job(5), job(0, busy=True), job(4, near=True)], newest=6) == [Start((2,), 5)]


def test_a_failing_job_is_retried_alone_and_holds_up_nobody() -> None:
    assert decide([job(5), job(5), job(4, failing=True)], newest=6) == [Start((2,), 5), Start((0, 1), None)]
    assert decide([job(5), job(5, failing=True, busy=True)], newest=6) == [Start((0,), None)]
    assert decide([job(5, failing=True)], newest=5) == [Start((0,), None)], "retried, though nothing is outstanding"


def test_a_failing_job_at_the_top_is_no_goal_for_the_others() -> None:
    assert decide([job(3), job(9, failing=True, busy=True)], newest=9) == [Start((0,), None)]


def test_accounts_share_nothing() -> None:
    other = replace(job(5), account="b")
    assert decide([job(5), other], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(2), other], newest=5) == [Start((0,), None)]
    assert decide([job(), other], newest=5) == [Start((0,), None)], "nor is the other's watermark a goal"


def test_a_source_recreated_is_read_though_the_versions_agree() -> None:
    assert decide([job(5, stale=True), job(5)], newest=5) == [Start((0, 1), None)]
    assert decide([job(5, stale=True)], newest=2) == [Start((0,), None)]


def test_one_that_goes_alone_starts_whenever_the_source_is_ahead_whatever_the_others_do() -> None:
    assert decide([job(5), job(5, **ALONE)], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(5, busy=True), job(2, **ALONE), job(4, **ALONE)], newest=6) == [
        Start((1,), None),
        Start((2,), None),
    ]
    assert decide([job(6, **ALONE), job(6, busy=True, stale=True, **ALONE)], newest=6) == []
    assert decide([job(5, **ALONE)], newest=None) == []
    assert decide([job(6, stale=True, **ALONE)], newest=6) == [Start((0,), None)]


def test_nobody_waits_for_one_that_goes_alone_or_goes_to_its_watermark() -> None:
    assert decide([job(5), job(4, near=True, **ALONE)], newest=5) == [Start((1,), None)]
    assert decide([job(5), job(4, near=True, busy=True, **ALONE)], newest=6) == [Start((0,), None)]
    assert decide([job(5), job(9, **ALONE)], newest=9) == [Start((0,), None)]
    assert decide([job(), job(9, **ALONE)], newest=9) == [Start((0,), None)], "no goal for a new job"
    assert decide([job(5), job(**ALONE)], newest=5) == [Start((1,), None)], "nor has a new one that of the others"


def test_what_its_trigger_holds_back_is_not_started_but_for_a_first_iteration_and_a_retry() -> None:
    assert decide([job(5, waits=True, **ALONE)], newest=6) == []
    assert decide([job(5, waits=True, stale=True, **ALONE)], newest=6) == []
    assert decide([job(waits=True, **ALONE)], newest=6) == [Start((0,), None)]
    assert decide([job(5, waits=True, failing=True, **ALONE)], newest=6) == [Start((0,), None)]


def test_periodic_ones_that_share_go_together_where_they_are_due_and_at_one_watermark() -> None:
    assert decide([job(5, **PERIOD), job(5, **PERIOD), job(4, **PERIOD)], newest=6) == [
        Start((0, 1), None),
        Start((2,), None),
    ]
    assert decide([job(5, **PERIOD), job(5, waits=True, **PERIOD), job(5)], newest=6) == [
        Start((2,), None),
        Start((0,), None),
    ]
    other = replace(job(5, **PERIOD), account="b")
    assert decide([job(5, **PERIOD), other], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(5, **PERIOD), job(5, failing=True, **PERIOD), job(**PERIOD)], newest=6) == [
        Start((1,), None),
        Start((2,), None),
        Start((0,), None),
    ]


def test_whom_a_job_goes_with_is_read_from_its_spec() -> None:
    def group_for(**spec: Any) -> SharingGroup:
        return sharing_group(run_spec(JobSpec(ConsumerSpec("replica", "/x"), **spec).to_json()))

    assert group_for() is group_for(target_lag_s=5.0) is group_for(priority=5) is SharingGroup.TABLE
    assert group_for(independent=True) is group_for(trigger=TriggerSpec(TriggerType.GREEDY)) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.CUSTOM, name="x")) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.PERIODIC, 5.0)) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.PERIODIC, 5.0, share=True)) is SharingGroup.PERIOD
    assert run_spec(JobSpec(ConsumerSpec("replica", "/x"), priority=5).to_json()) is None


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        account=st.sampled_from("ab"),
        watermark=st.integers(-1, 4),
        busy=st.booleans(),
        failing=st.booleans(),
        near=st.booleans(),
        stale=st.booleans(),
        group=st.sampled_from(SharingGroup),
        waits=st.booleans(),
    ),
    max_size=8,
)


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_what_holds_for_every_decision(jobs: list[Candidate], newest: int | None) -> None:
    starts = decide(jobs, newest)
    started = [index for start in starts for index in start.jobs]
    assert len(started) == len(set(started)), "no job is in two iterations"
    for start in starts:
        members = [jobs[index] for index in start.jobs]
        assert not any(member.busy for member in members)
        assert len({member.account for member in members}) == 1
        assert len({member.watermark for member in members}) == 1
        (group,) = {member.group for member in members}
        assert group is not SharingGroup.NONE or len(members) == 1
        assert not any(
            member.waits and member.built and not member.failing
            for member in members
            if group is not SharingGroup.TABLE
        )
        assert start.to_version is None or start.to_version > members[0].watermark
        if len(members) > 1:
            assert not any(member.failing or not member.built for member in members)


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_a_failing_job_changes_nothing_for_the_others(jobs: list[Candidate], newest: int | None) -> None:
    without = [candidate for candidate in jobs if not candidate.failing]
    places = [index for index, candidate in enumerate(jobs) if not candidate.failing]
    expected = {(tuple(places[i] for i in start.jobs), start.to_version) for start in decide(without, newest)}
    alone = {index for index, candidate in enumerate(jobs) if candidate.failing}
    found = {(s.jobs, s.to_version) for s in decide(jobs, newest) if not alone & set(s.jobs)}
    assert found == expected


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_a_tables_group_and_the_others_change_nothing_for_each_other(jobs: list[Candidate], newest: int | None) -> None:
    def starts(places: list[int]) -> set[tuple[tuple[int, ...], int | None]]:
        found = decide([jobs[place] for place in places], newest)
        return {(tuple(places[i] for i in start.jobs), start.to_version) for start in found}

    table = [index for index, candidate in enumerate(jobs) if candidate.group is SharingGroup.TABLE]
    others = [index for index, candidate in enumerate(jobs) if candidate.group is not SharingGroup.TABLE]
    assert starts(list(range(len(jobs)))) == starts(table) | starts(others)


@given(jobs=CANDIDATES, newest=st.integers(0, 5))
def test_somebody_runs_as_long_as_somebody_has_work(jobs: list[Candidate], newest: int) -> None:
    """Liveness: with nobody busy, decisions carried out bring every job to the newest version, and then all rest."""
    state = [replace(candidate, busy=False, waits=False) for candidate in jobs]
    for _ in range(100):
        starts = decide(state, newest)
        if not starts:
            break
        for start in starts:
            goal = (
                max(newest, *(state[i].watermark for i in start.jobs)) if start.to_version is None else start.to_version
            )
            for index in start.jobs:
                state[index] = replace(state[index], watermark=goal, failing=False, near=True, stale=False)
    assert all(candidate.watermark >= newest for candidate in state)
    assert decide(state, newest) == []
