"""Refreshes and purges of the kinds that offer them: real threads, on a clock that only the test moves."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.model.job.iteration import NO_MAINTENANCE, MaintenanceFigures
from iscp.model.job.job_row import JobRow, Reason
from iscp.model.protocol.events import StartShard, StopAllShards, StopShard, UpdateShard
from iscp.model.settings.config import BackoffConfig, MaintenanceConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest, LeaseLost, PermanentError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.schedule.maintenance import PURGE_INTERVAL_S, REFRESH_INTERVAL_S, Maintenance, MaintenanceOrder
from iscp.schedule.maintenance_turns import SLOT_S
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.pipeline import FakeKind
from tests.fakes.poison import ERRORS, POISON
from tests.fakes.tracing import RecordingTracer

WAIT_S = 10.0
SHARD, EPOCH = ShardId("t-1"), TableEpoch(1, 1)
BACKOFF = BackoffConfig(base_s=5.0, cap_s=5.0)
CONFIG = MaintenanceConfig(concurrency=2, timeout_s=60.0)


class Kind(FakeKind):
    """Offers both; `calls` are the calls to it. `next_s`: after how long it wants to come again, by what."""

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
        self.broken: list[Exception] = []
        self.offering = True
        self.tracer = RecordingTracer()
        self.maintenance = Maintenance(
            self._kinds, clock, CONFIG, BACKOFF, lambda: 0.0, self._check, self.broken.append, self.tracer
        )

    def _kinds(self, name: str) -> FakeKind:
        if name == "gone":
            raise InvalidRequest("is not allowed", code=ErrorCode.CONSUMER_NOT_ALLOWED)
        return self.kind if name == "keeps" and self.offering else FakeKind()

    def _check(self) -> None:
        if self.lease:
            raise self.lease[0]

    def order(self, order: MaintenanceOrder) -> None:
        self.maintenance.give(order)
        self.maintenance.turn()

    def after(self, seconds: float) -> None:
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(seconds)
        self.maintenance.turn()

    def settled(self, *calls: str, hanging: int = 0) -> None:
        """These calls, in any order, are all that there were, and have ended, but for as many as hang."""
        self.until(lambda: sorted(self.kind.calls) == sorted(calls) and self.at_work() == hanging)
        self.kind.calls.clear()

    def at_work(self) -> int:
        return self.maintenance.counters()["upkeep_running"]

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
    bench.maintenance.close(WAIT_S)
    bench.until(lambda: not [each for each in threading.enumerate() if each.name in ("iscp-refresh", "iscp-purge")])
    assert bench.broken == []


def test_each_refresh_and_purge_is_a_trace_of_its_own(bench: Bench) -> None:
    bench.kind.next_s = {"x": 100.0, "purge t-1": 100.0}
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.until(lambda: sum(each.ended for each in bench.tracer.spans) == 2)
    found = {each.name: (each.parent, each.attributes) for each in bench.tracer.spans}
    assert found == {
        "iscp.refresh": ("", {"iscp.job.id": "id-x"}),
        "iscp.purge": ("", {"iscp.kind": "keeps", "iscp.table.id": "t-1"}),
    }


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


def test_only_kinds_that_offer_it_are_called_and_none_that_is_gone_paused_or_failed(bench: Bench) -> None:
    rows = (job("plain", "replica"), job("gone", "gone"), job("paused")._replace(reason=Reason.PAUSED))
    bench.order(StartShard(SHARD, EPOCH, rows))
    bench.settled()


@pytest.mark.parametrize("stop", [StopShard(SHARD), StopAllShards(), UpdateShard(SHARD, EPOCH, ())])
def test_what_is_no_longer_this_nodes_is_left_alone(bench: Bench, stop: MaintenanceOrder) -> None:
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.order(stop)
    bench.after(1_000.0)
    bench.settled()


@pytest.mark.parametrize("answer", [None, -5.0, "soon"])
def test_a_next_time_that_is_none_is_reported_and_requested_rarely(
    bench: Bench, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kind.next_s = {"x": answer}
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.until(lambda: any(record.message == "refresh.failed" for record in caplog.records))
    (told,) = [record for record in caplog.records if record.message == "refresh.failed"]
    assert "next time" in told.__dict__["error"]
    bench.after(BACKOFF.quarantine_s - 0.1)
    bench.settled("purge t-1")
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
    bench.maintenance.start()
    bench.maintenance.give(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.until(lambda: bench.kind.calls.count("x") >= 2)
    assert bench.kind.calls.count("purge t-1") == 1  # hastened, and still not within its interval
    bench.maintenance.close(WAIT_S)
    assert bench.broken == []


def refresh(bench: Bench, name: str) -> MaintenanceFigures:
    found = bench.maintenance.figures(f"id-{name}").refresh
    assert found is not None
    return found


def hang(bench: Bench, *calls: str) -> list[threading.Event]:
    """Each of these calls, from now on, until its event is set."""
    gates = [threading.Event() for _ in calls]
    bench.kind.gates.update(zip(calls, gates, strict=True))
    return gates


def test_two_that_hang_for_ever_hold_up_no_other_and_are_reported_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    gates = hang(bench, "x", "y")
    bench.kind.next_s = {"z": REFRESH_INTERVAL_S}
    bench.order(StartShard(SHARD, EPOCH, (job("x"), job("y"))))
    bench.settled("x", "y", "purge t-1", hanging=2)
    bench.order(UpdateShard(SHARD, EPOCH, (job("x"), job("y"), job("z"))))
    bench.settled(hanging=2)
    bench.after(SLOT_S)
    bench.settled("z", hanging=2)
    bench.after(REFRESH_INTERVAL_S)
    bench.settled("z", hanging=2)
    bench.after(CONFIG.timeout_s)
    bench.until(lambda: "z" in bench.kind.calls)
    for name in ("x", "y"):
        told = refresh(bench, name)
        assert (told.hanging, told.timeout, told.error_code, told.next_at_s) == (True, 1, ErrorCode.TIMEOUT, 0.0)
    assert [record.message for record in caplog.records].count("refresh.given_up") == 2
    assert bench.maintenance.counters()["upkeep_hanging"] == 2
    for gate in gates:
        gate.set()
    bench.until(lambda: bench.maintenance.counters()["upkeep_hanging"] == 0)
    assert refresh(bench, "x").completed == 0, "what it answered so late counts for nothing"


def test_the_figures_of_a_job_are_those_of_its_refreshes_and_its_tables_purges(bench: Bench) -> None:
    bench.kind.faults = {"purge t-1": PermanentError("\ud800 broken", code=ErrorCode.CONSUMER_BROKEN)}
    bench.kind.next_s = {"x": 100.0}
    bench.order(StartShard(SHARD, EPOCH, (job("x"), job("plain", "replica"))))
    bench.settled("x", "purge t-1")
    told = bench.maintenance.figures("id-x")
    assert told.refresh == MaintenanceFigures(submitted=1, completed=1, next_at_s=bench.clock.now_s() + 100.0)
    assert told.purge is not None
    assert (told.purge.failed, told.purge.quarantined, told.purge.error_code, told.purge.error_msg) == (
        1,
        True,
        ErrorCode.CONSUMER_BROKEN,
        "\\ud800 broken",
    )
    assert bench.maintenance.figures("id-plain") == bench.maintenance.figures("id-unknown") == NO_MAINTENANCE


def test_a_permanent_fault_is_tried_rarely_until_the_job_is_changed(bench: Bench) -> None:
    bench.kind.faults = {"x": PermanentError("no such index", code=ErrorCode.CONSUMER_BROKEN)}
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.after(BACKOFF.cap_s + REFRESH_INTERVAL_S)
    bench.settled()
    changed = job("x")._replace(spec_json=JobSpec(ConsumerSpec("keeps", "/other")).to_json())
    bench.order(UpdateShard(SHARD, EPOCH, (changed,)))
    bench.settled("x")


def test_a_handler_that_is_gone_is_an_error_that_says_so(bench: Bench) -> None:
    bench.kind.next_s = {"x": 10.0}
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1")
    bench.offering = False
    bench.after(10.0)
    bench.until(lambda: refresh(bench, "x").failed == 1)
    told = refresh(bench, "x")
    assert (told.error_code, told.quarantined) == (ErrorCode.CONSUMER_BROKEN, True)
    assert "is no RefreshHandler any more" in told.error_msg


def test_the_end_waits_for_what_is_at_work_and_not_for_what_hangs(bench: Bench) -> None:
    gates = hang(bench, "x", "y")
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1", hanging=1)
    bench.after(CONFIG.timeout_s)
    bench.order(UpdateShard(SHARD, EPOCH, (job("x"), job("y"))))
    bench.until(lambda: "y" in bench.kind.calls)
    closing = threading.Thread(target=bench.maintenance.close, args=(WAIT_S,))
    closing.start()
    gates[1].set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert bench.maintenance.counters() == {"upkeep_running": 1, "upkeep_hanging": 1}
    bench.order(UpdateShard(SHARD, EPOCH, (job("x"), job("y"), job("z"))))
    bench.after(1_000.0)
    assert "z" not in bench.kind.calls, "nothing begins after the end"
    gates[0].set()


def test_the_end_does_not_wait_for_ever(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    gates = hang(bench, "x")
    bench.order(StartShard(SHARD, EPOCH, (job("x"),)))
    bench.settled("x", "purge t-1", hanging=1)
    bench.maintenance.close(0.05)
    assert "upkeep.left" in [record.message for record in caplog.records]
    gates[0].set()


class Answers(FakeKind):
    """Offers both, and answers or raises for the job or the table `bad` what `does` says; `good` counts the others."""

    def __init__(self, does: Callable[[], Any]) -> None:
        super().__init__()
        self.does = does
        self.good = 0

    def refresh(self, job: JobRow) -> Any:
        if job.key.job_name == "bad":
            return self.does()
        self.good += 1
        return [job.key.table_id], 1_000_000.0

    def purge(self, table_id: str) -> Any:
        return self.does()


def raising(error: BaseException) -> Callable[[], Any]:
    def does() -> Any:
        raise error

    return does


def endless() -> Any:
    return itertools.count(), 1_000_000.0


DOES = st.one_of(
    POISON.map(lambda value: lambda: value),
    st.tuples(POISON, POISON).map(lambda value: lambda: value),
    st.lists(POISON, max_size=3).map(lambda ids: lambda: (ids, 1_000_000.0)),
    ERRORS.map(raising),
    st.just(endless),
)


@given(DOES)
@settings(max_examples=60)
def test_whatever_a_handler_answers_or_raises_every_other_is_done_at_its_time(does: Callable[[], Any]) -> None:
    bench, kind = Bench(FakeClock()), Answers(does)
    bench.kind = kind  # type: ignore[assignment]
    bench.order(StartShard(SHARD, EPOCH, (job("bad"), job("good"))))
    bench.until(lambda: kind.good == 1 and bench.at_work() == 0)
    for turn in (2, 3):
        bench.maintenance._refreshes.renew("id-good", bench.clock.monotonic_s())
        bench.after(100.0)
        bench.until(lambda turn=turn: kind.good == turn and bench.at_work() == 0)  # type: ignore[misc]
    told = bench.maintenance.figures("id-bad")
    for each in (told.refresh, told.purge):
        assert each is not None
        assert each.submitted >= each.completed + each.failed >= 1
        each.error_msg.encode()
    bench.maintenance.close(WAIT_S)
    assert bench.broken == []
