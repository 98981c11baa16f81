"""The owner's terms: how they are claimed, end and begin again, and what is written meanwhile."""

from __future__ import annotations

import pytest

from iscp.coordination.jobs.job_requests import Unregister
from iscp.coordination.protocol.messages import Acknowledge, Announce, DispatchTable
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.core.job.job_row import LogEntry
from iscp.core.values.errors import InvariantBroken, JobLogDamaged, NotOwner, StorageError, Unavailable
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Moment, NodeRecord
from iscp.runtime.owner.log.log_marker import EVERY_S as MARK_EVERY_S
from iscp.runtime.owner.owner_loop import CLAIM_RETRY_S
from tests.fakes.etcd import FakeElection
from tests.fakes.joblog import LogStorage
from tests.fakes.owned_jobs import SHARD, register, row
from tests.fakes.owner import TIMES, OwnerWorld
from tests.fakes.waiting import until


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
