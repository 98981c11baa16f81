"""A node's part in builds: the real loops of builder and worker, with the real store on the simulated etcd.

Modelled are the calls between owner and nodes, and what a batch reads and writes (`staged.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from iscp.cluster.builds.builder import Builder, BuildWorker
from iscp.cluster.builds.builder_loop import BuilderLoop, BuildWorkerLoop, RequestOfBuild, plan_of
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.etcd.keys import Compare, Delete, EventType, KeyValue, Put, Target, WatchEvent
from iscp.etcd.watched_keys import BuildKeys, EtcdBuilds
from iscp.model.build.build_state import (
    RANGE_TIMEOUT_S,
    BuilderEffect,
    BuilderEvent,
    BuildLimits,
    BuildState,
    BuildTick,
    BuildWorkerEffect,
    BuildWorkerEvent,
    Change,
    DropBuild,
    MarkBuilt,
    WorkRequested,
)
from iscp.model.values.errors import Conflict, IscpError, LeaseLost, NotOwner, Unavailable
from iscp.model.values.ids import Leader, NodeRecord, ShardId
from iscp.ports.cluster import BuildAnswer
from iscp.schedule.runner import RunGuard
from iscp.schedule.schedule_events import Notified
from tests.simulation.builds.staged import SimulatedReader, iteration_ports
from tests.simulation.etcd import KEYS, Etcd
from tests.simulation.member_store import MemberKeys, key_value
from tests.simulation.owner_ports import Asks, ProcessClock, is_led_by
from tests.simulation.violation import ViolationError, expect
from tests.simulation.wrongs import RANGE_TIMEOUT_S as TIMEOUT_S

if TYPE_CHECKING:
    from tests.simulation.process import Process

WAIT_S = 6.0
"""How long a node lets an owner wait; the real time would be longer than many of the runs."""

CALL_S = 8.0
BUILDS = BuildKeys(KEYS.builds)


def state_of(etcd: Etcd) -> BuildState:
    found = (BUILDS.read_change(key_value(key, item)) for key, item in etcd.prefixed(BUILDS.prefix))
    return BuildState.of(change for change in found if change is not None)


class BuildWrites(Asks):
    """What the real store needs of EtcdElection; the server looks at each transaction."""

    def write_fenced(self, leader: Leader, *writes: Put | Delete, when: tuple[Compare, ...] = ()) -> int:
        def write(etcd: Etcd) -> int | Exception:
            if not is_led_by(etcd, leader):
                return NotOwner("the election was lost")
            if not all(_holds(etcd, compare) for compare in when):
                return Conflict("another write has come first")
            before = state_of(etcd)
            etcd.transact(writes)
            world, changes = self._process.world, _changes(writes)
            after = state_of(etcd)
            world.build_checks.check_write(before, changes, after, world.staging.ever)
            world.kept.check_write(before, after)
            return etcd.revision

        answer = self.ask(write, changes=True)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _holds(etcd: Etcd, compare: Compare) -> bool:
    expect(compare.target is Target.MOD, "{} is not simulated", compare)
    there = etcd.get(compare.key)
    return (there.modified if there else 0) == compare.operand


def _changes(writes: Sequence[Put | Delete]) -> list[Change]:
    """What the transaction says of builds."""
    found = [
        BUILDS.read_change(KeyValue(each.key, each.value, 0, 0, 1, 0))
        if isinstance(each, Put)
        else BUILDS.follow(WatchEvent(EventType.DELETE, KeyValue(each.key, b"", 0, 0, 0, 0)))
        for each in writes
        if not (isinstance(each, Delete) and each.prefix)
    ]
    built = {change.job_id for change in found if isinstance(change, MarkBuilt)}
    return [each for each in found if each and not (isinstance(each, DropBuild) and each.job_id in built)]


class Building:
    """`loop` and `worker` run as long as the process does."""

    def __init__(self, process: Process) -> None:
        self._process = process
        world, parts = process.world, process.world.parts
        store = EtcdBuilds(MemberKeys(process), BuildWrites(process), KEYS, process.threads)
        clock = ProcessClock(process)

        def check_lease(epoch: int) -> None:
            if not process.registration.confirms(epoch):
                raise LeaseLost("the lease is lost")

        self.worker = _worker_loop(process, parts.build_worker)(
            process.node_id,
            store,
            SnapshotRangeBuilder(iteration_ports(process), SimulatedReader(process)),
            lambda: RunGuard(clock, check_lease, 0.0, process.registration.record.epoch),
            clock,
            _broken,
            process.threads,
        )
        self.builder = _builder_loop(process, parts.builder)(
            process.owner.loop,
            store,
            partial(BuildCalls, process),  # type: ignore[arg-type]  # of NodeCalls it has what builds need
            self._notify,
            plan_of,
            clock,
            _broken,
            BuildLimits(
                world.aside.choice((1, 1, 2)),
                world.aside.choice((4, 6, 100)),
                range_timeout_s=TIMEOUT_S if world.trouble_drawn.hanging_ranges else RANGE_TIMEOUT_S,
            ),
            process.threads,
        )
        self.worker.start()
        self.builder.start()

    def ask(self, event: RequestOfBuild) -> None:
        """An operator's request, which may be refused."""
        self._process.threads.begin(partial(self._ask, event))

    def _ask(self, event: RequestOfBuild) -> None:
        try:
            self.builder.request(event)
        except IscpError:
            return

    def _notify(self, shard: ShardId) -> None:
        """To whoever runs the shard; where it gets lost the job looks again by itself."""
        process = self._process
        assignment = process.owner.machine.assignments.get(shard)
        if assignment is not None and assignment.holder is not None:
            process.world.wire.send(process.node_id, assignment.holder.node_id, partial(_look_again, shard))


def _look_again(shard: ShardId, process: Process) -> None:
    if shard in process.engine.shards:
        process.engine.give(Notified(shard))


class BuildCalls:
    """The owner's calls to one node: each way may be lost, doubled or late. Then nobody answers in time."""

    def __init__(self, process: Process, record: NodeRecord) -> None:
        self._process = process
        self._node_id = record.node_id

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        wire, here = self._process.world.wire, self._process.node_id
        over = False
        ends: list[Callable[[], None]] = []

        def answer(found: BuildAnswer) -> None:
            nonlocal over
            if not over:
                over = True
                answered(found)

        def serve(process: Process) -> None:
            def reply(found: BuildAnswer) -> None:
                wire.send(self._node_id, here, lambda _: answer(found))

            end = process.building.worker.work_on_build_tasks(owner_rev, range_id, task_ids, reply)
            ends.append(end)
            process.after(WAIT_S, lambda: reply({}))
            process.after(WAIT_S, end)

        def end_wait() -> None:
            nonlocal over
            over = True
            for end in ends:
                wire.send(here, self._node_id, partial(_call, end))

        wire.sent += 1
        wire.send(here, self._node_id, serve)
        self._process.after(CALL_S, lambda: answer(Unavailable(f"{self._node_id} does not answer")))
        return end_wait


def _call(action: Callable[[], None], _process: Process) -> None:
    action()


def _worker_loop(process: Process, worker: type[BuildWorker]) -> type[BuildWorkerLoop]:
    """Of a worker whose steps are looked at."""
    checks, heard = process.world.build_checks, 0

    def step(self: Any, event: BuildWorkerEvent) -> list[BuildWorkerEffect]:
        nonlocal heard
        effects = worker.step(self, event)
        checks.check_worker(self, heard, event, effects)
        if isinstance(event, WorkRequested):
            heard = max(heard, event.owner_rev)
        process.world.stepped(f"{process.node_id}/builds", event, effects)
        return effects

    watched = type("Watched", (worker,), {"step": step})
    return type("WorkerLoop", (BuildWorkerLoop,), {"_worker_of": watched})


def _builder_loop(process: Process, builder: type[Builder]) -> type[BuilderLoop]:
    """Of a builder whose steps are recorded."""

    def step(self: Any, event: BuilderEvent, now_s: float) -> list[BuilderEffect]:
        effects: list[BuilderEffect] = builder.step(self, event, now_s)
        if effects or not isinstance(event, BuildTick):
            process.world.stepped(f"{process.node_id}/builder", event, effects)
        return effects

    watched = type("Watched", (builder,), {"step": step})
    return type("Loop", (BuilderLoop,), {"_builder_of": watched})


def _broken(error: Exception) -> None:
    raise ViolationError(f"a loop of builds broke: {type(error).__name__}: {error}") from error
