"""What operators are shown of builds: by job, which ranges are left, and which of them are in work."""

from __future__ import annotations

import pytest

from iscp.cluster.builds.builder import Builder, known_builds
from iscp.cluster.builds.table_turns import GATHER_S
from iscp.model.build.build_progress import BuildStage
from iscp.model.build.build_state import BuildLimits, BuildTick, CallNode, Prioritize, RangeFailed
from iscp.model.values.errors import Unavailable
from tests.unit.cluster.builds.test_builder import Owner, answer, plan


def test_nothing_is_known_before_etcd_was_read() -> None:
    with pytest.raises(Unavailable):
        known_builds(Builder(1, BuildLimits(), [plan("j1")], ["j1"], 0.0))


def test_tables_that_wait_come_in_the_order_of_their_turns() -> None:
    owner = Owner(plan("j1"), plan("j2", "planes"), plan("j3", "pilots"))
    owner.wait(GATHER_S)
    owner.take(Prioritize("pilots", 5))
    known = known_builds(owner.builder)
    assert [(each.plan.table_id, each.stage) for each in known.jobs] == [
        ("flights", BuildStage.BUILDING),
        ("pilots", BuildStage.WAITING),
        ("planes", BuildStage.WAITING),
    ]
    assert known.jobs[1].tasks == ()
    assert known.priorities == {"pilots": 5}


def test_each_range_is_there_until_it_is_finished() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    first, second = owner.all(CallNode)
    owner.take(answer(first))
    owner.take(RangeFailed(second.number, "no space"))
    known = known_builds(owner.builder)
    (build,) = known.jobs
    assert [task.range_id for task in build.tasks] == [5, 6, 7], "4 is finished, though etcd still has it"
    assert [task.range_id for task in build.tasks if task.task_id in known.running] == [6]
    owner.finish_all()
    owner.wait(1.0)
    owner.finish_all()
    owner.take(BuildTick())
    (build,) = known_builds(owner.builder).jobs
    assert (build.stage, build.tasks) == (BuildStage.PUBLISHING, ())
