"""What operators are shown of builds: by table and job, which ranges are left, where, and how they do."""

from __future__ import annotations

from iscp.coordination.builds.build_view import RangeState, RangeView, build_views
from iscp.coordination.builds.builder import REMOVE_EVERY_S, Builder, BuildLimits
from iscp.coordination.builds.builder_events import BuildTick, CallNode, RangeAnswered, RangeFailed
from iscp.coordination.builds.table_turns import GATHER_S
from tests.unit.coordination.builds.test_builder import Owner, plan


def test_nothing_is_shown_before_etcd_was_read() -> None:
    assert build_views(Builder(1, BuildLimits(), [plan("j1")], ["j1"], 0.0)) == []


def test_a_table_that_waits_for_its_turn_is_shown() -> None:
    owner = Owner(plan("j1"), plan("j2", "planes"))
    owner.wait(GATHER_S)
    flights, planes = build_views(owner.builder)
    assert (flights.table_id, flights.building, planes.table_id, planes.building) == ("flights", True, "planes", False)
    (job,) = planes.jobs
    assert (job.plan, job.started, job.built, job.ranges, job.part_left) == (plan("j2", "planes"), False, False, (), 1)


def test_each_range_is_shown_as_it_does_until_all_is_built() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    first, second = owner.all(CallNode)
    owner.take(RangeAnswered(first.number, first.task_ids))
    owner.take(RangeFailed(second.number, "no space"))
    ((job,),) = [view.jobs for view in build_views(owner.builder)]
    assert job.ranges == (
        RangeView(4, "n1", RangeState.FINISHED),
        RangeView(5, "n1", RangeState.FAILED, "no space"),
        RangeView(6, "n1", RangeState.WORKING),
        RangeView(7, "n1", RangeState.WAITING),
    )
    assert job.part_left == 0.75
    owner.wait(REMOVE_EVERY_S)
    ((job,),) = [view.jobs for view in build_views(owner.builder)]
    assert [each.range_id for each in job.ranges] == [5, 6, 7]
    owner.finish_all()
    owner.wait(1.0)
    owner.finish_all()
    owner.take(BuildTick())
    ((job,),) = [view.jobs for view in build_views(owner.builder)]
    assert (job.built, job.ranges, job.part_left) == (True, (), 0.0)
