"""Where the owner places shards: dispatches, answers, second copies, moves and ranges."""

from __future__ import annotations

import tracemalloc

import pytest

from iscp.coordination.invariants import check_owner
from iscp.coordination.membership.assignments import Assignments, Holder, ShardEvent, ShardState
from iscp.coordination.membership.dispatch_window import AWAITED_MIN
from iscp.coordination.membership.node_session import OPERATIONS_IN_FLIGHT_MAX
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.effects import OwnerEffect, RecordCheckpoint, RevokeLease, SendTo
from iscp.coordination.protocol.events import (
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    MoveRequested,
    Recorded,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.coordination.protocol.messages import (
    Acknowledge,
    Checkpoint,
    DispatchTableResponse,
    NodeShard,
    NodeShardState,
    ShardCheckpoint,
    Sync,
)
from iscp.coordination.protocol.overrides import Overrides
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.ids import ShardId
from iscp.core.values.members import NodeRecord
from tests.fakes.driven_owner import N1, N2, ROW, A, Driver, dispatches, running, told
from tests.fakes.loopback import TIMES, Loopback, entry, job, report
from tests.fakes.rings import step_with_rings


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
