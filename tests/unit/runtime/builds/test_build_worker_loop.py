"""A node's build worker on threads: batches run and end, are cancelled, and fail, and callers are answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from iscp.coordination.builds.build_state import PutPlan, PutTask
from iscp.core.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.core.values.errors import Canceled, InvariantBroken, StorageError
from iscp.core.values.members import Leader
from iscp.ports.cluster import BuildAnswer
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from tests.fakes.builds import RANGE, FakeBatchGuard, FakeBuildStore, FakeRangeBuilder
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

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
