"""A whole node over fakes: ready only when it can serve, and when it stops nothing that was done is forgotten.

A node's lease: it lapses, and is regained under the same registration or under a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest

from iscp.cluster.jobs.job_changes import Register
from iscp.cluster.node import LAPSED_POLL_S, READY_WAIT_S, LeaseKeeper, Node, NodeParts
from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.owner_events import JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import CLAIM_RETRY_S, OwnerLoop
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_loop import WorkerLoop
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.job.job_row import JobRow, Registration
from iscp.model.protocol.events import CoordinationTimes, ShardOrder
from iscp.model.settings.config import BackoffConfig, JobLogConfig, MaintenanceConfig, ProbeConfig, SchedulerConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ConfigurationError, JobLogDamaged, LeaseLost, NotOwner, StorageError, Unavailable
from iscp.model.values.ids import JobKey, Moment, NodeRecord
from iscp.ports.cluster import ClusterPorts
from iscp.ports.system import Guard
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance, MaintenanceOrder
from iscp.schedule.schedule_events import WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import Scheduler
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.etcd import (
    FakeCheckpoints,
    FakeElection,
    FakeEtcd,
    FakeLease,
    FakeLogMarks,
    FakeMembership,
    FakeOverrides,
)
from tests.fakes.joblog import LogStorage
from tests.fakes.owner import FlakyLog
from tests.fakes.pipeline import FakeKind
from tests.fakes.probe import FakeProbe
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.targets import FakeTargets
from tests.fakes.waiting import until

URI = "/tables/t-1"
TIMES = CoordinationTimes(settle_s=0.01, resend_s=0.1)


class Server:
    """Remembers what the rest of the node had come to when it was started and stopped."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[str] = []

    def start(self) -> None:
        owned = "owned" if self._world.storage.term else "no owner"
        self.events.append(f"started, {owned}, {len(self._world.etcd.members())} members")

    def ready(self) -> None:
        owned = "owned" if self._world.storage.term else "no owner"
        self.events.append(f"ready, {owned}")

    def stop(self, grace_s: float = 0.0) -> None:
        self.events.append(f"stopped, {len(self._world.etcd.members())} members")


class World:
    """One node, put together as `bootstrap.compose` does; its iterations wait for `gate` if it is set up."""

    def __init__(self, storage: LogStorage | None = None) -> None:
        self.threads_before = set(threading.enumerate())
        clock = SystemClock()
        self.storage = storage or LogStorage()
        self.etcd, self.probe, self.moved = FakeEtcd(clock), FakeProbe(), ProgressSignal()
        self.claim_faults: list[Exception] = []
        self.broken: list[Exception] = []
        self.disconnected = False
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()
        self.runner = FakeRunner(self._iterate)
        membership, election = FakeMembership(self.etcd), FakeElection(self.etcd)
        broken = self.broken.append
        cluster = ClusterPorts(
            membership, election, FakeOverrides(self.etcd), FakeCheckpoints(self.etcd), FakeLogMarks(self.etcd)
        )
        self.owner = owner = OwnerLoop(
            OwnerMachine("n-1", "v", TIMES),
            JobLogAccess(lambda: FlakyLog(self.storage, self.claim_faults), JobLogConfig(uri="")),
            cluster,
            clock,
            OwnerHooks(lambda to, message: worker.receive([message]), lambda members: None, self.moved.notify, broken),
        )
        worker = WorkerLoop(
            lambda epoch: WorkerMachine("n-1", epoch, "v", TIMES),
            election,
            clock,
            lambda owner_id, message: owner.receive("n-1", [message]),
            broken,
        )
        self.record = NodeRecord("n-1", 0, "here:1")
        keeper = LeaseKeeper(membership, self.record, clock, worker.on_lease_lost, worker.on_lease_regained, broken)
        schedule = Schedule("n-1", ProbeConfig(interval_min_s=0.02, interval_max_s=0.05), BackoffConfig(), lambda: 0.5)
        scheduler = Scheduler(schedule, self.probe, FakeTargets(), clock, broken)
        scheduler.reports.subscribe(worker.report, *get_args(WorkerNews))
        worker.orders.subscribe(scheduler.post, *get_args(ShardOrder))
        executor = Executor(
            self.runner, clock, SchedulerConfig(concurrency=2), keeper.check, scheduler.post, lambda iteration: None
        )
        maintenance = Maintenance(
            lambda name: FakeKind(),
            clock,
            MaintenanceConfig(),
            BackoffConfig(),
            lambda: 0.5,
            lambda: keeper.check(keeper.epoch),
            broken,
        )
        worker.orders.subscribe(maintenance.give, *get_args(MaintenanceOrder))
        self.server = Server(self)
        parts = NodeParts(self.server, keeper, owner, worker, scheduler, executor, maintenance, self.moved, [self])
        self.node = Node("n-1", membership, election, parts)

    def _iterate(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        self.began.set()
        assert self.gate.wait(20)
        guard.check()
        return applied(iteration, self.probe.versions[iteration.table_uri])

    def close(self) -> None:
        self.disconnected = True

    def register(self, name: str = "x") -> JobRow:
        self.probe.versions.setdefault(URI, 0)
        key = JobKey("a", "t-1", name)
        spec = JobSpec(ConsumerSpec("replica", f"/targets/{name}"))
        row = JobRow(key, f"id-{name}", spec.to_json(), "t", URI)
        self.owner.current_writer().submit(Register((Registration(row),))).result(10)
        return row

    def logged(self, row: JobRow) -> JobRow:
        return [each for each, _ in self.storage.entries if each.job_id == row.job_id][-1]

    def applied(self, row: JobRow) -> int:
        found = self.owner.current_writer().read(lambda book: book.get(row.key))
        assert found is not None
        return found.watermark.version


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.gate.set()
    assert made.broken == []


def test_users_are_served_once_an_owner_has_claimed_the_log(world: World) -> None:
    world.claim_faults.append(StorageError("disk full"))
    began_s = time.monotonic()
    world.node.start()
    assert time.monotonic() - began_s >= CLAIM_RETRY_S
    assert world.server.events == ["started, no owner, 0 members", "ready, owned"]
    world.node.stop(0.0)


def test_a_start_that_is_not_wanted_any_more_ends_at_once(world: World) -> None:
    """SIGTERM while no owner can be found: nobody waits for the time that a start may take."""
    world.claim_faults += [StorageError("disk full")] * 100
    stopping = threading.Event()
    stopping.set()
    began_s = time.monotonic()
    world.node.start(stopping)
    world.node.stop(1.0)
    assert time.monotonic() - began_s < READY_WAIT_S / 2
    assert not any(event.startswith("ready") for event in world.server.events)


def test_a_node_that_cannot_own_a_damaged_log_ends_and_says_which_file(world: World) -> None:
    damaged = JobLogDamaged("/log/5.json is not a whole commit", remedy="Restore it")
    world.claim_faults += [damaged] * 100
    with pytest.raises(JobLogDamaged, match=r"5\.json"):
        world.node.start()
    with pytest.raises(NotOwner, match=r"no owner has claimed the job log yet: .*5\.json is not"):
        world.owner.current_writer()
    world.node.stop(0.0)


def test_a_taken_name_is_refused_before_anybody_is_served(world: World) -> None:
    world.etcd.nodes["n-1"] = replace(world.record, lease_id=99)
    with pytest.raises(ConfigurationError):
        world.node.start()
    assert world.storage.term == 0
    assert [event.split(",")[0] for event in world.server.events] == ["started", "stopped"]


def test_a_registered_job_is_run_and_follows_its_source(world: World) -> None:
    world.node.start()
    row = world.register()
    until(lambda: world.applied(row) == 0)
    world.probe.commit(URI, 3)
    until(lambda: world.applied(row) == 3)
    until(lambda: world.etcd.nodes["n-1"].epoch == 1)
    world.node.stop(0.0)


def test_what_still_runs_at_the_stop_ends_is_reported_and_is_written(world: World) -> None:
    world.node.start()
    world.gate.clear()
    row = world.register()
    assert world.began.wait(10)
    stopping = threading.Thread(target=world.node.stop, args=(10.0,))
    stopping.start()
    until(lambda: world.moved.closed)
    world.gate.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert "stopped" in world.server.events[-1], "the owner is notified through it until the end"
    assert world.logged(row).watermark.version == 0
    assert [(entry.job_name, entry.to_version) for entry in world.storage.history] == [("x", 0)]


def test_a_stop_leaves_nothing_behind(world: World) -> None:
    world.node.start()
    row = world.register()
    until(lambda: world.applied(row) == 0)
    waits = world.moved.count()
    world.node.stop(0.0)
    assert world.etcd.members() == ()
    assert world.etcd.candidates == []
    assert world.etcd.watchers == []
    assert world.disconnected
    assert world.moved.closed
    assert world.moved.count() > waits
    assert world.server.events[-1] == "stopped, 1 members"  # users are sent away while it is still a member
    assert world.logged(row).watermark.version == 0
    until(lambda: set(threading.enumerate()) <= world.threads_before)


def test_a_node_that_is_started_again_goes_on_where_the_log_is() -> None:
    first = World()
    first.node.start()
    row = first.register()
    until(lambda: first.applied(row) == 0)
    first.node.stop(0.0)
    second = World(first.storage)
    second.probe.versions[URI] = 5
    second.node.start()
    until(lambda: second.applied(row) == 5)
    second.node.stop(0.0)
    assert first.storage.term == 2
    assert first.broken + second.broken == []


WAIT_S = 10.0


class Membership(FakeMembership):
    """`faults` are raised by the next registrations."""

    def __init__(self, etcd: FakeEtcd) -> None:
        super().__init__(etcd)
        self.faults: list[Exception] = []

    def register(self, record: NodeRecord, on_lapsed: Callable[[], None] | None = None) -> FakeLease:
        if self.faults:
            raise self.faults.pop(0)
        return super().register(record, on_lapsed)


@dataclass
class Kept:
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[object] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.etcd = FakeEtcd(self.clock)
        self.membership = Membership(self.etcd)
        self.keeper = LeaseKeeper(
            self.membership,
            NodeRecord("n-1", 0, "here:1", pid=7),
            self.clock,
            lambda: self.told.append("lost"),
            self.told.append,
            self.broken.append,
        )

    @property
    def lease(self) -> FakeLease:
        (lease,) = self.etcd.leases.values()
        return lease

    def lapse(self) -> None:
        """etcd answers no more, for longer than the lease can be confirmed."""
        self.etcd.answers = False
        self.clock.advance(self.etcd.ttl_s)
        assert self.lease.on_lapsed is not None
        self.lease.on_lapsed()

    def until_told(self, *told: object) -> None:
        end_s = time.monotonic() + WAIT_S
        while self.told != list(told):
            assert time.monotonic() < end_s, f"told {self.told}"
            time.sleep(0.005)


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.keeper.close()
    assert made.broken == []


def test_it_registers_with_an_epoch_of_its_own(kept: Kept) -> None:
    kept.etcd.epochs["n-1"] = 4
    kept.keeper.start()
    (record,) = kept.etcd.members()
    assert (record.node_id, record.epoch, record.pid, kept.keeper.epoch) == ("n-1", 5, 7, 5)
    assert kept.keeper.record.epoch == 5
    kept.keeper.check(kept.keeper.epoch)


def test_there_is_no_right_to_write_before_the_registration(kept: Kept) -> None:
    with pytest.raises(LeaseLost):
        kept.keeper.check(kept.keeper.epoch)


def test_a_name_that_is_taken_is_refused_at_the_start(kept: Kept) -> None:
    kept.etcd.nodes["n-1"] = NodeRecord("n-1", 1, "there:1", lease_id=99)
    with pytest.raises(ConfigurationError):
        kept.keeper.start()
    assert kept.told == []


def test_the_right_ends_when_the_last_confirmation_is_too_old_whatever_was_reported(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.answers = False
    kept.clock.advance(kept.etcd.ttl_s - kept.etcd.margin_s - 0.001)
    kept.keeper.check(kept.keeper.epoch)
    kept.clock.advance(0.001)
    with pytest.raises(LeaseLost, match="etcd"):
        kept.keeper.check(kept.keeper.epoch)
    assert kept.told == []


def test_a_lapse_is_reported_at_once_and_the_end_of_it_when_etcd_answers_again_under_the_same_epoch(kept: Kept) -> None:
    kept.keeper.start()
    lease = kept.lease
    kept.lapse()
    assert kept.told == ["lost"]
    time.sleep(2 * LAPSED_POLL_S)
    assert kept.told == ["lost"]
    kept.etcd.answers = True
    kept.until_told("lost", 1)
    kept.keeper.check(kept.keeper.epoch)
    assert kept.lease is lease
    assert kept.etcd.epochs["n-1"] == 1


def test_it_lapses_and_comes_back_as_often_as_it_has_to(kept: Kept) -> None:
    kept.keeper.start()
    for turn in range(1, 3):
        kept.lapse()
        kept.etcd.answers = True
        kept.until_told(*["lost", 1] * turn)


def test_a_lease_that_is_gone_is_replaced_under_a_new_epoch(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.expire(kept.lease.lease_id)
    assert kept.told == ["lost"]
    with pytest.raises(LeaseLost):
        kept.keeper.check(kept.keeper.epoch)
    kept.until_told("lost", 2)
    assert [record.epoch for record in kept.etcd.members()] == [2]
    assert kept.keeper.epoch == 2
    kept.keeper.check(kept.keeper.epoch)


def test_what_was_begun_under_a_former_epoch_may_not_write_under_the_next(kept: Kept) -> None:
    kept.keeper.start()
    kept.keeper.check(1)
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 2)
    kept.keeper.check(2)
    with pytest.raises(LeaseLost):
        kept.keeper.check(1)


def test_the_next_epoch_is_greater_also_where_etcd_has_forgotten_the_last_one(kept: Kept) -> None:
    """It was restored from a backup that is older."""
    kept.keeper.start()
    kept.etcd.epochs.clear()
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 2)


def test_a_new_registration_is_tried_until_it_succeeds(kept: Kept) -> None:
    """Also while the key of the former life seems to be a live node's."""
    kept.keeper.start()
    kept.membership.faults = [Unavailable("no answer"), ConfigurationError("taken")]
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 4)
    assert kept.membership.faults == []
    assert [record.epoch for record in kept.etcd.members()] == [4]


def test_a_fault_that_nobody_foresaw_is_reported(kept: Kept) -> None:
    kept.keeper.start()
    kept.membership.faults = [ZeroDivisionError()]
    kept.etcd.expire(kept.lease.lease_id)
    end_s = time.monotonic() + WAIT_S
    while not kept.broken:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert kept.told == ["lost"]
    kept.broken.clear()


def test_closing_leaves_the_cluster_and_is_no_lapse(kept: Kept) -> None:
    kept.keeper.start()
    kept.keeper.close()
    assert kept.etcd.members() == ()
    assert kept.told == []


def test_closing_while_lapsed_does_not_wait_for_etcd(kept: Kept) -> None:
    kept.keeper.start()
    kept.lapse()
    began_s = time.monotonic()
    kept.keeper.close()
    assert time.monotonic() - began_s < WAIT_S / 2
    assert kept.told == ["lost"]


def test_a_node_whose_key_is_gone_stops_and_joins_again_though_its_lease_goes_on(kept: Kept) -> None:
    """Somebody has deleted it: others are given what it runs. Or etcd's backup was made before it, and after the lease:
    then the first that is read of the members shows it."""
    kept.keeper.start()
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 1))
    kept.until_told("lost", 2)
    kept.keeper.on_members_changed((), Moment(0, 2))
    kept.keeper.check(kept.keeper.epoch)  # as of before it was registered again: an old snapshot
    kept.keeper.on_members_changed(kept.etcd.members(), Moment(0, 3))
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 4))
    with pytest.raises(LeaseLost):
        kept.keeper.check(2)
    kept.until_told("lost", 2, "lost", 3)
    kept.keeper.check(kept.keeper.epoch)
    assert [record.epoch for record in kept.etcd.members()] == [3]


def test_a_node_that_a_restored_store_does_not_have_joins_again_though_it_has_not_seen_itself(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 1))
    kept.until_told("lost", 2)
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(1, 1))
    kept.until_told("lost", 2, "lost", 3)
    kept.keeper.on_members_changed(kept.etcd.members(), Moment(2, 1))
    kept.keeper.check(kept.keeper.epoch)
    assert [record.epoch for record in kept.etcd.members()] == [3]
