"""The owner's builder on threads, from a job's registration until it has published what a node has built.

Which nodes may build, by what the owner's machine knows of them.

What is said of a table to the builder: its newest version and repair, and how far the last of its jobs has come.

A node's build worker on threads: batches run and end, are cancelled, and fail, and callers are answered.

What a node builds is recorded, in a trace of its own, with what it is and how large it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import pytest

from iscp.cluster.builds.builder import known_builds
from iscp.cluster.builds.builder_loop import BuilderLoop, BuildWorkerLoop, TracedRangeBuilder, read_nodes, table_seen
from iscp.cluster.jobs.job_changes import Unregister
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.worker_loop import VerifyDesk
from iscp.model.build.build_progress import BuildStage
from iscp.model.build.build_state import BuildLimits, Prioritize, PutPlan, PutTask, SplitRange, TableSeen
from iscp.model.build.build_task import (
    BuildPlan,
    BuildTask,
    RangeBatch,
    RetainedSpan,
    StagingBatch,
    StagingTask,
    TaskType,
)
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import (
    Canceled,
    Conflict,
    ErrorCode,
    InvalidRequest,
    InvariantBroken,
    NotOwner,
    StorageError,
)
from iscp.model.values.ids import BUILDS_WIRE_FORMAT, Leader, NodeRecord, ShardId
from iscp.model.values.progress import TableSize
from iscp.model.values.watermark import NOTHING_APPLIED, Watermark
from iscp.ports.cluster import BuildAnswer
from iscp.ports.system import Guard, within_trace
from tests.fakes.builds import RANGE, FakeBatchGuard, FakeBuildStore, FakeRangeBuilder
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard
from tests.fakes.nodes import FakeCalls
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.tracing import RecordingTracer, traceparent
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


@pytest.fixture
def owner() -> Iterator[OwnerLoop]:
    world = OwnerWorld()
    world.lead()
    yield world.owner
    world.close()


def speak(owner: OwnerLoop, wire_format: int) -> None:
    """As if the node had registered with it."""
    term = owner.machine.term
    assert term is not None
    peer = term.peers["n-1"]
    peer.record = replace(peer.record, wire_format=wire_format)


def test_nodes_that_are_there_may_build(owner: OwnerLoop) -> None:
    until(lambda: owner.query(read_nodes))
    found = owner.query(read_nodes)
    assert found is not None
    assert (set(found.records), found.placed.staying) == ({"n-1"}, frozenset({"n-1"}))


def test_nothing_is_placed_while_a_node_is_there_that_cannot(owner: OwnerLoop) -> None:
    owner.query(lambda loop: speak(loop, BUILDS_WIRE_FORMAT - 1))
    assert owner.query(read_nodes) is None
    owner.query(lambda loop: speak(loop, BUILDS_WIRE_FORMAT))
    assert owner.query(read_nodes) is not None


NOBODY = TableSeen("t", 9, None, 6)
FAILED = JobStatus(error_code=ErrorCode.INVALID_REQUEST).to_json()


def at(version: int) -> JobRow:
    return row("t", "j")._replace(watermark=Watermark(version, 1.0))


def seen(*rows: JobRow) -> TableSeen:
    found = (2, 8, 6), (3, 9, 0)
    probed = [SourceSeen(ShardId("t", each), version, 1.0, 0.0, (), repair) for each, version, repair in found]
    return table_seen("t", rows, probed)


def test_the_last_of_those_that_tail_counts() -> None:
    assert seen(at(7), at(5), at(NOTHING_APPLIED)) == TableSeen("t", 9, 5, 6, "/tables/j")


def test_who_goes_on_nobody_knows_when_does_not_count() -> None:
    stopped = at(5)._replace(reason=Reason.PAUSED), at(5)._replace(drop_at_s=1.0)
    failed = at(5)._replace(state=JobState.ERROR, status_json=FAILED)
    assert seen(*stopped, failed) == NOBODY


def test_a_table_that_no_node_has_probed_has_no_version() -> None:
    assert table_seen("t", [at(5)], []) == TableSeen("t", -1, 5, 0, "/tables/j")


PLAN = BuildPlan("j1", "default", "flights", "j1", "/lake/flights", 7, "{}", 1 << 30, 1)
TASK = BuildTask("a", TaskType.BUILD_RANGE, False, "flights", "j1", 2, "n1")
LEADER = Leader("n1", 1)
WAIT_S = 20.0


@dataclass
class Worker:
    store: FakeBuildStore = field(default_factory=FakeBuildStore)
    builder: FakeRangeBuilder = field(default_factory=FakeRangeBuilder)
    answers: SimpleQueue[BuildAnswer] = field(default_factory=SimpleQueue)
    broken: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = BuildWorkerLoop("n1", self.store, self.builder, FakeBatchGuard, FakeClock(), self.broken.append)
        self.store.write(LEADER, [PutTask(TASK), PutPlan(PLAN)])
        self.loop.start()

    def call(self, *task_ids: str) -> None:
        self.end_wait = self.loop.work_on_build_tasks(1, 2, task_ids, self.answers.put)

    def answer(self) -> BuildAnswer:
        return self.answers.get(timeout=WAIT_S)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.loop.close()
    assert made.broken == []


def test_a_caller_is_answered_when_the_range_is_built(worker: Worker) -> None:
    worker.call("a")
    until(lambda: worker.builder.batches)
    assert worker.answers.empty()
    worker.builder.go.set()
    assert worker.answer() == {"a": RANGE}
    assert worker.builder.built == [("j1", 2)]
    worker.call("a")
    assert worker.answer() == {"a": RANGE}
    assert len(worker.builder.batches) == 1


def test_who_ends_its_wait_is_not_answered_and_the_next_one_finds_the_batch_at_work(worker: Worker) -> None:
    worker.call("a")
    until(lambda: worker.builder.batches)
    worker.end_wait()
    worker.call("a")
    worker.builder.go.set()
    assert worker.answer() == {"a": RANGE}
    assert worker.answers.empty()


def test_what_is_aborted_is_cancelled(worker: Worker) -> None:
    worker.call("a")
    until(lambda: worker.builder.batches)
    worker.store.write(LEADER, [PutTask(TASK._replace(aborted=True))])
    assert worker.answer() == {}
    until(lambda: worker.builder.canceled)
    until(lambda: worker.builder.stopped)
    (guard,) = worker.builder.stopped
    with pytest.raises(Canceled):
        guard.check()


@pytest.mark.parametrize(
    ("fault", "kind"), [(StorageError("no space"), StorageError), (ValueError("what?"), InvariantBroken)]
)
def test_a_batch_that_fails_is_answered_with_its_fault(worker: Worker, fault: Exception, kind: type[Exception]) -> None:
    worker.builder.faults.append(fault)
    worker.call("a")
    assert isinstance(worker.answer(), kind)
    worker.builder.go.set()
    worker.call("a")
    assert worker.answer() == {"a": RANGE}


def test_what_is_in_work_ends_with_the_worker() -> None:
    worker = Worker()
    worker.call("a")
    until(lambda: worker.builder.batches)
    worker.loop.close()
    until(lambda: worker.builder.canceled and worker.builder.stopped)


PLANS = tuple(BuildPlan(f"j{n}", "acme", "t-1", f"copy{n}", "/lake/t", 7, "{}", 0, 2) for n in range(2))


class Builder:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.canceled: list[Guard] = []

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        if self.error is not None:
            raise self.error
        return TableSize(100, 2_000)

    def cancel(self, guard: Guard) -> None:
        self.canceled.append(guard)


def test_a_range_is_a_trace_of_its_own_with_what_was_read() -> None:
    tracer, guard = RecordingTracer(), OpenGuard()
    traced = TracedRangeBuilder(Builder(), tracer)
    with within_trace(traceparent(3)):
        assert traced.build(RangeBatch(5, PLANS), guard) == TableSize(100, 2_000)
    span = tracer.one("iscp.build.range")
    assert (span.parent, span.ended) == ("", True)
    assert span.attributes == {
        "iscp.table": "/lake/t",
        "iscp.version": 7,
        "iscp.range": 5,
        "iscp.account": "acme",
        "iscp.job": "copy0",
        "iscp.jobs": 2,
        "iscp.rows": 100,
        "iscp.bytes": 2_000,
    }


def test_commits_that_are_retained_are_another_span() -> None:
    tracer = RecordingTracer()
    batch = StagingBatch(StagingTask("s", "t-1", "/lake/t", 3, 9, "n1"), PLANS)
    TracedRangeBuilder(Builder(), tracer).build(batch, OpenGuard())
    attributes = tracer.one("iscp.build.retain").attributes
    assert (attributes["iscp.version.from"], attributes["iscp.version"], attributes["iscp.jobs"]) == (3, 9, 2)


def test_what_fails_is_raised_and_a_cancel_is_passed_on() -> None:
    builder, tracer, guard = Builder(StorageError("it is away")), RecordingTracer(), OpenGuard()
    traced = TracedRangeBuilder(builder, tracer)
    with pytest.raises(StorageError):
        traced.build(RangeBatch(1, PLANS), guard)
    assert tracer.one("iscp.build.range").ended
    traced.cancel(guard)
    assert builder.canceled == [guard]
