"""Which nodes the owner relies on, waits for, revokes and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iscp.coordination.membership.assignments import Holder, ShardState
from iscp.coordination.membership.term import EPOCHS_MAX
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.effects import OwnerEffect, RevokeLease, SendTo
from iscp.coordination.protocol.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    Recorded,
    RowsMoved,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.coordination.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    NodeShardState,
    ShardCheckpoint,
    Sync,
)
from iscp.core.values.ids import ShardId
from iscp.core.values.members import NodeRecord
from tests.fakes.driven_owner import N1, N2, N3, ROW, A, Driver, dispatches, running, told
from tests.fakes.loopback import TIMES, Loopback, entry, job
from tests.fakes.rings import step_with_rings


def test_nothing_is_placed_before_every_registered_node_has_synced() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    assert [type(e.message) for e in driver.first if isinstance(e, SendTo)] == [Announce, Announce]
    driver.sync(N1)
    assert dispatches(driver.step(Tick(), 2.0)) == []
    driver.step(FromNode("n2", Sync(1, 1, "1", 1, 0, 1, 0, ())))
    assert driver.state() is ShardState.DISPATCHING


def test_a_sync_counts_when_all_its_parts_are_there() -> None:
    driver = Driver(N1, wanted=("a", "b"))
    driver.step(Tick(), 1.0)
    parts = [Sync(1, 1, "1", 1, n, 2, 0, (told(ShardId(name), NodeShardState.RUNNING),)) for n, name in enumerate("ab")]
    assert driver.step(FromNode("n1", parts[1])) == []
    assert driver.step(FromNode("n1", parts[1])) == []
    assert len(dispatches(driver.step(FromNode("n1", parts[0])))) == 2
    assert driver.owner.assignments.counts[ShardState.RUNNING] == 2


def test_changes_of_the_members_within_the_settling_time_are_taken_together() -> None:
    driver = Driver(N1, wanted=tuple(f"t{n}" for n in range(50)))
    driver.sync(N1)
    driver.step(MembersChanged((N1, N2)), 0.2)
    driver.sync(N2)
    targets = {e.record.node_id for e in driver.step(Tick(), 0.3) if isinstance(e, SendTo)}
    assert targets == {"n1", "n2"}


def test_a_node_that_misses_the_deadline_is_revoked_and_its_lease_waited_out() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    driver.sync(N1)
    assert RevokeLease(N2, 101) in driver.wait(TIMES.sync_deadline_s)
    assert dispatches(driver.step(Tick(), 1.0)) == []
    assert driver.sync(N2) == [], "what a condemned node says does not count"
    driver.step(MembersChanged((N1,)))
    assert dispatches(driver.step(Tick(), TIMES.lease_ttl_s + TIMES.margin_s - 0.1)) == []
    assert len(dispatches(driver.step(Tick(), 0.1))) == 1


def test_a_node_is_not_blamed_for_a_time_in_which_the_owner_paused() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    driver.sync(N1)
    assert RevokeLease(N2, 101) not in driver.step(Tick(), 3 * TIMES.sync_deadline_s)
    driver.sync(N2)
    assert driver.state() is ShardState.DISPATCHING


def test_a_sync_is_requested_ever_more_rarely() -> None:
    driver = Driver(N1, N2, times=replace(TIMES, sync_deadline_s=20.0))
    driver.sync(N1)
    asked = [
        any(isinstance(e, SendTo) and isinstance(e.message, Announce) for e in driver.wait(TIMES.resend_s))
        for _ in range(10)
    ]
    assert [s for s, told in enumerate(asked, 1) if told] == [2, 6, 10], "after two seconds, and four at most"


def test_an_owner_that_was_busy_hears_what_has_come_before_it_requests_again() -> None:
    driver = Driver(N1, N2)
    assert driver.step(Tick(), 2 * TIMES.resend_s + 1.5) == [], "the Syncs may wait to be heard"
    assert any(isinstance(e, SendTo) and isinstance(e.message, Announce) for e in driver.wait(TIMES.resend_max_s))


@given(st.floats(0.0, 1e6), st.lists(st.floats(0.0, 5.0), max_size=6))
@example(13.458, [2.878, 0.0])
@example(3.51, [1.047, 2.452])
def test_what_is_due_is_done_once_however_its_time_is_rounded(start_s: float, late_s: list[float]) -> None:
    """Rounding must not leave the next due time at the present one: it was due again at once, for ever (seed 4918)."""
    owner = OwnerMachine("n1", "1", replace(TIMES, alive_s=1.0))
    step_with_rings(owner, Elected(1, 101, (N1, N2), {}), start_s)
    step_with_rings(owner, FromNode("n1", Sync(1, N1.epoch, "1", 1, 0, 1, 0, ())), start_s)
    for late in late_s:
        due_s = owner.next_due_s()
        assert due_s is not None
        step_with_rings(owner, Tick(), due_s + late)
        again_s = owner.next_due_s()
        assert again_s is None or again_s > due_s + late


def test_a_node_that_joined_later_and_stays_silent_is_not_waited_for() -> None:
    driver = Driver(N1)
    driver.sync(N1)
    driver.step(MembersChanged((N1, N2)))
    driver.wait(TIMES.sync_deadline_s)
    assert len(dispatches(driver.step(ShardWanted(A, (ROW,))))) == 1


def test_nodes_that_nobody_can_reach_are_not_waited_for_each_time_they_register_again() -> None:
    """Two of them, in turns, would hold up the others for ever (bug 11)."""
    driver = Driver(N1)
    driver.sync(N1)
    driver.step(MembersChanged((N1, N2, N3)))
    driver.wait(TIMES.sync_deadline_s)
    driver.step(MembersChanged((N1, replace(N2, epoch=2), N3)), 0.5)
    (dispatch,) = dispatches(driver.step(ShardWanted(A, (ROW,))))
    assert dispatch.epoch == N1.epoch
    assert not driver.owner.settled, "there is a node of which nothing is known"


def test_a_node_that_is_given_up_on_gets_nothing_in_that_step() -> None:
    driver = Driver(N1, N2)
    driver.sync(N1)
    driver.sync(N2)
    driver.settle()
    shards = [ShardId(f"t{n}") for n in range(16)]
    for shard in shards[:8]:
        for dispatch in dispatches(driver.step(ShardWanted(shard, (job(shard.table_id),)))):
            if driver.owner.assignments[shard].holder == Holder("n1", 1):
                driver.respond(N1, dispatch, NodeShardState.RUNNING)
    for _ in range(3):
        driver.step(Tick(), TIMES.resend_s)
    driver.step(MembersChanged((N1, N2, N3)), 0.6)
    driver.sync(N3)
    for shard in shards[8:]:
        driver.step(ShardWanted(shard, (job(shard.table_id),)))
    assert not any(driver.owner.assignments[shard].holder for shard in shards[8:]), "the members are settling"
    effects = driver.step(Tick(), 0.5)
    assert RevokeLease(N2, 101) in effects
    assert len(dispatches(effects)) == 8
    assert all(driver.owner.assignments[shard].holder != Holder("n2", 1) for shard in shards[8:])


def test_a_node_that_is_cut_off_while_all_is_quiet_is_not_relied_on() -> None:
    """It reaches etcd and goes on, but what it does is not heard of: its tables are to run where they are."""
    cluster = Loopback(replace(TIMES, alive_s=1.0))
    cluster.start("n1", "n2")
    cluster.elect("n1")
    for n in range(8):
        cluster.want(f"t{n}")
    cluster.run(10)
    assert set(cluster.running().values()) == {"n1", "n2"}
    cluster.cut.add("n2")
    cluster.run(TIMES.sync_deadline_s + TIMES.lease_ttl_s + TIMES.margin_s + 2.0)
    assert set(cluster.running().values()) == {"n1"}
    assert len(cluster.running()) == 8


def test_a_quiet_node_is_relied_on_as_long_as_it_says_that_it_is_there() -> None:
    cluster = Loopback(replace(TIMES, alive_s=1.0))
    cluster.start("n1", "n2")
    cluster.elect("n1")
    for n in range(8):
        cluster.want(f"t{n}")
    cluster.run(10)
    before = cluster.running()
    cluster.run(60)
    assert cluster.running() == before
    assert cluster.nodes["n2"].record.epoch == 1


def test_a_hold_from_before_the_term_is_kept() -> None:
    driver = Driver()
    driver.step(Deposed())
    driver.step(Elected(2, 102, (N1,), {A: (ROW,)}, hold_s=6.0))
    driver.step(FromNode("n1", Sync(2, 1, "1", 1, 0, 1, 0, ())))
    assert dispatches(driver.step(Tick(), 5.9)) == []
    assert len(dispatches(driver.step(Tick(), 0.1))) == 1


@pytest.mark.parametrize(("ttl_s", "placed_after_s"), [(0.0, 6.0), (2.0, 3.0), (30.0, 31.0)])
def test_a_revoked_node_is_waited_for_by_the_ttl_of_its_own_lease(ttl_s: float, placed_after_s: float) -> None:
    """Its settings may differ, and etcd may have granted more; 0: it does not say, and the owner's TTL counts."""
    other = replace(N2, lease_id=2, ttl_s=ttl_s)
    driver = Driver(N1, other, wanted=("a",))
    driver.sync(N1)
    driver.sync(other, told(A, NodeShardState.RUNNING))
    driver.step(Tick())
    driver.step(ShardUnwanted(A))
    driver.step(ShardWanted(A, (ROW,)))
    revoked = driver.wait(TIMES.operation_deadline_s)
    assert RevokeLease(other, 101) in revoked
    driver.step(MembersChanged((N1,)))
    assert dispatches(driver.wait(placed_after_s - 0.1)) == []
    assert len(dispatches(driver.wait(0.2))) == 1


@pytest.mark.parametrize(("ttl_s", "fits"), [(0.0, True), (0.5, True), (50.0, True), (50.1, False), (0.4, False)])
def test_a_node_whose_lease_does_not_go_with_the_owners_is_refused(ttl_s: float, fits: bool) -> None:
    other = replace(N2, lease_id=2, ttl_s=ttl_s)
    driver = Driver(N1)
    driver.sync(N1)
    effects = driver.step(MembersChanged((N1, other)))
    assert (RevokeLease(other, 101) not in effects) == fits


def test_nothing_is_placed_while_a_restored_etcd_does_not_know_who_may_still_write() -> None:
    driver, _ = running()
    driver.step(MembersChanged((N2,), hold_s=20.0))
    driver.sync(N2)
    assert dispatches(driver.wait(19.9)) == []
    assert [each.shard for each in dispatches(driver.wait(0.2))] == [A]


def test_a_life_before_the_last_that_a_restored_etcd_brings_back_is_a_member_and_has_not_departed() -> None:
    driver, _ = running()
    driver.step(MembersChanged(()))
    driver.step(MembersChanged((replace(N1, epoch=2),)))
    driver.step(MembersChanged(()))
    driver.step(MembersChanged((N1,)))
    assert driver.state() is ShardState.DRAINING


def test_progress_of_jobs_that_have_been_dropped_since_changes_nothing() -> None:
    """The writer reports progress, the jobs are dropped, and only then the owner looks which there are."""
    driver, _ = running()
    driver.step(RowsMoved(A, ()))
    assert driver.state() is ShardState.RUNNING
    driver.step(ShardUnwanted(A))
    assert driver.state() is ShardState.DRAINING


def test_an_epoch_that_a_restored_etcd_gave_twice_is_refused() -> None:
    """Two lives of one node that share it cannot be distinguished."""
    driver, _ = running()
    again = replace(N1, lease_id=99)
    assert RevokeLease(again, 101) in driver.step(MembersChanged((again,)))


@pytest.mark.parametrize("between", [(), (replace(N1, epoch=1, lease_id=1),)])
def test_an_epoch_that_a_restored_etcd_gave_twice_is_refused_also_where_others_were_seen_meanwhile(
    between: tuple[NodeRecord, ...],
) -> None:
    """The backup had a life before that one, whose key was seen again, or none."""
    first = replace(N1, epoch=2, lease_id=2)
    driver = Driver(first)
    driver.sync(first)
    driver.step(FromNode("n1", Checkpoint(1, 2, 1, (ShardCheckpoint(A, (), (entry(ROW, 1),)),))))
    driver.step(MembersChanged(between))
    driver.step(MembersChanged(()))
    again = replace(N1, epoch=2, lease_id=3)
    assert RevokeLease(again, 101) in driver.step(MembersChanged((again,)))
    driver.sync(again)
    assert driver.step(FromNode("n1", Checkpoint(1, 2, 1, (ShardCheckpoint(A, (), (entry(ROW, 2),)),)))) == []
    driver.step(MembersChanged(()))
    next_life = replace(N1, epoch=3, lease_id=4)
    assert not [e for e in driver.step(MembersChanged((next_life,))) if isinstance(e, RevokeLease)]


def test_a_life_that_comes_back_goes_on_with_what_was_recorded_while_a_former_one_was_seen() -> None:
    first, second = replace(N1, lease_id=1), replace(N1, epoch=2, lease_id=2)
    driver = Driver(first)
    driver.sync(first)
    driver.step(MembersChanged((second,)))
    driver.sync(second)
    driver.step(FromNode("n1", Checkpoint(1, 2, 1, (ShardCheckpoint(A, (), (entry(ROW, 1),)),))))
    assert RevokeLease(first, 101) in driver.step(MembersChanged((first,))), "it was over"
    driver.step(Recorded("n1", 2, 1))
    driver.step(MembersChanged((second,)))
    assert SendTo(second, Acknowledge(1, 2, 2, 1)) in driver.sync(second, number=2)


@pytest.mark.parametrize(("gone_s", "refused"), [(0.1, False), (60.0, True)])
def test_a_life_that_a_restored_etcd_brings_back_is_refused_once_others_have_what_it_ran(
    gone_s: float, refused: bool
) -> None:
    """A process that was stopped meanwhile would take what was sent to it before."""
    driver, _ = running()
    driver.step(MembersChanged((N2,)))
    driver.sync(N2)
    assert bool(dispatches(driver.wait(gone_s))) is refused
    assert (RevokeLease(N1, 101) in driver.step(MembersChanged((N1, N2)))) is refused


def test_a_node_whose_epochs_are_counted_again_is_a_member_again() -> None:
    """Somebody has deleted the key in etcd that counts them."""
    driver = Driver(replace(N1, epoch=500, lease_id=1))
    driver.step(MembersChanged(()))
    effects = driver.step(MembersChanged((replace(N1, epoch=1, lease_id=2),)))
    assert not [effect for effect in effects if isinstance(effect, RevokeLease)]


def test_what_is_remembered_of_epochs_is_bounded() -> None:
    driver = Driver(N1)
    for epoch in range(2, EPOCHS_MAX + 50):
        driver.step(MembersChanged((replace(N1, epoch=epoch, lease_id=epoch),)))
    assert driver.owner.term is not None
    assert len(driver.owner.term.epochs["n1"]) == EPOCHS_MAX


def test_a_node_that_answers_nothing_is_revoked() -> None:
    driver = Driver(N1, wanted=("a",))
    driver.sync(N1)
    driver.settle()
    effects: list[OwnerEffect] = []
    for _ in range(4):
        effects += driver.step(Tick(), TIMES.resend_s)
    assert RevokeLease(N1, 101) in effects
    assert driver.state() is ShardState.DRAINING


def test_a_node_that_never_heard_of_the_new_owner_does_not_obey_the_old_one() -> None:
    """A deposed owner's delayed dispatch starts nothing (bug 3)."""
    cluster = Loopback()
    cluster.start("n1", "n2")
    cluster.elect("n1")
    cluster.run(1)
    cluster.elect("n2")
    cluster.start("n3", tell=False)
    cluster.to_owner("n1", MembersChanged(tuple(sorted(cluster.members.values()))))
    cluster.to_owner("n1", ShardWanted(A, (ROW,)))
    cluster.run(20)
    assert cluster.running() == {}
    assert set(cluster.members) == {"n1", "n2", "n3"}, "and revokes nobody"


def test_one_unreachable_node_does_not_hold_up_the_others() -> None:
    """Bug 11."""
    cluster = Loopback()
    cluster.start("n1", "n2")
    cluster.elect("n1")
    for n in range(8):
        cluster.want(f"t{n}")
    cluster.cut.add("n2")
    cluster.run(30)
    assert set(cluster.running().values()) == {"n1"}
    assert len(cluster.running()) == 8


def test_an_owner_that_paused_hears_first_what_came_in_meanwhile() -> None:
    """It alone was frozen: the others have said all the time that they are there."""
    times = replace(TIMES, alive_s=1.0)
    owner = OwnerMachine("n1", "1", times)
    step_with_rings(owner, Elected(1, 101, (N1, N2)), 0.0)
    for record in (N1, N2):
        step_with_rings(owner, FromNode(record.node_id, Sync(1, 1, "1", 1, 0, 1, 0, ())), 0.0)
    late = step_with_rings(owner, Tick(), 60.0)
    assert [effect for effect in late if isinstance(effect, RevokeLease)] == []
    for record in (N1, N2):
        step_with_rings(owner, FromNode(record.node_id, Alive(1, 1)), 60.0)
    assert not [effect for effect in step_with_rings(owner, Tick(), 61.5) if isinstance(effect, RevokeLease)]
    silent: list[OwnerEffect] = []
    while (due_s := owner.next_due_s()) is not None and due_s < 70.0:
        silent += step_with_rings(owner, Tick(), due_s)
    assert RevokeLease(N1, 101) in silent
