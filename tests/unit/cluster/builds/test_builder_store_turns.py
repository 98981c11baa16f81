"""When the owner reads whether etcd still has its last transaction, and what it does where that is gone."""

from __future__ import annotations

from iscp.cluster.builds.table_turns import GATHER_S
from iscp.model.build.build_state import (
    CHECK_EVERY_S,
    LOAD_RETRY_S,
    BuildOver,
    BuildState,
    CallNode,
    PutPlan,
    RangeAnswered,
)

from .test_builder import Owner, plan


def test_an_owner_without_anything_to_write_notices_that_etcd_was_emptied() -> None:
    """Nodes have lost their tasks with it: whoever waits for those to be finished waits for ever."""
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    (call, *_) = owner.all(CallNode)
    owner.lose_etcd()
    owner.take(RangeAnswered(call.number, {}))
    owner.wait(CHECK_EVERY_S - 1)
    assert owner.writes[-1][-1] == PutPlan(plan("j1"))
    before = len(owner.writes)
    owner.wait(1)
    owner.wait(LOAD_RETRY_S)
    assert len(owner.writes) > before
    assert BuildState.of(owner.etcd).plans == {"j1": plan("j1")}
    owner.finish_all()
    owner.finish_all()
    assert owner.state.built == {"j1": 7}


def test_etcd_is_checked_no_more_often_than_has_to_be() -> None:
    owner = Owner(plan("j1", depth=1))
    owner.wait(GATHER_S)
    for _ in range(40):
        owner.wait(1)
    assert owner.checks == [GATHER_S + CHECK_EVERY_S, GATHER_S + 2 * CHECK_EVERY_S]
    assert owner.builder.next_due_s() == GATHER_S + 3 * CHECK_EVERY_S


def test_builds_that_a_restored_etcd_has_again_are_removed_though_nothing_is_built() -> None:
    owner = Owner(plan("j1", depth=1))
    owner.wait(GATHER_S)
    before = [*owner.etcd]
    owner.finish_all()
    owner.take(BuildOver("j1"))
    owner.wait(CHECK_EVERY_S)
    assert owner.state.empty
    owner.lose_etcd(before)
    owner.wait(CHECK_EVERY_S)
    owner.wait(LOAD_RETRY_S)
    assert BuildState.of(owner.etcd).empty
