"""An update that interrupts: what runs is really cancelled, and the job starts over by its new spec."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from iscp.delta.source.change_source import DeltaProbe
from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.protocol.events import Reports, StartShard, UpdateShard
from iscp.model.settings.config import BackoffConfig, ProbeConfig, SchedulerConfig
from iscp.model.values.ids import ShardId, TableEpoch
from iscp.ports.system import Guard
from iscp.schedule.executor import Executor
from iscp.schedule.runner import Runner
from iscp.schedule.schedule_events import WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import Scheduler
from iscp.system.threads import SystemClock
from tests.fakes.targets import FakeTargets
from tests.integration.pipeline.conftest import Pipeline

pytestmark = pytest.mark.spark

WAIT_S = 120.0


class Recording:
    """The real runner, the priorities of its runs, and what was cancelled."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.priorities: list[int] = []
        self.canceled = threading.Event()

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        self.priorities.append(iteration.jobs[0].spec.priority)
        return self._runner.run(iteration, guard)

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)
        self.canceled.set()


class Desk:
    """The scheduler and executor of a node around a real runner."""

    def __init__(self, runner: Recording) -> None:
        self.news: list[WorkerNews] = []
        self.broken: list[Exception] = []
        clock = SystemClock()
        schedule = Schedule("n-1", ProbeConfig(), BackoffConfig(), lambda: 0.5)
        self.scheduler = Scheduler(schedule, DeltaProbe(), FakeTargets(), clock, self.broken.append)
        self.scheduler.reports.subscribe(self.news.append, *get_args(WorkerNews))
        self.executor = Executor(
            runner, clock, SchedulerConfig(), lambda epoch: None, self.scheduler.post, lambda iteration: None
        )
        self.scheduler.start(self.executor)

    def reached(self) -> int:
        reports = [report for news in list(self.news) if isinstance(news, Reports) for report in news.reports]
        return max((report.watermark.version for report in reports), default=-1)

    def close(self) -> None:
        self.executor.close(drain=False, wait_s=WAIT_S)
        self.scheduler.close(WAIT_S)


@pytest.fixture
def runner(pipeline: Pipeline) -> Recording:
    return Recording(pipeline.runner)


@pytest.fixture
def desk(runner: Recording) -> Iterator[Desk]:
    made = Desk(runner)
    yield made
    made.close()


def test_an_interrupted_iteration_commits_nothing_and_starts_over_by_the_new_spec(
    pipeline: Pipeline, runner: Recording, desk: Desk
) -> None:
    registered = pipeline.job("target", key=("id",))
    built = pipeline.build(registered)[0]
    row = registered._replace(watermark=built.watermark, seq=built.seq)
    pipeline.upsert(range(20), "changed")
    before, shard = len(pipeline.commits("target")), ShardId(row.key.table_id)
    reached, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        reached.set()
        assert go_on.wait(WAIT_S)

    pipeline.failpoints.once("commit.before", stand_still)
    desk.scheduler.post(StartShard(shard, TableEpoch(1, 1), (row,)))
    assert reached.wait(WAIT_S)
    changed = row._replace(spec_json=replace(row.spec, priority=9).to_json())
    desk.scheduler.interrupt(shard, row.job_id, changed.spec_json)
    desk.scheduler.post(UpdateShard(shard, TableEpoch(1, 2), (changed,)))
    assert runner.canceled.wait(WAIT_S)
    assert runner.priorities == [0], "not before the other one has really ended"
    go_on.set()
    end_s = time.monotonic() + WAIT_S
    while desk.reached() < 1:
        assert time.monotonic() < end_s, desk.broken
        time.sleep(0.01)
    assert runner.priorities == [0, 9]
    assert desk.executor.counters().canceled == 1
    assert len(pipeline.commits("target")) == before + 1
    pipeline.assert_equal("target")
