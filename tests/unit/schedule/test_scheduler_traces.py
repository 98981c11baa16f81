"""The scheduler's loop hands on what led to an iteration: from a notify over the probe's answer to the runner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.protocol.events import Seen, StartShard, StopShard
from iscp.model.settings.config import BackoffConfig, ProbeConfig, SchedulerConfig
from iscp.ports.system import Guard, within_trace
from iscp.schedule.executor import Executor
from iscp.schedule.runner import TracedRunner
from iscp.schedule.schedule_events import WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import NoticedCommits, Scheduler
from iscp.system.threads import SystemClock
from tests.fakes.probe import FakeProbe
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.targets import FakeTargets
from tests.fakes.timetable import EPOCH, SHARD, URI, job
from tests.fakes.tracing import RecordingTracer, traceparent
from tests.fakes.waiting import until

WAIT_S = 20.0


class Node:
    """A loop whose tables are probed when somebody notifies it."""

    def __init__(self) -> None:
        self.source, self.tracer, self.broken = FakeProbe(), RecordingTracer(), list[Exception]()
        clock, probe = SystemClock(), ProbeConfig(interval_min_s=3_600.0, interval_max_s=3_600.0)
        schedule = Schedule("n-1", probe, BackoffConfig(base_s=0.05, cap_s=0.2), lambda: 0.5)
        noticed = NoticedCommits(self.tracer, clock)
        self.scheduler = Scheduler(schedule, self.source, FakeTargets(), clock, self.broken.append, noticed=noticed)
        self.news: list[WorkerNews] = []
        self.scheduler.reports.subscribe(self.news.append, *get_args(WorkerNews))
        runner = TracedRunner(FakeRunner(self.apply), self.tracer, lambda uri, version: "")
        self.executor = Executor(
            *(runner, clock, SchedulerConfig(cancel_wait_s=WAIT_S), lambda epoch: None),
            *(self.scheduler.post, lambda iteration: None),
        )
        self.scheduler.start(self.executor)

    def apply(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        return applied(iteration, self.source.versions[URI])

    def has_seen(self, version: int) -> bool:
        """Whether a probe's answer was taken in."""
        return any(isinstance(news, Seen) and news.seen.source_version == version for news in list(self.news))

    def iterations(self) -> int:
        return sum(span.ended for span in self.tracer.named("iscp.iteration"))


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    node.source.commit(URI, 3)
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 2),)))
    until(lambda: node.has_seen(2))
    yield node
    assert node.broken == []
    node.executor.close(drain=False, wait_s=0)
    assert node.scheduler.close(WAIT_S)


def test_a_commit_that_a_caller_has_notified_is_a_part_of_its_trace_up_to_the_iteration(node: Node) -> None:
    before = node.iterations()
    node.source.commit(URI)
    with within_trace(traceparent(77)):
        node.scheduler.notify(SHARD, False)
    until(lambda: node.iterations() > before)
    notice, iteration = node.tracer.one("iscp.notice"), node.tracer.named("iscp.iteration")[-1]
    assert (notice.parent, iteration.parent) == (traceparent(77), notice.trace)
    assert node.tracer.named("iscp.queue")[-1].parent == iteration.trace


def test_a_shard_that_has_stopped_is_forgotten(node: Node) -> None:
    node.scheduler.post(StopShard(SHARD))
    node.source.commit(URI)  # for whoever runs it meanwhile
    node.scheduler.post(StartShard(SHARD, EPOCH, (job("x", 2),)))
    until(lambda: node.has_seen(3))
    node.source.commit(URI)
    node.scheduler.notify(SHARD, False)
    until(lambda: node.tracer.named("iscp.notice"))
    assert node.tracer.one("iscp.notice").attributes["iscp.version.from"] == 3
