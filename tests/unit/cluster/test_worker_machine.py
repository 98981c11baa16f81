"""The node's machine, rule by rule."""

from __future__ import annotations

import pytest

from iscp.cluster.invariants import check_worker
from iscp.cluster.worker_machine import FENCES_MAX, WorkerMachine
from iscp.model.protocol.events import (
    CheckElection,
    ElectionChecked,
    FromOwner,
    HoldIterations,
    LeaseEnded,
    LeaseRegained,
    Reports,
    SendToOwner,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
    WorkerEffect,
    WorkerEvent,
)
from iscp.model.protocol.messages import (
    SYNC_SHARDS_MAX,
    Acknowledge,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeShard,
    NodeShardState,
    Sync,
)
from iscp.model.values.ids import Leader, ShardId, TableEpoch
from iscp.schedule.reports import HISTORY_MAX
from tests.fakes.loopback import TIMES, entry, job, report

A = ShardId("a")
ROW = job("a")


class Driver:
    """A worker with a clock; checks its invariants after every step."""

    def __init__(self) -> None:
        self.worker = WorkerMachine("n1", 3, "1", TIMES)
        self.now_s = 10.0
        self.sync_number = 0

    def step(self, event: WorkerEvent, later_s: float = 0.0) -> list[WorkerEffect]:
        self.now_s += later_s
        effects = self.worker.step(event, self.now_s)
        check_worker(self.worker)
        for effect in effects:
            if isinstance(effect, SendToOwner) and isinstance(effect.message, Sync):
                self.sync_number = effect.message.number
        return effects

    def obey(self, owner_rev: int = 1, owner_id: str = "o") -> None:
        self.step(FromOwner(Announce(owner_id, owner_rev, 100 + owner_rev, "1")))
        self.step(ElectionChecked(Leader(owner_id, 100 + owner_rev)))
        self.acknowledge(owner_rev)

    def acknowledge(self, owner_rev: int = 1, recorded: int = 0) -> list[WorkerEffect]:
        return self.step(FromOwner(Acknowledge(owner_rev, self.worker.epoch, self.sync_number, recorded)))

    def dispatch(
        self, counter: int, *, delete: bool = False, shard: ShardId = A, owner_rev: int = 1
    ) -> list[WorkerEffect]:
        table_epoch = TableEpoch(owner_rev, counter)
        message = DispatchTable(owner_rev, self.worker.epoch, table_epoch, shard, delete, () if delete else (ROW,))
        return self.step(FromOwner(message))

    def run_a(self) -> None:
        self.obey()
        self.dispatch(5)
        self.step(ShardStarted(A))


def said(effects: list[WorkerEffect]) -> list[tuple[int, NodeShardState]]:
    return [
        (effect.message.table_epoch.counter, effect.message.state)
        for effect in effects
        if isinstance(effect, SendToOwner) and isinstance(effect.message, DispatchTableResponse)
    ]


def kinds(effects: list[WorkerEffect]) -> list[type]:
    return [type(e.message) if isinstance(e, SendToOwner) else type(e) for e in effects]


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_an_owner_is_obeyed_only_after_the_election_key_confirms_it(driver: Driver) -> None:
    assert kinds(driver.step(FromOwner(Announce("o", 1, 101, "1")))) == [CheckElection]
    assert driver.dispatch(5) == []
    assert driver.step(ElectionChecked(Leader("other", 101))) == []
    assert driver.dispatch(5) == []
    driver.step(FromOwner(Announce("o", 1, 101, "1")))
    assert driver.step(ElectionChecked(None)) == []
    driver.step(FromOwner(Announce("o", 1, 101, "1")))
    assert driver.step(ElectionChecked(Leader("o", 99))) == [], "an earlier term of the same node"
    driver.step(FromOwner(Announce("o", 1, 101, "1")))
    assert kinds(driver.step(ElectionChecked(Leader("o", 101)))) == [Sync]


def test_a_lower_term_is_refused_once_a_higher_was_obeyed(driver: Driver) -> None:
    driver.obey(owner_rev=2)
    assert driver.step(FromOwner(Announce("old", 1, 101, "1"))) == []
    assert driver.dispatch(5, owner_rev=1) == []


def test_a_message_for_another_epoch_changes_nothing(driver: Driver) -> None:
    driver.obey()
    assert driver.step(FromOwner(DispatchTable(1, 2, TableEpoch(1, 5), A, False, (ROW,)))) == []


def test_a_sync_is_repeated_until_it_is_acknowledged(driver: Driver) -> None:
    driver.step(FromOwner(Announce("o", 1, 101, "1")))
    driver.step(ElectionChecked(Leader("o", 101)))
    assert driver.step(Tick(), 1.8 * TIMES.resend_s) == [], "the owner would ask again before"
    assert kinds(driver.step(Tick(), 0.4 * TIMES.resend_s)) == [Sync]
    driver.acknowledge()
    assert driver.worker.synced
    assert driver.worker.next_due_s() is None
    assert driver.step(Tick(), 5) == []


def test_a_sync_reports_all_in_bounded_parts(driver: Driver) -> None:
    driver.obey()
    for n in range(SYNC_SHARDS_MAX + 1):
        driver.worker.step(
            FromOwner(DispatchTable(1, 3, TableEpoch(1, n + 1), ShardId(f"t{n}"), False, (ROW,))), driver.now_s
        )
    driver.step(FromOwner(Announce("o", 2, 102, "1")))
    effects = driver.step(ElectionChecked(Leader("o", 102)))
    parts = [e.message for e in effects if isinstance(e, SendToOwner) and isinstance(e.message, Sync)]
    assert [(part.part, part.parts, len(part.shards)) for part in parts] == [(0, 2, SYNC_SHARDS_MAX), (1, 2, 1)]
    assert parts[0].shards[0] == NodeShard(ShardId("t0"), TableEpoch(1, 1), NodeShardState.ADDING)


def test_a_dispatch_starts_once_and_is_answered_each_time(driver: Driver) -> None:
    driver.obey()
    assert kinds(driver.dispatch(5)) == [StartShard, DispatchTableResponse]
    assert said(driver.dispatch(5)) == [(5, NodeShardState.ADDING)]
    assert said(driver.step(ShardStarted(A))) == [(5, NodeShardState.RUNNING)]
    again = driver.dispatch(5)
    assert kinds(again) == [DispatchTableResponse]
    assert said(again) == [(5, NodeShardState.RUNNING)]


def test_a_newer_dispatch_updates_what_runs_and_an_older_changes_nothing(driver: Driver) -> None:
    driver.run_a()
    assert driver.dispatch(7)[0] == UpdateShard(A, TableEpoch(1, 7), (ROW,))
    assert driver.dispatch(6) == []
    assert driver.dispatch(6, delete=True) == []


def test_a_removal_is_said_only_when_the_work_has_stopped_and_all_is_recorded(driver: Driver) -> None:
    driver.run_a()
    assert kinds(driver.dispatch(6, delete=True)) == [StopShard, DispatchTableResponse]
    assert said(driver.dispatch(6, delete=True)) == [(6, NodeShardState.REMOVING)]
    assert kinds(driver.step(Reports(A, (report(ROW, 1),), (entry(ROW, 1),)))) == [Checkpoint]
    assert said(driver.step(ShardStopped(A))) == []
    assert said(driver.acknowledge(recorded=1)) == [(6, NodeShardState.ABSENT)]
    assert driver.worker.shards == {}
    assert said(driver.dispatch(6, delete=True)) == [(6, NodeShardState.ABSENT)]


def test_a_dispatch_from_before_a_removal_starts_nothing(driver: Driver) -> None:
    driver.run_a()
    driver.dispatch(8, delete=True)
    driver.step(ShardStopped(A))
    late = driver.dispatch(7)
    assert said(late) == [(7, NodeShardState.ABSENT)]
    assert StartShard not in kinds(late)
    assert StartShard in kinds(driver.dispatch(9))


def test_what_is_remembered_of_removals_is_bounded_and_still_holds(driver: Driver) -> None:
    driver.obey()
    for counter in range(1, FENCES_MAX + 3):
        message = DispatchTable(1, 3, TableEpoch(1, counter), ShardId(f"t{counter}"), True)
        driver.worker.step(FromOwner(message), driver.now_s)
    assert len(driver.worker.fences) == FENCES_MAX
    assert StartShard not in kinds(driver.dispatch(1, shard=ShardId("t1")))
    assert StartShard in kinds(driver.dispatch(FENCES_MAX + 10, shard=ShardId("t1")))


def test_what_is_still_stopping_is_not_started(driver: Driver) -> None:
    driver.run_a()
    driver.dispatch(6, delete=True)
    assert said(driver.dispatch(7)) == [(7, NodeShardState.REMOVING)]
    driver.step(ShardStopped(A))
    assert kinds(driver.dispatch(7)) == [StartShard, DispatchTableResponse]


def test_a_shard_that_ends_by_itself_is_reported_by_a_new_sync(driver: Driver) -> None:
    driver.run_a()
    effects = driver.step(ShardStopped(A))
    assert Sync in kinds(effects)
    assert not driver.worker.synced


def test_without_a_lease_all_stops_and_nothing_starts(driver: Driver) -> None:
    driver.run_a()
    assert kinds(driver.step(LeaseEnded())) == [StopAllShards]
    assert driver.dispatch(6) == []
    assert driver.dispatch(6, shard=ShardId("b")) == []
    driver.step(ShardStopped(A))
    (sync,) = driver.step(LeaseRegained(3))
    assert isinstance(sync, SendToOwner)
    assert isinstance(sync.message, Sync)
    assert sync.message.shards == ()


def test_a_new_epoch_stops_what_the_old_one_ran(driver: Driver) -> None:
    driver.run_a()
    effects = driver.step(LeaseRegained(4))
    assert kinds(effects) == [StopAllShards, Sync]
    assert driver.worker.epoch == 4
    assert driver.worker.shards[A].state is NodeShardState.REMOVING


def test_reports_are_gathered_and_repeated_until_recorded(driver: Driver) -> None:
    driver.run_a()
    first = driver.step(Reports(A, (report(ROW, 1),), (entry(ROW, 1),)))
    assert kinds(first) == [Checkpoint]
    assert driver.step(Reports(A, (), (entry(ROW, 2),))) == [], "within checkpoint_s it waits"
    assert driver.worker.next_due_s() == driver.now_s + TIMES.checkpoint_s
    assert kinds(driver.step(Tick(), TIMES.checkpoint_s)) == [Checkpoint]
    assert kinds(driver.step(Tick(), TIMES.resend_s)) == [Checkpoint, Checkpoint]
    driver.acknowledge(recorded=1)
    assert kinds(driver.step(Tick(), TIMES.resend_s)) == [Checkpoint]
    driver.acknowledge(recorded=2)
    assert driver.step(Tick(), TIMES.resend_s) == []
    assert driver.worker.next_due_s() is None


def test_checkpoints_are_repeated_ever_more_rarely_while_none_is_recorded(driver: Driver) -> None:
    driver.run_a()
    driver.step(Reports(A, (), (entry(ROW, 1),)))
    assert repetitions(driver, 5) == [1.0, 2.0, 4.0, 4.0, 4.0]
    driver.step(Reports(A, (), (entry(ROW, 2),)))
    assert repetitions(driver, 1) == [4.0], "what comes on top changes nothing"
    driver.acknowledge(recorded=1)
    assert repetitions(driver, 3) == [1.0, 2.0, 4.0], "the owner takes them in again"
    driver.acknowledge(recorded=1)
    assert repetitions(driver, 1) == [4.0], "and this says nothing new"


def test_a_new_owner_is_sent_at_once_what_is_not_recorded_and_then_ever_more_rarely(driver: Driver) -> None:
    driver.run_a()
    driver.step(Reports(A, (), (entry(ROW, 1),)))
    repetitions(driver, 4)
    driver.step(FromOwner(Announce("p", 2, 102, "1")))
    driver.step(ElectionChecked(Leader("p", 102)))
    assert kinds(driver.acknowledge(owner_rev=2)) == [Checkpoint]
    assert repetitions(driver, 3) == [1.0, 2.0, 4.0]


def repetitions(driver: Driver, count: int) -> list[float]:
    """How long the node waits before each of its next repetitions, in seconds (of a `resend_s` of 1)."""
    waits: list[float] = []
    last_s = driver.now_s
    while len(waits) < count:
        due_s = driver.worker.next_due_s()
        assert due_s is not None
        if Checkpoint in kinds(driver.step(Tick(), due_s - driver.now_s)):
            waits.append(round(driver.now_s - last_s, 6))
            last_s = driver.now_s
    return waits


def test_what_the_old_owner_did_not_record_is_sent_to_the_new_one(driver: Driver) -> None:
    driver.run_a()
    (old,) = driver.step(Reports(A, (), (entry(ROW, 1),)))
    driver.step(FromOwner(Announce("p", 2, 102, "1")))
    driver.step(ElectionChecked(Leader("p", 102)))
    (new,) = driver.acknowledge(owner_rev=2)
    assert isinstance(old, SendToOwner)
    assert isinstance(new, SendToOwner)
    assert isinstance(old.message, Checkpoint)
    assert isinstance(new.message, Checkpoint)
    assert (new.owner_id, new.message.owner_rev) == ("p", 2)
    assert (new.message.number, new.message.shards) == (old.message.number, old.message.shards)


def test_iterations_are_held_while_too_much_history_waits(driver: Driver) -> None:
    driver.obey()
    entries = tuple(entry(ROW, seq) for seq in range(HISTORY_MAX + 1))
    assert HoldIterations(True) in driver.step(Reports(A, (), entries))
    effects: list[WorkerEffect] = []
    for _ in range(100):
        recorded = driver.worker.outbox.recorded + len(driver.worker.outbox.chunks)
        effects += driver.acknowledge(recorded=recorded)
        effects += driver.step(Tick(), TIMES.checkpoint_s)
    assert HoldIterations(False) in effects
    assert driver.worker.outbox.history_waiting == 0
