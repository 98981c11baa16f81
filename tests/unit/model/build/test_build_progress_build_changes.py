"""What operators want of builds is done to exactly the ranges that are meant, or refused with what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.build.build_progress import (
    BuildStage,
    JobBuild,
    KnownBuilds,
    builds_of,
    live_ranges,
    priority_to_be_next,
    ranges_after_merge,
    ranges_after_split,
    ranges_to_merge,
    ranges_to_split,
)
from iscp.model.build.build_task import DEPTH_MAX, BuildPlan, BuildTask, TaskType
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.progress import SnapshotSize

PLAN = BuildPlan("id-x", "a", "t-1", "x", "/tables/t-1", 7, "{}", 0, 2)


def building(*ranges: int, aborted: tuple[int, ...] = (), pieces: int = 1_000) -> JobBuild:
    tasks = tuple(
        BuildTask(f"{each}", TaskType.BUILD_RANGE, each in aborted, "t-1", "id-x", each, "n-1") for each in ranges
    )
    plan = replace(PLAN, size=SnapshotSize(1_000, 8_000, pieces))
    return JobBuild(plan, BuildStage.BUILDING, tasks, began_at_s=1.0)


def refusal(change: object, builds: list[JobBuild], range_id: int) -> str:
    assert callable(change)
    with pytest.raises(InvalidRequest) as refused:
        change(builds, range_id)
    assert refused.value.field == "range"
    assert refused.value.remedy
    return refused.value.message


def test_what_is_aborted_not_begun_or_no_range_of_a_snapshot_is_not_live() -> None:
    waiting = replace(building(6), stage=BuildStage.WAITING)
    assert live_ranges([building(4, 5, aborted=(5,)), waiting]) == {4}


def test_one_range_is_split_or_all_are() -> None:
    builds = [building(4, 6), building(6, 7)]
    assert ranges_to_split(builds, 6) == [6]
    assert ranges_to_split(builds, 0) == [4, 6, 7]


@pytest.mark.parametrize("range_id", [-1, 1, 5, 8, 2**62])
def test_a_range_that_is_not_to_be_built_is_neither_split_nor_merged(range_id: int) -> None:
    builds = [building(4, 5, aborted=(5,))]
    assert "is none of the ranges" in refusal(ranges_to_split, builds, range_id)
    assert "is none of the ranges" in refusal(ranges_to_merge, builds, range_id)


@pytest.mark.parametrize("range_id", [0, 4])
def test_of_a_build_that_is_staged_or_waits_no_range_is_changed(range_id: int) -> None:
    for build in (building(), replace(building(4), stage=BuildStage.WAITING)):
        assert "nothing of it is left" in refusal(ranges_to_split, [build], range_id)
        assert "nothing of it is left" in refusal(ranges_to_merge, [build], range_id)


def test_nothing_is_cut_more_often_than_is_possible() -> None:
    deepest = 1 << DEPTH_MAX
    builds = [building(2, deepest, pieces=2**40)]
    assert "was cut 16 times" in refusal(ranges_to_split, builds, deepest)
    assert "was cut 16 times" in refusal(ranges_to_split, builds, 0)
    assert ranges_to_split(builds, 2) == [2]


def test_nothing_is_cut_into_more_ranges_than_there_are_pieces() -> None:
    assert ranges_to_split([building(4, 5, pieces=8)], 0) == [4, 5]
    assert "has 7 pieces" in refusal(ranges_to_split, [building(4, 5, pieces=7)], 0)
    assert "there would be 8 ranges" in refusal(ranges_to_split, [building(4, 5, pieces=7)], 4)
    assert ranges_to_split([building(2, 7, pieces=7)], 2) == [2]
    assert ranges_to_split([building(4, 5, pieces=-1)], 0) == [4, 5], "as nobody has counted them"


@pytest.mark.parametrize(("pieces", "remedy"), [(7, "only ranges below 4 can be split"), (1, "no range of it can be")])
def test_who_cuts_too_often_learns_what_can_be_cut(pieces: int, remedy: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ranges_to_split([building(4, 5, pieces=pieces)], 0)
    assert remedy in refused.value.remedy


def test_a_pair_is_merged_by_either_half_or_all_of_the_smallest() -> None:
    builds = [building(2, 12, 13, 14, 15), building(12)]
    assert ranges_to_merge(builds, 12) == ranges_to_merge(builds, 13) == [6]
    assert ranges_to_merge(builds, 0) == [6, 7]
    assert ranges_to_merge([building(2, 3)], 0) == [1]


def test_what_are_not_two_halves_of_one_job_that_are_to_be_built_is_not_merged() -> None:
    assert "has no other half" in refusal(ranges_to_merge, [building(4, 6, 7)], 4)
    assert "has no other half" in refusal(ranges_to_merge, [building(4, 5, aborted=(5,))], 4)
    assert "has no other half" in refusal(ranges_to_merge, [building(4), building(5)], 4)
    assert "the whole snapshot" in refusal(ranges_to_merge, [building(1)], 1)
    assert "no two halves" in refusal(ranges_to_merge, [building(4), building(5)], 0)


def test_what_is_left_after_a_change_is_counted_once() -> None:
    assert ranges_after_split([building(4, 6), building(6, 12, 13)], [6]) == {4, 12, 13}
    assert ranges_after_merge([building(2, 12, 13), building(12)], [6]) == {2, 6, 12}


def test_a_table_gets_a_priority_above_all_that_wait_unless_it_is_next_already() -> None:
    def of(table_id: str, stage: BuildStage = BuildStage.WAITING) -> JobBuild:
        return JobBuild(replace(PLAN, table_id=table_id), stage)

    begun = (of("t-0", BuildStage.BUILDING), of("t-0"))
    known = KnownBuilds((*begun, of("t-1"), of("t-2"), of("t-3")), priorities={"t-1": 4, "t-0": 9})
    assert priority_to_be_next(known, ("t-3",)) == ("t-3", 5)
    assert priority_to_be_next(known, ("t-9", "t-2")) == ("t-2", 5)
    assert priority_to_be_next(known, ("t-1",)) is None
    assert priority_to_be_next(known, ("t-0",)) is None


def test_a_table_is_found_by_any_of_its_ids() -> None:
    known = KnownBuilds((building(4),))
    assert builds_of(known, "orders", ("t-2", "t-1")) == [known.jobs[0]]
    with pytest.raises(InvalidRequest, match="orders is not being built"):
        builds_of(known, "orders", ("t-2",))
