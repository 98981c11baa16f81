"""How the owner's loop handles jobs, reports, members and queries within a term.

The owner's terms: how they are claimed, end and begin again, and what is written meanwhile.

What a clock that was wrong has done is undone when it is right, and operators hear of it.

Rings are built off the owner's thread, and of several requested only the last has to be built.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from iscp.cluster.jobs.job_changes import Pause, Register, Resume, Unregister
from iscp.cluster.owner.checkpoint_saver import EVERY_S
from iscp.cluster.owner.job_log_writer import EVERY_S as MARK_EVERY_S
from iscp.cluster.owner.owner_loop import CLAIM_RETRY_S, RingBuilder
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, JobState, LogEntry, Registration
from iscp.model.protocol.events import CoordinationTimes, FromNode, OwnerEffect, OwnerEvent, Tick
from iscp.model.protocol.messages import Acknowledge, Alive, Announce, DispatchTable, ShardCheckpoint, SourceSeen
from iscp.model.values.errors import InvariantBroken, JobLogDamaged, NotOwner, StorageError, Unavailable
from iscp.model.values.ids import Moment, NodeRecord, ShardId
from iscp.model.values.ring import Ring
from iscp.system.inbox import EVENTS_MAX, PUT_WAIT_S
from tests.fakes.etcd import FakeElection, FakeMembership
from tests.fakes.joblog import LogStorage
from tests.fakes.nodes import nodes_and_views
from tests.fakes.owned_jobs import SHARD, entry, register, row
from tests.fakes.owner import TIMES, OwnerWorld
from tests.fakes.waiting import until


def test_what_is_committed_is_dispatched_and_the_last_job_takes_its_table_along(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    until(lambda: len(world.heard(DispatchTable)) == 1)
    register(world, row("y"))
    until(lambda: len(world.heard(DispatchTable)) == 2)
    assert [job.key.job_name for job in world.heard(DispatchTable)[-1].jobs] == ["x", "y"]  # type: ignore[union-attr]
    world.see(4)
    for name in "xy":
        world.owner.current_writer().submit(Unregister(row(name).key)).result(10)
    until(lambda: world.heard(DispatchTable)[-1].is_delete)  # type: ignore[union-attr]
    until(lambda: world.owner.query(lambda loop: len(loop.machine.assignments)) == 0)
    assert world.owner.query(lambda loop: dict(loop.sources.seen)) == {}


def test_progress_is_kept_for_the_next_dispatch_and_sent_to_nobody(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    until(lambda: len(world.heard(DispatchTable)) == 1)
    world.report(row("x"), 3, JobState.RUNNING)
    until(lambda: world.owner.query(lambda loop: loop.machine.assignments[SHARD].jobs[0].watermark.version) == 3)
    assert len(world.heard(DispatchTable)) == 1


def test_a_reported_commit_wakes_the_table_whose_jobs_read_the_target(world: OwnerWorld) -> None:
    world.lead()
    below, above = row("x"), row("y", "t-2")._replace(table_uri="/targets/t-1/x")
    register(world, below, above)
    world.report(above, 3)
    world.report(below, 3)
    until(lambda: world.woken)
    assert world.woken == [above.key.shard]


def test_what_the_node_saw_of_the_source_can_be_requested(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    until(lambda: world.heard(DispatchTable))
    moves = world.moves
    seen = SourceSeen(SHARD, 9, 5.0, 1.5)
    world.checkpoint(ShardCheckpoint(SHARD, seen=seen))
    until(lambda: world.owner.query(lambda loop: loop.sources.seen) == {SHARD: seen})
    assert world.moves > moves


def test_tables_with_a_repair_that_some_job_has_not_applied_are_known_until_it_has(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    until(lambda: world.heard(DispatchTable))

    def repaired() -> list[ShardId]:
        return world.owner.query(lambda loop: list(loop.sources.repaired))

    world.checkpoint(ShardCheckpoint(SHARD, seen=SourceSeen(SHARD, 9, 5.0, 1.5, (), 8)))
    until(lambda: repaired() == [SHARD])
    world.checkpoint(ShardCheckpoint(SHARD, seen=SourceSeen(SHARD, 9, 6.0, 0.0)))
    until(lambda: repaired() == [])
    world.checkpoint(ShardCheckpoint(SHARD, seen=SourceSeen(SHARD, 11, 7.0, 1.5, (), 10)))
    until(lambda: repaired() == [SHARD])
    world.owner.current_writer().submit(Unregister(row("x").key)).result(10)
    until(lambda: repaired() == [])


def test_a_report_is_acknowledged_only_once_its_history_is_written(world: OwnerWorld) -> None:
    writing, may_write = threading.Event(), threading.Event()
    world.lead()
    register(world, row("x"))
    log = world.logs[-1]
    written = log.append_history

    def slow(entries: list[HistoryEntry]) -> None:
        writing.set()
        assert may_write.wait(10)
        written(entries)

    log.append_history = slow  # type: ignore[method-assign,assignment]
    number = world.report(row("x"), 3, history=[entry("x")])
    assert writing.wait(10)
    world.settle()
    assert world.recorded() < number
    may_write.set()
    until(lambda: world.recorded() == number)
    assert world.storage.history == [entry("x")]


def test_a_report_without_history_is_acknowledged_at_once(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    number = world.report(row("x"), 3)
    world.settle()
    assert world.recorded() == number


def test_a_term_that_ends_leaves_what_it_did_not_write_unacknowledged(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    world.logs[-1].faults += [StorageError("disk full")] * 100
    number = world.report(row("x"), 3, history=[entry("x")])
    world.owner.on_lost()
    until(lambda: world.owner.writer is None)
    world.settle()
    assert world.recorded() < number
    assert world.storage.history == []


@pytest.mark.parametrize("deposed", [False, True])
def test_a_silent_nodes_lease_is_revoked_but_not_by_who_no_longer_leads(world: OwnerWorld, deposed: bool) -> None:
    world.lead()
    lease = FakeMembership(world.etcd).register(NodeRecord("silent", 1, "there:1"))
    world.settle()
    assert "silent" in {record.node_id for record in world.owner.members}
    if deposed:
        FakeElection(world.etcd).campaign("silent", lambda leader: None, lambda: None)
        world.etcd.candidates[0], world.etcd.candidates[1] = world.etcd.candidates[1], world.etcd.candidates[0]
        world.etcd.candidates[0].win(99)
    for _ in range(30):
        world.pass_s(1.0)
    until(lambda: lease.gone or deposed)  # a thread of its own revokes
    assert lease.gone is not deposed


def test_members_that_were_read_before_and_come_after_take_nobody_away(world: OwnerWorld) -> None:
    """The watch and the one who revokes read them, each by a thread of its own."""
    world.lead()
    known, moment = world.owner.members, world.etcd.moment
    later = replace(moment, revision=moment.revision + 5)
    world.owner.on_members_changed((*known, NodeRecord("late", 1, "there:1")), later)
    world.owner.on_members_changed(known, moment)
    world.settle()
    assert "late" in {record.node_id for record in world.owner.members}


class Reading(OwnerMachine):
    """Remembers of each step its event, when it was, and up to when all that came in had been read."""

    def __init__(self) -> None:
        super().__init__("n-1", "v", TIMES)
        self.steps: list[tuple[OwnerEvent, float, float | None]] = []

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        self.steps.append((event, now_s, read_s))
        return super().step(event, now_s, read_s)


def test_the_machine_gets_up_to_when_all_that_came_in_is_read(world: OwnerWorld) -> None:
    """The loop is busy for 20 s, in which two things come in, and others become due."""
    world.owner.machine = machine = Reading()
    world.lead()
    busy, go_on, due = threading.Event(), threading.Event(), threading.Event()

    def keep_busy(_: object) -> None:
        busy.set()
        go_on.wait(10.0)

    asked = threading.Thread(target=lambda: world.owner.query(keep_busy, 20.0))
    asked.start()
    assert busy.wait(10.0)
    began_s = world.clock.monotonic_s()
    machine.steps.clear()
    alive = Alive(machine.owner_rev, 1)
    for after_s in (1.0, 4.0):
        world.clock.advance(after_s)
        world.owner.receive("n-1", [alive, alive])
    assert machine.term is not None
    machine.term.timers.at(began_s + 3.0, due.set)
    world.clock.advance(15.0)
    go_on.set()
    asked.join()
    world.settle()
    assert due.is_set()
    heard = [
        (now_s - began_s, (read_s or 0.0) - began_s)
        for event, now_s, read_s in machine.steps
        if isinstance(event, FromNode)
    ]
    assert heard == [(20.0, 1.0)] * 2 + [(20.0, 5.0)] * 2
    assert all((read_s or 0.0) >= began_s + 3.0 for event, _, read_s in machine.steps if isinstance(event, Tick))


def test_what_a_question_fails_with_is_the_askers(world: OwnerWorld) -> None:
    world.owner.start()
    with pytest.raises(ZeroDivisionError):
        world.owner.query(lambda loop: 1 // 0)
    assert world.owner.query(lambda loop: loop is world.owner)


def test_a_full_inbox_ends_no_term_and_loses_nothing_that_is_said_once(world: OwnerWorld) -> None:
    """What nodes send is refused, for they repeat it; commits, members and elections are not."""
    world.lead()
    first, held_up = world.owner.current_writer(), threading.Event()
    waiting = threading.Thread(target=lambda: world.owner.query(lambda loop: held_up.wait(30), timeout_s=60))
    waiting.start()
    for _ in range(EVENTS_MAX):
        world.owner.receive("n-1", [])
    began_s = time.monotonic()
    first.submit(Register((Registration(row("x")),))).result(10)
    world.owner.on_members_changed(world.etcd.members(), Moment(0, world.etcd.revision + 1))
    world.etcd.depose()
    assert time.monotonic() - began_s < PUT_WAIT_S / 2
    held_up.set()
    waiting.join()
    until(lambda: world.owner.writer not in (None, first))
    until(lambda: world.pass_s(TIMES.settle_s) or world.runs())  # type: ignore[func-returns-value]


def test_a_job_that_was_resumed_behind_the_checkpoint_is_listed_until_it_has_reached_it(world: OwnerWorld) -> None:
    world.lead()
    one, other = row("x"), row("y", "t-2")
    register(world, one, other)
    _, views = nodes_and_views(world.owner, world.membership, world.clock)

    def applied(*jobs: JobRow, version: int) -> float:
        """The checkpoint, after the node has looked at both sources."""
        for each in jobs:
            world.report(each, version, JobState.COMPLETED)
        for each in (one, other):
            world.see(version, table_id=each.key.table_id)
        until(lambda: all(world.job(each.key).watermark.version == version for each in jobs))  # type: ignore[union-attr]
        world.settle()
        world.pass_s(EVERY_S)
        return views.view(world.owner.current_writer()).checkpoint_at_s

    def left_out() -> dict[str, str]:
        return {each.name: each.why for each in views.view(world.owner.current_writer()).left_out}

    first_s = applied(one, other, version=1)
    assert first_s > 0
    writer = world.owner.current_writer()
    assert writer.submit(Pause(one.key)).result(10)
    world.clock.advance(1000.0)
    assert applied(other, version=2) >= first_s + 1000.0
    assert left_out() == {"x": "paused"}
    assert writer.submit(Resume(one.key)).result(10)
    assert left_out() == {"x": "catching up"}
    applied(other, version=3)
    assert left_out() == {"x": "catching up"}
    applied(one, other, version=4)
    assert left_out() == {}


def test_an_older_snapshot_of_the_members_is_passed_over(world: OwnerWorld) -> None:
    """It lacks a node that has registered since, whose shards would be given to others."""
    world.lead()
    world.settle()
    now = world.etcd.revision
    world.owner.on_members_changed((), Moment(0, now - 1))
    assert [record.node_id for record in world.owner.query(lambda loop: loop.members)] == ["n-1"]
    world.owner.on_members_changed((), Moment(0, now + 1))
    assert world.owner.query(lambda loop: loop.members) == ()


def test_members_of_an_etcd_that_was_restored_from_a_backup_count_though_its_revisions_are_lower(
    world: OwnerWorld,
) -> None:
    world.lead()
    world.settle()
    world.owner.on_members_changed((), Moment(1, 1))
    assert world.owner.query(lambda loop: loop.members) == ()
    world.owner.on_members_changed(world.etcd.members(), Moment(0, world.etcd.revision + 1))
    assert world.owner.query(lambda loop: loop.members) == (), "what was read of the store before is over"


def test_before_it_is_elected_there_is_no_owner(world: OwnerWorld) -> None:
    world.owner.start()
    with pytest.raises(NotOwner):
        world.owner.current_writer()
    with pytest.raises(NotOwner):
        world.owner.current_writer()
    assert world.storage.term == 0


def test_once_elected_it_claims_the_term_loads_the_jobs_and_places_them(world: OwnerWorld) -> None:
    world.storage.term = 4
    world.storage.entries = [LogEntry(each) for each in (row("x"), row("y"), row("z", "t-2"))]
    world.lead()
    until(lambda: len(world.heard(DispatchTable)) == 2)
    assert world.storage.term == 5
    assert {message.owner_rev for message in world.told} == {5}
    dispatched = {m.shard: {job.key.job_name for job in m.jobs} for m in world.heard(DispatchTable)}  # type: ignore[union-attr]
    assert dispatched == {SHARD: {"x", "y"}, ShardId("t-2"): {"z"}}
    assert world.owner.current_writer().read(len) == 3
    assert world.moves
    assert [record.node_id for record in world.owner.members] == ["n-1"]


def test_a_claim_that_the_storage_refuses_is_tried_again_while_the_election_is_held(world: OwnerWorld) -> None:
    world.claim_faults += [StorageError("disk full"), Unavailable("etcd"), NotOwner("another claimed first")]
    world.start()
    for left in (2, 1, 0):
        until(lambda left=left: len(world.claim_faults) == left)  # type: ignore[misc]
        world.settle()
        assert world.owner.writer is None
        world.pass_s(CLAIM_RETRY_S / 2)
        assert len(world.claim_faults) == left  # not before its time
        world.clock.advance(CLAIM_RETRY_S / 2)
        world.owner.query(lambda loop: None)
    until(lambda: world.owner.writer)
    assert world.storage.term == 1


def test_each_claim_opens_the_log_again(world: OwnerWorld) -> None:
    world.claim_faults.append(StorageError("disk full"))
    world.start()
    until(lambda: not world.claim_faults)
    world.pass_s(CLAIM_RETRY_S)
    until(lambda: world.owner.writer)
    assert len(world.logs) == 2


def test_an_election_that_is_lost_before_the_claim_succeeded_ends_the_trying(world: OwnerWorld) -> None:
    world.claim_faults += [StorageError("disk full")] * 5
    world.start()
    until(lambda: len(world.claim_faults) == 4)
    world.owner.on_lost()
    world.pass_s(10 * CLAIM_RETRY_S)
    assert (len(world.claim_faults), world.owner.writer) == (4, None)


def test_a_lost_election_ends_the_term_and_what_was_pending_is_written(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    writer = world.owner.current_writer()
    world.report(row("x"), 3)
    until(lambda: writer.read(lambda book: book.get(row("x").key).watermark.version) == 3)  # type: ignore[union-attr]
    moves = world.moves
    world.owner.on_lost()
    until(lambda: world.owner.writer is None)
    world.settle()
    assert world.owner.query(lambda loop: loop.machine.term) is None
    assert world.moves > moves  # who waits has to look again
    assert world.storage.entries[-1][0].watermark.version == 3
    with pytest.raises(NotOwner):
        world.owner.current_writer()
    with pytest.raises(Unavailable):
        writer.submit(Unregister(row("x").key))
    world.pass_s(10 * CLAIM_RETRY_S)
    assert world.storage.term == 1


def test_a_book_is_not_read_once_the_election_is_not_confirmed(world: OwnerWorld) -> None:
    """As by a process that stood still, or is cut off from etcd: another owner may have changed the jobs since."""
    world.lead()
    register(world, row("x"))
    world.election.confirmed_s = world.clock.monotonic_s() + 1.0
    assert world.job(row("x").key) is not None
    world.clock.advance(1.0)
    with pytest.raises(NotOwner, match="has not confirmed its election"):
        world.owner.current_writer()


def test_an_owner_that_is_to_resign_gives_way_in_the_election() -> None:
    world = OwnerWorld(times=CoordinationTimes())
    world.lead()
    leader = world.owner.query(lambda loop: loop.leader)
    others = tuple(NodeRecord(node_id, 1, f"{node_id}:1") for node_id in ("n-2", "n-3"))
    world.owner.on_members_changed((*world.etcd.members(), *others), Moment(0, world.etcd.revision + 1))
    until(lambda: world.pass_s(TIMES.resend_s / 2) or world.election.gave_way)  # type: ignore[func-returns-value]
    assert leader is not None
    assert world.election.gave_way == [leader.revision]
    (event,) = [each for each in world.owner.decisions.after(0, 0) if each.what == "resign"]
    assert "none of 2 other nodes" in event.why
    world.close()


def test_between_terms_nothing_is_due(world: OwnerWorld) -> None:
    """Otherwise what is left to be saved would make the loop spin."""
    world.lead()
    register(world, row("x"))
    world.report(row("x"), 3)
    world.settle()
    assert world.owner.query(lambda loop: loop.checkpoint.due_s) is not None
    world.owner.on_lost()
    assert world.owner.query(lambda loop: loop._next_due_s()) is None


def test_elected_again_it_begins_another_term_with_another_log(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    first = world.owner.current_writer()
    world.etcd.depose()  # the only candidate: it leads again
    until(lambda: world.owner.writer not in (None, first))
    until(lambda: {m.owner_rev for m in world.heard(Announce)} == {1, 2})
    assert world.owner.current_writer().read(len) == 1
    assert len(world.logs) == 2


def test_another_term_in_the_log_ends_ours_and_a_new_claim_follows_while_it_leads(world: OwnerWorld) -> None:
    world.lead()
    first = world.owner.current_writer()
    world.storage.term = 7
    with pytest.raises(NotOwner):
        register(world, row("x"))
    until(lambda: world.owner.writer is None)
    assert world.owner.query(lambda loop: loop.machine.term) is None
    world.settle()
    assert world.storage.term == 7  # not at once: the other one may be about to lead
    world.clock.advance(CLAIM_RETRY_S)
    until(lambda: world.owner.query(lambda loop: loop.writer))
    assert world.owner.current_writer() is not first
    assert world.storage.term == 8
    until(lambda: world.heard(Announce)[-1].owner_rev == 8)
    world.pass_s(TIMES.settle_s)
    register(world, row("x"))


def test_another_term_in_the_log_ends_ours_for_good_once_the_election_is_lost_too(world: OwnerWorld) -> None:
    world.lead()
    world.storage.term = 7
    with pytest.raises(NotOwner):
        register(world, row("x"))
    until(lambda: world.owner.writer is None)
    world.owner.on_lost()
    world.pass_s(10 * CLAIM_RETRY_S)
    assert (world.storage.term, world.owner.writer) == (7, None)


def test_etcd_gets_how_far_the_log_has_come_at_once_then_each_second_and_at_the_end(world: OwnerWorld) -> None:
    marks = world.etcd.log_versions
    world.start()
    until(lambda: marks == [world.storage.version])
    until(lambda: world.heard(Acknowledge))
    world.pass_s(TIMES.settle_s + MARK_EVERY_S)
    register(world, row("x"))
    until(lambda: marks[-1] == world.storage.version)
    told = len(marks)
    for name in "abc":
        register(world, row(name))
    world.settle()
    assert len(marks) == told  # a second has not passed
    world.pass_s(MARK_EVERY_S)
    until(lambda: marks[-1] == world.storage.version)
    assert len(marks) == told + 1
    world.pass_s(10 * MARK_EVERY_S)
    assert len(marks) == told + 1  # nothing was written since
    register(world, row("d"))
    register(world, row("e"))
    world.owner.close()
    assert marks[-1] == world.storage.version


def test_why_the_log_cannot_be_claimed_is_said_at_every_node_until_it_is_claimed(world: OwnerWorld) -> None:
    damaged = JobLogDamaged("7.json is torn", remedy="Repair it")
    world.claim_faults += [damaged] * 3
    world.start()
    until(lambda: world.etcd.log_fault is damaged)
    other = OwnerWorld()
    other.etcd.log_fault = damaged
    for each in (world, other):
        with pytest.raises(NotOwner, match=r"7\.json is torn\. Repair it"):
            each.owner.current_writer()
        with pytest.raises(NotOwner, match=r"7\.json is torn\. Repair it"):
            each.owner.current_writer()
    other.close()
    until(lambda: world.pass_s(CLAIM_RETRY_S) or world.owner.writer)  # type: ignore[func-returns-value]
    until(lambda: world.etcd.log_fault is None)


def test_an_old_book_is_not_read_while_the_log_is_damaged(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    world.claim_faults += [JobLogDamaged("7.json is torn")]
    world.etcd.depose()
    until(lambda: world.owner.claim_fault)
    with pytest.raises(NotOwner, match="torn"):
        world.owner.current_writer()


def test_a_broken_invariant_stops_the_node() -> None:
    world = OwnerWorld()
    world.claim_faults.append(InvariantBroken("two rows of one job"))
    world.start()
    until(lambda: world.broken)
    assert isinstance(world.broken[0], InvariantBroken)
    world.owner.close()


def test_messages_between_terms_change_nothing(world: OwnerWorld) -> None:
    world.owner.start()
    world.owner.receive("n-1", [Acknowledge(1, 1, 1, 1)])  # type: ignore[list-item]
    world.see(4)
    assert world.owner.query(lambda loop: dict(loop.sources.seen)) == {}


def test_an_owner_that_was_just_started_places_nothing_while_somebody_of_before_may_still_write() -> None:
    """It cannot know whose lease ended right before its first read; before the first term nobody has run anything."""
    storage = LogStorage()
    for hold_s in (0.0, TIMES.margin_s):
        world = OwnerWorld(storage)
        world.start()
        until(lambda world=world: world.owner.writer)  # type: ignore[misc]
        assert world.owner.query(lambda loop: loop.machine.term and loop.machine.term.hold_until_s) == (
            world.clock.monotonic_s() + hold_s
        )
        world.close()


def test_a_claim_that_has_overtaken_another_leader_begins_no_term(world: OwnerWorld) -> None:
    """Frozen between the election and the claim, it wakes when another leads, and has not been notified."""
    world.claim_faults.append(StorageError("away"))
    world.start()
    until(lambda: not world.claim_faults)
    told, world.election._on_lost = world.election._on_lost, lambda: None
    world.etcd.candidates.append(FakeElection(world.etcd))
    world.etcd.depose()
    world.pass_s(CLAIM_RETRY_S)
    until(lambda: world.storage.term)
    world.settle()
    assert world.owner.writer is None
    told()


MONTH_S = 30 * 86_400.0


def checkpoint_s(world: OwnerWorld) -> float:
    world.pass_s(EVERY_S)
    return world.owner.query(lambda loop: loop.checkpoint.at_s)


def clock_events(world: OwnerWorld) -> list[str]:
    return [event.why for event in world.owner.decisions.after(0, 0) if event.what == "clock"]


def apply_one(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("x"))
    until(world.runs)
    sent = world.report(row("x"), 1, JobState.COMPLETED)
    until(lambda: world.recorded() >= sent)
    world.see(1)
    until(lambda: checkpoint_s(world) > 0)  # the owner hears of it in its own thread


def test_a_probe_by_a_clock_that_is_ahead_moves_no_checkpoint_and_is_an_event(world: OwnerWorld) -> None:
    apply_one(world)
    before_s = checkpoint_s(world)
    assert before_s > 0
    for _ in range(2):
        seen = SourceSeen(SHARD, 1, world.clock.now_s() + MONTH_S, 0.0)
        world.checkpoint(ShardCheckpoint(SHARD, seen=seen))
        assert checkpoint_s(world) == before_s
    (event,) = clock_events(world)
    assert "ahead of the owner's" in event
    world.see(1)
    assert checkpoint_s(world) > before_s
    assert len(clock_events(world)) == 2


def test_a_probe_by_an_owner_whose_own_clock_jumps_ahead_moves_no_checkpoint(world: OwnerWorld) -> None:
    apply_one(world)
    before_s = checkpoint_s(world)
    assert before_s > 0
    world.clock.step(MONTH_S)
    for _ in range(2):
        world.see(1)
        assert checkpoint_s(world) == before_s
    world.clock.step(-MONTH_S)
    world.see(1)
    assert before_s < checkpoint_s(world) <= world.clock.now_s()


def test_what_an_owner_with_a_wrong_clock_took_ahead_is_taken_back_by_the_next(world: OwnerWorld) -> None:
    world.clock.step(MONTH_S)
    apply_one(world)
    ahead_s = checkpoint_s(world)
    until(lambda: world.etcd.checkpoints[-1:] == [ahead_s])
    world.clock.step(-MONTH_S)
    world.etcd.depose()
    until(lambda: world.owner.query(lambda loop: loop.machine.owner_rev) == 2)
    world.pass_s(EVERY_S)
    until(world.runs)
    world.see(1)
    assert checkpoint_s(world) <= world.clock.now_s()
    (event,) = clock_events(world)
    assert "taken back" in event
    until(lambda: world.etcd.checkpoints[-1] <= world.clock.now_s())


WAIT_S = 10.0


def test_what_is_requested_while_another_is_built_leaves_out_what_was_requested_before() -> None:
    built: list[tuple[str, ...]] = []
    threads: set[str] = set()
    busy, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def take(ring: Ring) -> None:
        threads.add(threading.current_thread().name)
        built.append(ring.node_ids)
        busy.set()
        assert go_on.wait(WAIT_S)
        if "c" in ring.node_ids:
            done.set()

    builder = RingBuilder(take, lambda error: None)
    builder.build(frozenset("a"))
    assert busy.wait(WAIT_S)
    builder.build(frozenset("ab"))
    builder.build(frozenset("abc"))
    go_on.set()
    assert done.wait(WAIT_S)
    builder.close()
    assert built == [("a",), ("a", "b", "c")]
    assert threading.current_thread().name not in threads


def test_what_goes_wrong_is_reported() -> None:
    broken: list[Exception] = []
    told = threading.Event()

    def fail(ring: Ring) -> None:
        raise ValueError("no room")

    def note(error: Exception) -> None:
        broken.append(error)
        told.set()

    builder = RingBuilder(fail, note)
    builder.build(frozenset("a"))
    assert told.wait(WAIT_S)
    builder.close()
    assert [str(error) for error in broken] == ["no room"]
