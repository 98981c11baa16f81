"""Which nodes the owner relies on, waits for, revokes and refuses.

Where the owner places shards: dispatches, answers, second copies, moves and ranges.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iscp.cluster.invariants import check_owner
from iscp.cluster.membership.assignments import Assignments, Holder, ShardEvent, ShardState
from iscp.cluster.membership.term import AWAITED_MIN, EPOCHS_MAX, OPERATIONS_IN_FLIGHT_MAX
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    MoveRequested,
    OwnerEffect,
    RecordCheckpoint,
    Recorded,
    RevokeLease,
    RowsMoved,
    SendTo,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTableResponse,
    NodeShard,
    NodeShardState,
    ShardCheckpoint,
    Sync,
)
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import NodeRecord, ShardId
from iscp.model.values.ring import Overrides
from tests.fakes.driven_owner import N1, N2, N3, ROW, A, Driver, dispatches, running, told
from tests.fakes.loopback import TIMES, Loopback, entry, job, report
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


def test_a_dispatch_is_repeated_until_it_is_confirmed() -> None:
    driver = Driver(N1, wanted=("a",))
    driver.sync(N1)
    (first,) = dispatches(driver.settle())
    assert dispatches(driver.step(Tick(), TIMES.resend_s)) == [first]
    driver.respond(N1, first, NodeShardState.ADDING)
    assert driver.state() is ShardState.DISPATCHING
    driver.respond(N1, first, NodeShardState.RUNNING)
    assert driver.state() is ShardState.RUNNING
    assert driver.step(Tick(), 60.0) == []
    assert driver.owner.next_due_s() is None
    assert driver.owner.settled


def test_a_drain_that_takes_too_long_is_ended_by_the_lease_but_not_while_the_log_is_late() -> None:
    driver, _ = running()
    (stop,) = dispatches(driver.step(ShardUnwanted(A)))
    checkpoint = Checkpoint(1, 1, 1, (ShardCheckpoint(A, (report(ROW, 1),)),))
    driver.step(FromNode("n1", checkpoint))
    effects: list[OwnerEffect] = []
    for _ in range(31):
        effects += driver.step(Tick(), 1.0)
        effects += driver.respond(N1, stop, NodeShardState.REMOVING)
    assert RevokeLease(N1, 101) not in effects
    driver.step(Recorded("n1", 1, 1))
    effects = driver.step(Tick(), TIMES.resend_max_s)
    assert RevokeLease(N1, 101) not in effects, "it could not say that it has stopped before it heard of that"
    for _ in range(31):
        effects += driver.respond(N1, stop, NodeShardState.REMOVING)
        effects += driver.step(Tick(), 1.0)
    assert RevokeLease(N1, 101) in effects


@pytest.mark.parametrize("commit_s", [0.2, 0.9])
def test_a_node_whose_reports_are_recorded_all_the_time_has_to_stop_a_shard_in_time(commit_s: float) -> None:
    """What the log takes for every commit is no reason to wait for ever."""
    driver, _ = running()
    (stop,) = dispatches(driver.step(ShardUnwanted(A)))
    effects: list[OwnerEffect] = []
    for number in range(1, int(36 / commit_s)):
        effects += driver.step(FromNode("n1", Checkpoint(1, 1, number, (ShardCheckpoint(A, (report(ROW, number),)),))))
        effects += driver.respond(N1, stop, NodeShardState.REMOVING)
        effects += driver.step(Recorded("n1", 1, number), commit_s)
        effects += driver.step(Tick())
    assert RevokeLease(N1, 101) in effects


def test_stopping_is_not_stopped() -> None:
    """A shard that is wanted again while its node is stopping it is not placed before that has ended (bug 1)."""
    driver, _ = running()
    (stop,) = dispatches(driver.step(ShardUnwanted(A)))
    assert stop.is_delete
    driver.respond(N1, stop, NodeShardState.REMOVING)
    assert dispatches(driver.step(ShardWanted(A, (ROW,)))) == []
    (start,) = dispatches(driver.respond(N1, stop, NodeShardState.ABSENT))
    assert not start.is_delete
    assert start.table_epoch > stop.table_epoch


def test_stale_answers_change_nothing() -> None:
    driver, first = running()
    (second,) = dispatches(driver.step(ShardWanted(A, (ROW, job("a", "k")))))
    assert second.table_epoch > first.table_epoch
    driver.respond(N1, first, NodeShardState.ABSENT)
    assert driver.state() is ShardState.RUNNING
    other_epoch = DispatchTableResponse(1, 2, second.table_epoch, A, NodeShardState.ABSENT)
    other_term = DispatchTableResponse(0, 1, second.table_epoch, A, NodeShardState.ABSENT)
    for message in (other_epoch, other_term):
        driver.step(FromNode("n1", message))
        assert driver.state() is ShardState.RUNNING
    driver.respond(N1, second, NodeShardState.RUNNING)
    assert driver.owner.next_due_s() is not None
    assert driver.step(Tick(), 5.0) == []


def test_a_restarted_node_loses_its_shards_after_the_grace() -> None:
    driver, _ = running()
    again = NodeRecord("n1", 2, "x:1")
    driver.step(MembersChanged((again,)))
    driver.sync(again)
    assert driver.state() is ShardState.DRAINING
    assert dispatches(driver.step(Tick(), TIMES.margin_s - 0.1)) == []
    (start,) = dispatches(driver.step(Tick(), 0.1))
    assert start.epoch == 2


def test_what_nodes_run_is_taken_over_and_goes_on_where_it_is() -> None:
    """A new owner finishes what the old one began (bugs 5 and 6)."""
    driver = Driver(N1, N2, wanted=("a", "b", "c"))
    b, c, gone = ShardId("b"), ShardId("c"), ShardId("gone")
    effects = driver.sync(
        N1, told(A, NodeShardState.RUNNING), told(b, NodeShardState.ADDING), told(gone, NodeShardState.RUNNING)
    )
    assert dispatches(effects) == [], "first it hears all of them"
    effects = driver.sync(N2, told(c, NodeShardState.REMOVING))
    assert {(d.shard, d.is_delete) for d in dispatches(effects)} == {(A, False), (b, False), (gone, True), (c, True)}
    states = {str(a.shard): a.state for a in driver.owner.assignments}
    assert states == {
        "a": ShardState.RUNNING,
        "b": ShardState.DISPATCHING,
        "c": ShardState.DRAINING,
        "gone": ShardState.DRAINING,
    }


def test_a_shard_that_two_nodes_claim_is_stopped_at_one() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    driver.sync(N1, told(A, NodeShardState.RUNNING))
    (stop,) = [d for d in dispatches(driver.sync(N2, told(A, NodeShardState.RUNNING))) if d.is_delete]
    assert driver.owner.assignments[A].holder == Holder("n1", 1)
    for dispatch in dispatches(driver.step(ShardWanted(A, (ROW,)))):
        driver.respond(N1, dispatch, NodeShardState.RUNNING)
    driver.settle()
    assert not driver.owner.settled, "there is a second copy"
    driver.respond(N2, stop, NodeShardState.ABSENT)
    assert driver.owner.assignments[A].holder == Holder("n1", 1)
    assert driver.owner.settled


def test_nothing_is_placed_while_a_second_copy_has_not_stopped() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    driver.sync(N1, told(A, NodeShardState.RUNNING))
    (stop,) = [d for d in dispatches(driver.sync(N2, told(A, NodeShardState.RUNNING))) if d.is_delete]
    driver.step(MembersChanged((N2,)))
    driver.step(Tick(), TIMES.margin_s + TIMES.settle_s)
    assert driver.state() is ShardState.ABSENT
    (start,) = dispatches(driver.respond(N2, stop, NodeShardState.ABSENT))
    driver.respond(N2, start, NodeShardState.RUNNING)
    assert driver.owner.settled


def test_a_second_copy_ends_with_its_node_s_grace() -> None:
    driver = Driver(N1, N2, wanted=("a",))
    driver.sync(N1, told(A, NodeShardState.REMOVING))
    driver.sync(N2, told(A, NodeShardState.RUNNING))
    driver.step(MembersChanged((N1,)))
    drain = driver.owner.term.peers["n1"].in_flight[A] if driver.owner.term else None
    assert drain is not None
    absent = DispatchTableResponse(1, 1, drain.table_epoch, A, NodeShardState.ABSENT)
    assert dispatches(driver.step(FromNode("n1", absent), TIMES.settle_s)) == []
    assert [d.epoch for d in dispatches(driver.wait(TIMES.margin_s))] == [1]


def test_a_late_sync_frees_nothing() -> None:
    """A Sync written before the dispatch arrived lacks the shard: it is dispatched again, to the same node."""
    driver, first = running()
    (again,) = dispatches(driver.sync(N1, number=2))
    assert (again.shard, again.epoch) == (A, 1)
    assert again.table_epoch > first.table_epoch
    assert driver.state() is ShardState.DISPATCHING
    assert dispatches(driver.sync(N1, number=1)) == [], "an older Sync is only acknowledged"


@pytest.mark.parametrize("told", [(), (NodeShardState.REMOVING,)], ids=["gone", "going"])
def test_an_answer_from_before_a_sync_does_not_hide_what_the_sync_has_said(told: tuple[NodeShardState, ...]) -> None:
    """It had started, and has stopped by itself: its "running" came late, and the owner believed that it runs."""
    driver = Driver(N1, wanted=("a",))
    driver.sync(N1)
    (first,) = dispatches(driver.wait(TIMES.settle_s))
    (again,) = dispatches(driver.sync(N1, *(NodeShard(A, first.table_epoch, state) for state in told), number=2))
    assert (again.is_delete, again.table_epoch > first.table_epoch) == (bool(told), True)
    late = DispatchTableResponse(1, 1, first.table_epoch, A, NodeShardState.RUNNING)
    assert driver.step(FromNode("n1", late)) == []
    assert driver.state() is not ShardState.RUNNING
    answer = DispatchTableResponse(1, 1, again.table_epoch, A, NodeShardState.ABSENT)
    assert [d.is_delete for d in dispatches(driver.step(FromNode("n1", answer)))] == [False], "it is placed again"


def test_checkpoints_are_recorded_once_in_order_and_acknowledged_when_recorded() -> None:
    driver, _ = running()
    one, two = (Checkpoint(1, 1, n, (ShardCheckpoint(A, (report(ROW, n),), (entry(ROW, n),)),)) for n in (1, 2))
    early = driver.step(FromNode("n1", two))
    assert early == [SendTo(N1, Acknowledge(1, 1, 1, 0))]
    (record,) = driver.step(FromNode("n1", one))
    assert record == RecordCheckpoint("n1", 1, 1, (report(ROW, 1),), (entry(ROW, 1),), ())
    assert driver.step(FromNode("n1", one)) == [SendTo(N1, Acknowledge(1, 1, 1, 0))]
    assert driver.step(Recorded("n1", 1, 1)) == [SendTo(N1, Acknowledge(1, 1, 1, 1))]
    assert driver.step(Recorded("n1", 1, 2)) == [], "nothing is recorded that did not come in"


def test_reports_count_only_from_the_holder_but_history_always() -> None:
    driver, _ = running()
    driver.step(MembersChanged((N1, N2)))
    driver.sync(N2)
    stranger = Checkpoint(1, 1, 1, (ShardCheckpoint(A, (report(ROW, 9),), (entry(ROW, 9),)),))
    (record,) = driver.step(FromNode("n2", stranger))
    assert isinstance(record, RecordCheckpoint)
    assert (record.reports, record.history) == ((), (entry(ROW, 9),))


def test_dispatches_in_flight_are_bounded_and_the_rest_follows() -> None:
    count = OPERATIONS_IN_FLIGHT_MAX + 10
    driver = Driver(N1, wanted=tuple(f"t{n}" for n in range(count)))
    driver.sync(N1)
    sent = dispatches(driver.settle())
    assert len(sent) == AWAITED_MIN, "no more than may await a first answer"
    for dispatch in sent:  # which grows meanwhile
        sent += dispatches(driver.respond(N1, dispatch, NodeShardState.ADDING))
    assert len(sent) == OPERATIONS_IN_FLIGHT_MAX, "no more than may be unconfirmed"
    for dispatch in sent:
        sent += dispatches(driver.respond(N1, dispatch, NodeShardState.RUNNING))
    check_owner(driver.owner)
    assert len({d.shard for d in sent}) == len(sent) == count


def test_a_deposed_owner_does_nothing_and_a_lower_term_does_not_begin() -> None:
    driver, _ = running()
    driver.step(Deposed())
    assert driver.step(ShardWanted(ShardId("b"), (job("b"),))) == []
    assert driver.step(Tick(), 100.0) == []
    driver.step(Elected(5, 105, (N1,)))
    assert driver.step(Elected(4, 104, (N1,))) == []
    assert driver.owner.owner_rev == 5


def test_a_transition_that_does_not_exist_is_refused() -> None:
    assignments = Assignments()
    assignment = assignments.want(A, (ROW,))
    assignments.take(assignment, Holder("n1", 1), ShardEvent.FIND_STOPPING)
    with pytest.raises(InvariantBroken):
        assignments.turn(assignment, ShardEvent.CONFIRM)
    with pytest.raises(InvariantBroken):
        assignments.take(assignment, Holder("n2", 1), ShardEvent.DISPATCH)
    with pytest.raises(InvariantBroken):
        assignments.want(ShardId("b"), ())


def test_a_shard_costs_at_most_a_kibibyte_and_nothing_while_idle() -> None:
    """Beside its rows, which the log has anyway."""
    count = 5_000
    rows = {ShardId(f"t{n}"): (job(f"t{n}"),) for n in range(count)}
    told_all = tuple(told(shard, NodeShardState.RUNNING) for shard in rows)
    tracemalloc.start()
    owner = OwnerMachine("n1", "1", TIMES)
    step_with_rings(owner, Elected(1, 101, (N1,), rows), 0.0)
    sent = dispatches(step_with_rings(owner, FromNode("n1", Sync(1, 1, "1", 1, 0, 1, 0, told_all)), 0.0))
    while sent:
        answer = DispatchTableResponse(1, 1, sent[0].table_epoch, sent.pop(0).shard, NodeShardState.RUNNING)
        sent += dispatches(step_with_rings(owner, FromNode("n1", answer), 0.0))
    while owner.next_due_s() is not None:
        step_with_rings(owner, Tick(), 10.0)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert owner.settled
    assert used / count <= 1024
    assert owner.next_due_s() is None


def test_a_pin_counts_also_for_a_shard_that_is_being_stopped_for_another_move() -> None:
    cluster = Loopback()
    cluster.start("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.want("a")
    cluster.run(8)
    at = cluster.running()["a"]
    first, second = (node_id for node_id in ("n1", "n2", "n3") if node_id != at)
    cluster.nodes[at].engine.slow = True
    cluster.move("a", first)
    cluster.override(Overrides(pins={A: second}))
    cluster.finish(at)
    cluster.run(1)
    assert cluster.running() == {"a": second}


def test_a_job_that_goes_while_its_shard_waits_leaves_no_move_behind() -> None:
    driver, _ = running()
    driver.step(MembersChanged((N1, N2)), 10.0)
    driver.sync(N2)
    driver.step(Tick(), TIMES.settle_s)
    driver.step(MoveRequested(A, "n2"))
    term = driver.owner.term
    assert term is not None
    (operation,) = term.peers["n1"].in_flight.values()
    driver.step(MembersChanged((N1, N2, NodeRecord("n3", 1, "z:1"))), 0.1)  # nothing is placed while it joins
    answer = DispatchTableResponse(1, 1, operation.table_epoch, A, NodeShardState.ABSENT)
    driver.step(FromNode("n1", answer))
    driver.step(ShardUnwanted(A))
    assert term.moving == {}


def test_a_range_waits_until_all_that_shares_keys_with_it_has_ended_and_others_do_not() -> None:
    driver = Driver(N1, N2, wanted=("a", "b"))
    driver.sync(N1, told(A, NodeShardState.RUNNING))
    driver.sync(N2)
    driver.settle()
    low, high = ShardId("a", 2), ShardId("a", 3)
    # Wanted before the whole is not: neither order of the two may let both run.
    first = driver.step(ShardWanted(low, (ROW,)))
    stopping = dispatches(driver.step(ShardUnwanted(A)))
    second = driver.step(ShardWanted(high, (ROW,)))
    assert dispatches(first) == dispatches(second) == []
    assert [(each.shard, each.is_delete) for each in stopping] == [(A, True)]
    assert dispatches(driver.step(Tick(), 0.1)) == []
    assert (driver.state(), driver.state(low), driver.state(high)) == (
        ShardState.DRAINING,
        ShardState.ABSENT,
        ShardState.ABSENT,
    )
    started = dispatches(driver.respond(N1, stopping[0], NodeShardState.ABSENT))
    assert {each.shard for each in started} == {low, high}
    assert driver.owner.assignments.get(A) is None
