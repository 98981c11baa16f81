"""How the owner's loop handles jobs, reports, members and queries within a term."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from iscp.coordination.jobs.job_requests import Pause, Register, Registration, Resume, Unregister
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.effects import OwnerEffect
from iscp.coordination.protocol.events import FromNode, OwnerEvent, Tick
from iscp.coordination.protocol.messages import Alive, DispatchTable, ShardCheckpoint, SourceSeen
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.values.errors import StorageError
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Moment, NodeRecord
from iscp.runtime.loop.inbox import EVENTS_MAX, PUT_WAIT_S
from iscp.runtime.owner.checkpoint_saver import EVERY_S
from tests.fakes.etcd import FakeElection, FakeMembership
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
