"""What a clock that was wrong has done is undone when it is right, and operators hear of it."""

from __future__ import annotations

from iscp.coordination.protocol.messages import ShardCheckpoint, SourceSeen
from iscp.core.job.job_row import JobState
from iscp.runtime.owner.checkpoint_saver import EVERY_S
from tests.fakes.owned_jobs import SHARD, register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until

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
