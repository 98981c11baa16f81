"""A node's build worker: what it works on, what it answers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

from iscp.cluster.builds.builder import CANCELED_MAX, FINISHED_MAX, RANGES_AT_ONCE_MAX, BuildWorker
from iscp.model.build.build_state import (
    AnswerWork,
    BatchEnded,
    CancelBatch,
    Change,
    CountDone,
    DeleteStaging,
    DeleteTask,
    DropBuild,
    PutPlan,
    PutStaging,
    PutTask,
    RefuseWork,
    RunBatch,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, RangeBatch, StagingBatch, StagingTask, TaskType
from iscp.model.values.errors import NotOwner, StorageError
from iscp.model.values.progress import UNCOUNTED, TableSize

SIZE = TableSize(100, 4_000)


def plan(job_id: str, version: int = 7) -> BuildPlan:
    return BuildPlan(job_id, "default", "flights", job_id, "/lake/flights", version, "{}", 1 << 30, 3)


def task(task_id: str, job_id: str = "j1", range_id: int = 8, node_id: str = "n1", aborted: bool = False) -> BuildTask:
    return BuildTask(task_id, TaskType.BUILD_RANGE, aborted, "flights", job_id, range_id, node_id)


def worker(*tasks: BuildTask) -> BuildWorker:
    made = BuildWorker("n1")
    changes: list[Change] = [PutPlan(plan("j1")), PutPlan(plan("j2")), PutPlan(plan("j3", 9))]
    made.step(TasksRead([*changes, *map(PutTask, tasks)]))
    return made


def request(number: int, *task_ids: str, range_id: int = 8, owner_rev: int = 1) -> WorkRequested:
    return WorkRequested(number, owner_rev, range_id, task_ids)


def test_batches_that_hang_keep_no_others_from_beginning_once_they_are_cancelled() -> None:
    """So many of them: a node whose batches all hang gets no more."""
    ranges = range(8, 8 + CANCELED_MAX + 2 * RANGES_AT_ONCE_MAX)
    made = worker(*(task(f"t{each}", range_id=each) for each in ranges))
    for each in ranges:
        made.step(request(each, f"t{each}", range_id=each))
    assert len(made.batches) == RANGES_AT_ONCE_MAX
    for each in ranges:
        made.step(TasksChanged([PutTask(task(f"t{each}", range_id=each, aborted=True))]))
    assert len(made.batches) == RANGES_AT_ONCE_MAX + CANCELED_MAX


def test_tasks_of_several_jobs_are_one_batch_and_answered_when_it_ends() -> None:
    made = worker(task("a"), task("b", "j2"))
    assert made.step(request(1, "a", "b")) == [RunBatch(1, RangeBatch(8, (plan("j1"), plan("j2"))))]
    assert made.step(BatchEnded(1)) == [AnswerWork(1, {"a": UNCOUNTED, "b": UNCOUNTED})]


def test_what_is_finished_is_answered_at_once_until_it_is_deleted() -> None:
    """With what its range had of the source."""
    made = worker(task("a"))
    made.step(request(1, "a"))
    made.step(BatchEnded(1, size=SIZE))
    assert made.step(request(2, "a", owner_rev=2)) == [AnswerWork(2, {"a": SIZE})]
    made.step(TasksChanged([DeleteTask("j1", "a")]))
    assert not made.finished


def test_no_more_is_remembered_than_may_be() -> None:
    made = worker(task("a"))
    made.finished = {f"{number}": UNCOUNTED for number in range(FINISHED_MAX)}
    made.step(request(1, "a"))
    made.step(BatchEnded(1))
    assert len(made.finished) == FINISHED_MAX
    assert "a" in made.finished
    assert "0" not in made.finished


def test_a_task_that_has_not_come_in_yet_is_waited_for() -> None:
    made = worker()
    assert made.step(request(1, "a")) == []
    assert made.step(TasksChanged([PutTask(task("a"))])) == [RunBatch(1, RangeBatch(8, (plan("j1"),)))]


def test_jobs_that_cut_files_otherwise_are_not_read_together() -> None:
    """A range has other pieces of them then."""
    made = worker(task("a"), task("b", "j2"))
    made.step(TasksChanged([PutPlan(replace(plan("j2"), piece_bytes=1 << 20))]))
    assert made.step(request(1, "a", "b")) == [RunBatch(1, RangeBatch(8, (plan("j1"),)))]
    (further,) = made.step(BatchEnded(1))
    assert isinstance(further, RunBatch)
    assert [each.job_id for each in further.batch.plans] == ["j2"]


def test_a_range_has_one_batch_at_a_time_and_versions_are_not_mixed() -> None:
    made = worker(task("a"), task("b", "j2"), task("c", "j3"))
    made.step(request(1, "a"))
    assert made.step(request(2, "b", "c")) == []
    assert made.step(BatchEnded(1)) == [AnswerWork(1, {"a": UNCOUNTED}), RunBatch(2, RangeBatch(8, (plan("j2"),)))]
    assert made.step(BatchEnded(2)) == [RunBatch(3, RangeBatch(8, (plan("j3", 9),)))]
    assert made.step(BatchEnded(3)) == [AnswerWork(2, {"b": UNCOUNTED, "c": UNCOUNTED})]


def test_a_node_builds_no_more_ranges_at_a_time_than_it_may() -> None:
    ranges = range(8, 8 + RANGES_AT_ONCE_MAX + 1)
    made = worker(*(task(f"{each}", range_id=each) for each in ranges))
    effects = [effect for each in ranges for effect in made.step(request(each, f"{each}", range_id=each))]
    assert len(effects) == RANGES_AT_ONCE_MAX
    assert [type(effect) for effect in made.step(BatchEnded(1))] == [AnswerWork, RunBatch]


def test_what_is_counted_is_the_owners_and_not_kept() -> None:
    made = worker(task("a"))
    made.step(TasksChanged([CountDone("j1", "n1", SIZE)]))
    assert made.state.done == {}


def test_what_is_aborted_while_it_is_in_work_is_cancelled_and_never_finished() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    assert made.step(TasksChanged([PutTask(task("a", aborted=True))])) == [CancelBatch(1), AnswerWork(1, {})]
    assert made.step(BatchEnded(1)) == []
    assert made.step(request(2, "a")) == [AnswerWork(2, {})]


def test_what_was_finished_and_is_aborted_then_is_not_finished() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    made.step(BatchEnded(1))
    made.step(TasksChanged([PutTask(task("a", aborted=True))]))
    assert made.step(request(2, "a")) == [AnswerWork(2, {})]


def test_a_batch_goes_on_for_the_jobs_that_are_left() -> None:
    made = worker(task("a"), task("b", "j2"))
    made.step(request(1, "a", "b"))
    assert made.step(TasksChanged([DropBuild("j1")])) == []
    assert made.step(BatchEnded(1)) == [AnswerWork(1, {"b": UNCOUNTED})]


def test_a_batch_whose_tasks_are_gone_when_all_is_read_again_is_cancelled() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    assert made.step(TasksRead([PutPlan(plan("j1"))])) == [CancelBatch(1), AnswerWork(1, {})]


def test_a_place_is_free_only_when_its_batch_has_stopped() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    made.step(TasksChanged([PutTask(task("a", aborted=True)), PutTask(task("b"))]))
    assert made.step(request(2, "b")) == []
    assert made.step(BatchEnded(1, StorageError("cancelled"))) == [RunBatch(2, RangeBatch(8, (plan("j1"),)))]


def test_who_waits_for_a_batch_that_fails_gets_its_fault() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    fault = StorageError("no space")
    assert made.step(BatchEnded(1, fault)) == [RefuseWork(1, fault)]
    assert made.step(request(2, "a")) == [RunBatch(2, RangeBatch(8, (plan("j1"),)))]


def test_no_earlier_owner_is_obeyed_and_its_calls_end() -> None:
    made = worker(task("a"))
    made.step(request(1, "a", owner_rev=2))
    (refused,) = made.step(request(2, "a", owner_rev=1))
    assert isinstance(refused, RefuseWork)
    assert isinstance(refused.fault, NotOwner)
    (ended,) = made.step(request(3, "a", owner_rev=3))
    assert isinstance(ended, RefuseWork)
    assert ended.number == 1
    assert made.step(BatchEnded(1)) == [AnswerWork(3, {"a": UNCOUNTED})]


def test_who_waits_no_more_gets_no_answer_and_the_batch_goes_on() -> None:
    made = worker(task("a"))
    made.step(request(1, "a"))
    assert made.step(WaitEnded(1)) == []
    assert made.step(BatchEnded(1)) == []
    assert made.step(request(2, "a")) == [AnswerWork(2, {"a": UNCOUNTED})]


def test_tasks_of_other_nodes_and_ranges_are_not_worked_on() -> None:
    made = worker(task("a", node_id="n2"), task("b", range_id=9))
    assert made.step(request(1, "a")) == []
    assert made.step(request(2, "b")) == []


def staging(task_id: str, node_id: str = "n1", table_id: str = "flights") -> StagingTask:
    return StagingTask(task_id, table_id, f"/lake/{table_id}", 7, 9, node_id)


def test_commits_are_kept_though_all_ranges_are_busy_for_all_builds_of_the_table() -> None:
    made = worker(*(task(str(number), range_id=8 + number) for number in range(RANGES_AT_ONCE_MAX)))
    for number in range(RANGES_AT_ONCE_MAX):
        made.step(request(number, str(number), range_id=8 + number))
    made.step(TasksChanged([PutStaging(staging("s"))]))
    plans = plan("j1"), plan("j2"), plan("j3", 9)
    number = RANGES_AT_ONCE_MAX + 1
    assert made.step(request(90, "s", range_id=1)) == [RunBatch(number, StagingBatch(staging("s"), plans))]
    assert made.step(BatchEnded(number, size=SIZE)) == [AnswerWork(90, {"s": SIZE})]
    assert made.step(request(91, "s", range_id=1, owner_rev=2))[-1] == AnswerWork(91, {"s": SIZE}), "at once"


def test_commits_of_one_table_are_kept_at_a_time() -> None:
    made = worker()
    made.step(TasksChanged([PutStaging(staging("a")), PutStaging(staging("b", table_id="planes"))]))
    (first,) = made.step(request(1, "a", range_id=1))
    assert not made.step(request(2, "b", range_id=1))
    assert isinstance(first, RunBatch)
    _, second = made.step(BatchEnded(first.number))
    assert second == RunBatch(2, StagingBatch(staging("b", table_id="planes"), ()))


def test_keeping_for_a_task_that_is_gone_is_cancelled_and_never_finished() -> None:
    made = worker()
    made.step(TasksChanged([PutStaging(staging("a")), PutStaging(staging("other", "n2"))]))
    made.step(request(1, "a", range_id=1))
    assert made.step(TasksChanged([DeleteStaging("flights", "a")])) == [CancelBatch(1), AnswerWork(1, {})]
    made.step(TasksChanged([PutStaging(staging("b"))]))
    assert not made.step(request(2, "b", range_id=1)), "until the one before has stopped"
    assert made.step(BatchEnded(1, size=SIZE)) == [
        RunBatch(2, StagingBatch(staging("b"), (plan("j1"), plan("j2"), plan("j3", 9))))
    ]
    assert not made.finished
