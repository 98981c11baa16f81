"""Refreshes and purges of the kinds that offer them: real threads, on a clock that goes when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from iscp.adapters.clock import SystemClock
from iscp.coordination.effects import HoldIterations, StartShard, StopAllShards, StopShard, UpdateShard
from iscp.core.config import BackoffConfig
from iscp.core.errors import ErrorCode, InvalidRequest, LeaseLost
from iscp.core.ids import JobKey, ShardId, TableEpoch
from iscp.core.job import JobRow, Reason
from iscp.core.spec import ConsumerSpec, JobSpec
from iscp.runtime.upkeep import PURGE_INTERVAL_S, REFRESH_INTERVAL_S, Order, Upkeep
from tests.fakes.clock import FakeClock
from tests.fakes.pipeline import FakeKind

WAIT_S = 10.0
SHARD, EPOCH = ShardId("t-1"), TableEpoch(1, 1)
BACKOFF = BackoffConfig(base_s=5.0, cap_s=5.0)


class Kind(FakeKind):
    """Offers both; `calls` are what was asked of it. `next_s`: after how long it wants to come again, by what."""

    def __init__(self, clock: FakeClock | SystemClock) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.next_s: dict[str, object] = {}
        self.faults: dict[str, BaseException] = {}
        self.gates: dict[str, threading.Event] = {}
        self._clock = clock

    def _answer(self, asked: str) -> float:
        self.calls.append(asked)
        assert self.gates.setdefault(asked, _open()).wait(WAIT_S)
        if asked in self.faults:
            raise self.faults[asked]
        wait_s = self.next_s.get(asked, 100.0)
        return self._clock.now_s() + wait_s if isinstance(wait_s, float) else wait_s  # type: ignore[return-value]

    def refresh(self, job: JobRow) -> tuple[list[str], float]:
        return [job.key.table_id], self._answer(job.key.job_name)

    def purge(self, table_id: str) -> float:
        return self._answer(f"purge {table_id}")


def _open() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


class Bench:
    def __init__(self, clock: FakeClock | SystemClock) -> None:
        self.clock, self.kind, self.lease = clock, Kind(clock), list[Exception]()
        self.passed_on: list[Order] = []
        self.broken: list[Exception] = []
        self.upkeep = Upkeep(
            self._kinds, clock, BACKOFF, lambda: 0.0, self._check, self.passed_on.append, self.broken.append
        )

    def _kinds(self, name: str) -> FakeKind:
        if name == "gone":
            raise InvalidRequest("is not allowed", code=ErrorCode.CONSUMER_NOT_ALLOWED)
        return self.kind if name == "keeps" else FakeKind()

    def _check(self) -> None:
        if self.lease:
            raise self.lease[0]

    def order(self, order: Order) -> None:
        self.upkeep.give(order)
        self.upkeep.turn()

    def after(self, seconds: float) -> None:
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(seconds)
        self.upkeep.turn()

    def settled(self, *calls: str, hanging: int = 0) -> None:
        """These calls, in any order, are all that there were, and have ended, but for as many as hang."""
        self.until(lambda: sorted(self.kind.calls) == sorted(calls) and self.at_work() == hanging)
        self.kind.calls.clear()

    def at_work(self) -> int:
        heaps = (self.upkeep._refreshes, self.upkeep._purges)
        with self.upkeep._lock:
            return sum(item.due_s is None for heap in heaps for item in heap._items.values())  # type: ignore[attr-defined]

    def until(self, there: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not there():
            assert time.monotonic() < until_s, self.kind.calls
            time.sleep(0.005)


def job(name: str, kind: str = "keeps") -> JobRow:
    spec = JobSpec(ConsumerSpec(kind, f"/{name}"))
    return JobRow(JobKey("a", "t-1", name), f"id-{name}", spec.to_json(), "t", "/t-1")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(FakeClock())
    yield bench
    bench.upkeep.close(WAIT_S)
    assert bench.broken == []


def test_jobs_of_the_shard_are_refreshed_and_their_table_purged_each_at_its_time(bench: Bench) -> None:
    bench.kind.next_s = {"x": 100.0, "y": 300.0, "purge t-1": 1_000.0}
    bench.kind.gates["purge t-1"] = gate = threading.Event()  # so that the first refreshes do not hasten it
    bench.order(StartShard(SHARD, EPOCH, (job("x"), job("y"))))
    bench.settled("x", "y", "purge t-1", hanging=1)
    gate.set()
    bench.settled()
    bench.after(99.9)
    bench.settled()
    bench.after(0.1)
    bench.settled("x")
    bench.after(0.0)
    bench.settled("purge t-1")  # sooner than it wanted, for the table was read
    bench.after(100.0)
    bench.settled("x")


def test_only_kinds_that_offer_it_are_asked_and_none_that_is_gone_paused_or_failed(bench: Bench) -> None:
    rows = (job("plain", "replica"), job("gone", "gone"), job("paused")._replace(reason=Reason.PAUSED))
    bench.order(StartShard(SHARD, EPOCH, rows))
    bench.settled()


def test_every_order_is_passed_on_in_order(bench: Bench) -> None:
    orders: list[Order] = [
        StartShard(SHARD, EPOCH, ()),
        HoldIterations(True),
        UpdateShard(SHARD, EPOCH, ()),
        StopShard(SHARD),
        StopAllShards(),
    ]
    for order in orders:
        bench.order(order)
    assert bench.passed_on == orders


@pytest.mark.parametrize("stop", [StopShard(SHARD), StopAllShards(), UpdateShard(SHARD, EPOCH, ())])
def test_what_is_no_longer_this_nodes_is_left_alone(bench: Bench, stop: Order) -> None:
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.order(stop)
    bench.after(1_000.0)
    bench.settled()


@pytest.mark.parametrize("answer", [None, -5.0, "soon"])
def test_a_next_time_that_is_none_is_told_and_waited_after(
    bench: Bench, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kind.next_s = {"x": answer}
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.until(lambda: any(record.message == "refresh.failed" for record in caplog.records))
    (told,) = [record for record in caplog.records if record.message == "refresh.failed"]
    assert "next time" in told.__dict__["error"]
    bench.after(4.9)
    bench.settled()
    bench.after(0.1)
    bench.settled("x")


@pytest.mark.parametrize("fault", [OSError("full"), SystemExit("gone")])
def test_a_fault_is_tried_again_later_and_holds_up_nothing_else(bench: Bench, fault: BaseException) -> None:
    bench.kind.faults = {"x": fault, "purge t-1": fault}
    bench.kind.next_s = {"y": REFRESH_INTERVAL_S}
    bench.order(StartShard(SHARD, EPOCH, (job("x"), job("y"))))
    bench.settled("x", "y", "purge t-1")
    bench.after(REFRESH_INTERVAL_S)
    bench.settled("y")
    bench.kind.faults.clear()
    bench.after(PURGE_INTERVAL_S)
    bench.settled("x", "y", "purge t-1")


def test_one_that_hangs_holds_up_neither_the_others_nor_the_purges_and_is_not_begun_twice(bench: Bench) -> None:
    bench.kind.gates["x"] = gate = threading.Event()
    bench.kind.next_s = {"y": REFRESH_INTERVAL_S}
    bench.order(StartShard(SHARD, EPOCH, (job("x"), job("y"))))
    bench.settled("x", "y", "purge t-1", hanging=1)
    for _ in range(3):
        bench.after(REFRESH_INTERVAL_S)
        bench.settled("y", hanging=1)
    gate.set()


def test_nothing_is_done_while_the_lease_cannot_be_confirmed(bench: Bench) -> None:
    bench.lease.append(LeaseLost("etcd is gone"))
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled()
    bench.lease.clear()
    bench.after(PURGE_INTERVAL_S)
    bench.settled("x", "purge t-1")


def test_the_loop_wakes_for_orders_and_for_what_is_due_by_itself() -> None:
    bench = Bench(SystemClock())
    bench.kind.next_s = {"x": 0.01}
    bench.upkeep.start()
    bench.upkeep.give(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.until(lambda: bench.kind.calls.count("x") >= 2)
    assert bench.kind.calls.count("purge t-1") == 1  # hastened, and still not within its interval
    bench.upkeep.close(WAIT_S)
    assert bench.broken == []
