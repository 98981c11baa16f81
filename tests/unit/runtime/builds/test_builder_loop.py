"""The owner's builder on threads, from a job's registration until it has published what a node has built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from iscp.coordination.builds.build_limits import BuildLimits
from iscp.coordination.builds.build_view import known_builds
from iscp.coordination.builds.builder_events import Prioritize, SplitRange
from iscp.coordination.jobs.job_requests import Unregister
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.build.api_builds import BuildStage
from iscp.core.build.build_task import BuildPlan, RetainedSpan
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.values.errors import Conflict, InvalidRequest, NotOwner, StorageError
from iscp.core.values.ids import ShardId
from iscp.core.values.members import NodeRecord
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from iscp.runtime.builds.builder_loop import BuilderLoop
from iscp.runtime.worker.verify_requests import VerifyDesk
from tests.fakes.builds import RANGE, FakeBatchGuard, FakeBuildStore, FakeRangeBuilder
from tests.fakes.nodes import FakeCalls
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until


def plan_of(job: JobRow) -> BuildPlan | None:
    """Each job wants a build of four ranges."""
    key = job.key
    return BuildPlan(job.job_id, key.account, key.table_id, key.job_name, job.table_uri, 7, job.spec_json, 1 << 30, 2)


@dataclass
class Building:
    """An owner whose only node builds."""

    world: OwnerWorld = field(default_factory=OwnerWorld)
    store: FakeBuildStore = field(default_factory=FakeBuildStore)
    builder: FakeRangeBuilder = field(default_factory=FakeRangeBuilder)
    notified: list[ShardId] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.world
        self.worker = BuildWorkerLoop("n-1", self.store, self.builder, FakeBatchGuard, world.clock, world.broken.append)
        calls = FakeCalls(VerifyDesk(lambda event: None, world.clock))
        calls.build_worker = self.worker

        def calls_of(record: NodeRecord) -> FakeCalls:
            assert record.node_id == "n-1"
            return calls

        self.loop = BuilderLoop(
            *(world.owner, self.store, calls_of, self.notified.append, plan_of, world.clock),
            *(world.broken.append, BuildLimits()),
        )
        world.on_tables = self.loop.on_tables
        self.worker.start()
        self.loop.start()

    def until(self, true: Callable[[], object]) -> None:
        """While time passes."""

        def passed() -> bool:
            self.world.pass_s(0.25)
            self.loop.on_tables(())  # wakes the loop, whose clock is in the test's hand
            return bool(true())

        until(passed)

    def close(self) -> None:
        self.loop.close()
        self.worker.close()
        self.world.close()


@pytest.fixture
def building() -> Iterator[Building]:
    made = Building()
    made.world.lead()
    yield made
    made.close()
    assert made.world.broken == []


def test_a_registered_job_is_built_and_published(building: Building) -> None:
    jobs = [row("full"), row("narrow")]
    register(building.world, *jobs)
    building.builder.go.set()
    building.until(lambda: building.notified == [ShardId("t-1")] * 2)
    assert sorted(building.builder.built) == [(job.job_id, number) for job in jobs for number in range(4, 8)]
    assert len(building.builder.batches) == 4
    assert building.store.state.built == {job.job_id: 7 for job in jobs}
    for job in jobs:
        building.world.report(job, 7, JobState.COMPLETED)
    building.until(lambda: building.store.empty)


def test_the_build_of_a_job_that_is_dropped_ends(building: Building) -> None:
    job = row("full")
    register(building.world, job)
    building.until(lambda: building.builder.batches)
    building.world.owner.current_writer().submit(Unregister(job.key)).result(10)
    building.until(lambda: building.store.empty and building.builder.canceled)
    assert building.builder.built == []
    assert building.notified == []


def test_a_later_term_goes_on(building: Building) -> None:
    register(building.world, row("full"))
    building.until(lambda: len(building.builder.batches) == 2)
    building.world.election.resign()
    until(lambda: building.world.owner.writer is None)
    building.loop.on_tables(())
    building.builder.go.set()
    until(lambda: len(building.builder.built) == 2)
    building.world.election.campaign("n-1", building.world.owner.on_elected, building.world.owner.on_lost)
    building.until(lambda: building.notified)
    assert sorted(number for _, number in building.builder.built) == [4, 5, 6, 7]


def test_what_fails_is_tried_again(building: Building) -> None:
    building.store.faults += [Conflict("another was first"), Conflict("another was first")]
    building.builder.faults += [StorageError("no space")]
    building.builder.go.set()
    register(building.world, row("full"))
    building.until(lambda: building.notified)
    assert building.store.faults == []
    assert len(building.builder.batches) == 5


def test_an_etcd_that_is_emptied_while_ranges_are_built_is_filled_again(building: Building) -> None:
    """The owner has nothing to write meanwhile, and nodes work on nothing that etcd does not have."""
    register(building.world, row("full"))
    building.until(lambda: len(building.builder.batches) == 2)
    building.store.lose_all()
    building.until(lambda: building.builder.canceled == 2)
    building.builder.go.set()
    building.until(lambda: building.notified)
    assert building.store.state.built


def test_requests_are_carried_out_or_refused(building: Building) -> None:
    register(building.world, row("full"))
    building.until(lambda: len(building.builder.batches) == 2)
    waiting = {task.range_id for task in building.store.state.live.values()}
    split = max(waiting - {batch.range_id for batch in building.builder.batches})
    building.loop.request(SplitRange("t-1", split))
    (build,) = building.loop.query(known_builds).jobs
    assert (build.plan.table_id, build.stage) == ("t-1", BuildStage.BUILDING)
    building.loop.request(Prioritize("t-1", 3))
    building.until(lambda: building.store.state.priorities)
    ranges = {task.range_id for task in building.store.state.live.values()}
    assert ranges == waiting - {split} | {2 * split, 2 * split + 1}
    with pytest.raises(InvalidRequest, match="no task is waiting"):
        building.loop.request(SplitRange("t-1", split))
    with pytest.raises(InvalidRequest, match="1001"):
        building.loop.request(Prioritize("t-1", 1001))


def test_between_terms_requests_are_refused() -> None:
    building = Building()
    with pytest.raises(NotOwner):
        building.loop.request(SplitRange("t-1", 4))
    building.close()


def test_a_commit_that_a_node_reports_while_a_table_is_built_is_kept(building: Building) -> None:
    """And what is kept is deleted when the job has gone."""
    job = row("j")
    register(building.world, job)
    building.until(lambda: building.store.state.plans)
    seen = SourceSeen(job.key.shard, 9, 1.0, 0.0)
    building.world.owner.query(lambda loop: loop.sources.seen.update({job.key.shard: seen}))
    building.until(lambda: [span.until for span in building.store.state.retained.values()] == [9])
    assert building.store.state.retained["t-1"] == RetainedSpan("t-1", job.table_uri, 7, 9, RANGE.bytes)
    building.world.owner.current_writer().submit(Unregister(job.key)).result(10)
    building.until(lambda: building.store.empty)
    assert [(task.after, task.until) for task in building.builder.staged] == [(7, 9), (9, 9)]


def test_a_repair_that_a_node_reports_of_a_table_whose_jobs_all_tail_is_kept_until_they_have_applied_it(
    building: Building,
) -> None:
    job = row("j")
    register(building.world, job)
    building.builder.go.set()
    building.until(lambda: building.notified)
    building.world.report(job, 7, JobState.COMPLETED)
    building.until(lambda: building.store.empty)
    building.world.see(9, lag_s=1.0, repair=9)
    building.until(lambda: [span.until for span in building.store.state.retained.values()] == [9])
    assert building.store.state.retained["t-1"] == RetainedSpan("t-1", job.table_uri, 7, 9, RANGE.bytes)
    building.world.report(job, 9)
    building.world.see(9)
    building.until(lambda: building.store.empty)
    assert [(task.after, task.until) for task in building.builder.staged] == [(7, 9), (9, 9)]
