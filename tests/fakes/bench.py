"""A source with rows at version 1, and a runner over it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec, schema_of_spec
from iscp.model.values.ids import JobKey
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.system import NO_TRACER, Tracer
from iscp.schedule.runner import Runner
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.holds import FakeHolds
from tests.fakes.pipeline import FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports
from tests.fakes.retained_commits import FakeRetainedCommits

URI = "/tables/t-1"
NUMBERS = count(1)


class Bench:
    """A source with rows at version 1, and a runner over it."""

    def __init__(
        self,
        bounds: Bounds | None = None,
        deaths: JobDeaths = NO_DEATHS,
        clock: FakeClock | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.source, self.kind, self.engine = FakeSource(), FakeKind(), FakeEngine()
        self.guard, self.failpoints, self.clock = OpenGuard(), ScriptedFailpoints(), clock or FakeClock()
        self.retained, self.holds = FakeRetainedCommits(), FakeHolds()
        self.on_committed: Callable[[JobOutcome], None] = lambda outcome: None
        self.require_places: Callable[[JobRow], None] = lambda row: None
        self.runner = Runner(
            fake_ports(
                *(self.source, lambda name: self.kind, self.engine, self.failpoints, self.clock),
                retained=self.retained,
                require_places=lambda row: self.require_places(row),
                deaths=deaths,
                holds=self.holds,
                tracer=tracer,
            ),
            bounds or Bounds(),
            on_committed=lambda outcome: self.on_committed(outcome),
        )
        self.source.commit({1: "a", 2: "b"})

    def run(self, *jobs: JobRow, to: int | None = None) -> list[JobOutcome]:
        iteration = Iteration(next(NUMBERS), "t-1", URI, jobs, to)
        outcomes = list(self.runner.run(iteration, self.guard))
        assert [outcome.row for outcome in outcomes] == list(jobs)
        assert self.engine.open_sessions == 0
        assert all(feed.released for feed in self.source.feeds)
        return outcomes

    def built(self, *names: str, **spec: Any) -> list[JobRow]:
        """Jobs whose sinks stand at the source's newest version."""
        jobs = [job(name, **spec) for name in names]
        assert all(outcome.ok for outcome in self.run(*jobs))
        self.source.snapshots.clear()
        for each in jobs:
            self.target(each).commits.clear()
        return jobs

    def target(self, row: JobRow) -> FakeTarget:
        return self.kind.target(row.spec.consumer.target)

    def assert_fresh(self, *jobs: JobRow) -> None:
        for each in jobs:
            assert self.target(each).rows == self.source.states[-1]
            assert self.target(each).position.watermark.version == self.source.version


def job(name: str, registration: int = 1, **given: Any) -> JobRow:
    """`given`: policies, and fields of the consumer."""
    known = {each.name for each in schema_of_spec() if each.holder is JobSpec}
    policies = {field: given.pop(field) for field in known & given.keys()}
    spec = JobSpec(
        ConsumerSpec(**{"kind": "replica", "target": f"/targets/{name}", "key": ("id",), **given}), **policies
    )
    return JobRow(JobKey("a", "t-1", name), f"{registration:012x}-{name}", spec.to_json(), "t", URI)
