"""Proves that a watch follows its jobs' tables, waits for those that are not there, and ends in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.core.api.api_requests import RegisterRequest
from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.job.usage import SparkNeed
from iscp.core.run.run_plan import RunPlan
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.settings.config import BackoffConfig, MaintenanceConfig, ProbeConfig, SchedulerConfig
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.ports.catalog import TableDescription
from iscp.ports.system import Guard
from iscp.runtime.local.job_registrar import RunOrders
from iscp.runtime.local.local_watch import LocalWatch, WatchParts
from iscp.runtime.local.spark_needs import SparkNeeds
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.maintenance import Maintenance
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.table_notices import TableNotices
from tests.fakes.local_runs import TABLE, FailingRunner, Heard, Local, failing
from tests.fakes.pipeline import FakeKind
from tests.fakes.probe import FakeProbe
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.targets import FakeTargets
from tests.fakes.waiting import until

STOP_S = 20.0
NEVER_S = 1_000.0
"""Seconds between two probes of a table whose commits a test notifies of."""


class Refreshed(FakeKind):
    """A kind whose jobs are refreshed now and then; `refreshed_names` are those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshed_names: list[str] = []

    def refresh(self, job: JobRow) -> tuple[list[str], float]:
        self.refreshed_names.append(job.key.job_name)
        return [], SystemClock().now_s() + NEVER_S


@dataclass
class Notices:
    """The notices of a kernel that says what a test says."""

    on_commit: Callable[[str], None]
    followed_uris: list[str] = field(default_factory=list)
    closed: bool = False

    def follow(self, table_uri: str) -> None:
        self.followed_uris = sorted([*self.followed_uris, table_uri])

    def leave(self, table_uri: str) -> None:
        self.followed_uris.remove(table_uri)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.closed = True


class Watching:
    """A watch on a thread of its own, over tables whose versions a test sets."""

    def __init__(self, local: Local, interval_s: float = 0.02) -> None:
        self.local, self.alive = local, True
        self.probe = FakeProbe()
        self.probe.commit(TABLE)
        self.runner: FakeRunner = FakeRunner(self.apply)
        self.ended: list[bool] = []
        self.broken: list[Exception] = []
        self.needs = SparkNeeds(SystemClock())
        self._interval_s = interval_s

    def apply(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        return applied(iteration, self.probe.versions[iteration.table_uri])

    def apply_by_spark(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        need = SparkNeed((f"version {self.probe.versions[iteration.table_uri]}",))
        outcomes = tuple(replace(each, spark=need) for each in self.apply(iteration, guard))
        for each in outcomes:
            self.needs.hear(each)  # as at its commit
        return outcomes

    def start(self, *requests: RegisterRequest) -> None:
        clock, jobs = SystemClock(), self.local.requested(*requests)
        probe = ProbeConfig(interval_min_s=self._interval_s, interval_max_s=self._interval_s)
        schedule = Schedule("run", probe, BackoffConfig(base_s=0.05, cap_s=0.1), lambda: 0.5)
        scheduler = Scheduler(schedule, self.probe, FakeTargets(), clock, self.broken.append)
        config = SchedulerConfig(concurrency=2, cancel_wait_s=STOP_S)
        executor = Executor(self.runner, clock, config, lambda epoch: None, scheduler.post, lambda iteration: None)
        maintenance = Maintenance(
            lambda name: self.local.kind,
            clock,
            MaintenanceConfig(),
            BackoffConfig(),
            lambda: 0.5,
            lambda: None,
            self.broken.append,
        )
        parts = WatchParts(
            self.local.registrar,
            scheduler,
            executor,
            maintenance,
            TableNotices(self._notices, lambda shard: scheduler.notify(shard, targets=False)),
            lambda: self.alive,
            lambda job_id: None,
            self.needs,
        )
        self.heard = Heard([each.planned.name for each in jobs])
        plan = RunPlan([each.planned for each in jobs], range(len(jobs)))
        self.watch = LocalWatch(parts, jobs, plan, RunOrders(), self.heard)
        self._thread = threading.Thread(target=lambda: self.ended.append(self.watch.run(STOP_S)))
        self._thread.start()

    def _notices(self, on_commit: Callable[[str], None]) -> Notices:
        self.notices = Notices(on_commit)
        return self.notices

    def of(self, name: str) -> list[RunResult]:
        return [each for each in [*self.heard.ended_results] if each.name == name]

    def versions(self, name: str) -> list[int]:
        return [each.to_version for each in self.of(name) if each.state is ResultState.UPDATED]

    def close(self) -> None:
        """Stop the watch as a signal does, and wait for its end."""
        self.watch.stop()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive()
        assert self.notices.closed
        assert not self.broken


@pytest.fixture
def watching(local: Local) -> Iterator[Watching]:
    made = Watching(local)
    yield made
    made.close()


def test_jobs_are_built_and_follow_each_commit_until_the_end(local: Local, watching: Watching) -> None:
    watching.start(local.request("a"), local.request("b"))
    until(lambda: watching.versions("a") == watching.versions("b") == [0])
    assert sorted(watching.heard.begun_names) == ["a", "b"]
    watching.probe.commit(TABLE, 2)
    until(lambda: watching.versions("a") == watching.versions("b") == [0, 2])
    assert (watching.of("a")[1].from_version, watching.of("a")[1].rows) == (0, 1)
    watching.close()
    assert watching.ended == [True]


def test_a_notice_of_a_table_has_its_jobs_run_at_once(local: Local) -> None:
    watching = Watching(local, interval_s=NEVER_S)
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    until(lambda: watching.notices.followed_uris == [TABLE])
    watching.probe.commit(TABLE)
    watching.notices.on_commit("/lake/others")  # of which nobody reads
    watching.notices.on_commit(TABLE)
    until(lambda: watching.versions("a") == [0, 1])
    watching.close()


def test_a_job_whose_table_is_not_there_begins_once_it_is(local: Local, watching: Watching) -> None:
    watching.start(local.request("late", "/lake/elsewhere"), local.request("a"))
    until(lambda: watching.versions("a") == [0])
    (fault,) = watching.of("late")
    assert (fault.state, fault.error_code) == (ResultState.FAILED, ErrorCode.TABLE_NOT_FOUND)
    local.catalog.tables["/lake/elsewhere"] = TableDescription("t-2", "late", "/lake/elsewhere", 1, 1.0, {"id": "long"})
    watching.probe.commit("/lake/elsewhere")
    until(lambda: watching.versions("late") == [0])
    assert watching.of("late")[0] is fault, "the fault was said once"
    until(lambda: watching.notices.followed_uris == ["/lake/elsewhere", TABLE])


def test_a_job_that_is_refused_is_said_once_and_the_others_are_followed(local: Local, watching: Watching) -> None:
    local.kind.refusals["/lake/bad"] = InvalidRequest("is wrong", field="key", remedy="Correct it")
    watching.start(local.request("bad"), local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.probe.commit(TABLE)
    until(lambda: watching.versions("a") == [0, 1])
    (fault,) = watching.of("bad")
    assert (fault.state, fault.error) == (ResultState.FAILED, "key is wrong. Correct it")


def test_a_fault_is_said_once_while_it_lasts_and_the_job_is_tried_again(local: Local, watching: Watching) -> None:
    runner = FailingRunner()
    runner.version = 0
    runner.faults["a"] = [failing(ErrorCode.STORAGE, "the disk is gone")] * 3
    watching.runner = runner
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    assert [each.error for each in watching.of("a")] == ["the disk is gone", ""]
    assert runner.ran.count("a") == 4


def test_kinds_are_maintained_as_on_a_node(local: Local) -> None:
    local.kind = kind = Refreshed()
    watching = Watching(local)
    watching.start(local.request("a"))
    until(lambda: kind.refreshed_names == ["a"])
    watching.close()


def test_what_runs_at_the_end_is_waited_for(local: Local, watching: Watching) -> None:
    watching.runner = runner = GatedRunner()
    watching.start(local.request("a"))
    until(lambda: runner.running)
    watching.watch.stop()
    assert not watching.ended
    runner.gate(1).set()
    until(lambda: watching.ended == [True])
    assert runner.cancelled == []


def test_the_end_of_spark_ends_the_watch_as_failed(local: Local, watching: Watching) -> None:
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.alive = False
    until(lambda: watching.ended == [False])


def test_a_commit_says_what_its_job_needed_spark_for_since_the_last_one(local: Local, watching: Watching) -> None:
    watching.runner = FakeRunner(watching.apply_by_spark)
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.probe.commit(TABLE, 2)
    until(lambda: watching.versions("a") == [0, 2])
    assert [each.spark for each in watching.of("a")] == ["version 0", "version 2"]
