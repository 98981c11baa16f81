"""Whatever is moved, split and merged, and whenever an owner ends, a job's tasks are its snapshot exactly once."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.builds.build_state import BuildState, DeleteTask, PutTask
from iscp.coordination.builds.replacements import Replacements, to_move
from iscp.core.build.build_task import DEPTH_MAX, BuildTask, TaskType
from iscp.core.rows.range_tree import children
from iscp.core.values.errors import InvalidRequest

JOBS, NODES = ("j-1", "j-2"), ("n-1", "n-2", "n-3")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["split", "merge", "move", "abort", "succeed", "end"]),
        st.sampled_from([1, 1, 1, 2, 3, 6]),
        st.sampled_from(NODES),
    ),
    min_size=5,
    max_size=25,
)


def task(task_id: str, job_id: str = "j-1", range_id: int = 1, node_id: str = "n-1") -> BuildTask:
    return BuildTask(task_id, TaskType.BUILD_RANGE, False, "t", job_id, range_id, node_id)


def begun() -> BuildState:
    return BuildState.of(PutTask(task(f"{job_id}-{each}", job_id, each)) for job_id in JOBS for each in (2, 3))


@given(STEPS)
def test_whatever_is_replaced_a_jobs_tasks_are_its_snapshot(steps: list[tuple[str, int, str]]) -> None:
    state, replacements, numbers = begun(), Replacements(), count()
    for deed, range_id, node_id in steps:
        match deed:
            case "split" | "merge":
                with suppress(InvalidRequest):
                    getattr(replacements, deed)(state, (), "t", range_id)
            case "move":
                replacements.move(to_move(state, (), lambda each: each.range_id == 2, partial(same, node_id)))
            case "abort":
                for group in replacements.abort_groups(state, ()):
                    apply(state, group)
            case "succeed":
                succeed(replacements, state, numbers, node_id)
            case _:
                replacements.clear()  # the next owner knows nothing of them
        check(state)
    replacements.clear()
    succeed(replacements, state, numbers, "n-1")
    assert not state.aborted
    check(state)


def same(node_id: str, _: BuildTask) -> str:
    return node_id


def succeed(replacements: Replacements, state: BuildState, numbers: count[int], node_id: str) -> None:
    groups = list(
        replacements.successor_groups(state, lambda: f"new-{next(numbers)}", lambda _: node_id, lambda _: "c")
    )
    for group in groups:
        apply(state, group)
    replacements.forget(state.aborted)
    assert not state.aborted
    assert not replacements.begun


def apply(state: BuildState, group: object) -> None:
    assert isinstance(group, list)
    written = [each.task.task_id if isinstance(each, PutTask) else each.task_id for each in group]
    assert len(written) == len(set(written))  # etcd refuses a transaction that writes a key twice
    for change in group:
        assert isinstance(change, PutTask | DeleteTask)
        state.apply(change)


def check(state: BuildState) -> None:
    for job_id in JOBS:
        ranges = [each.range_id for each in state.jobs[job_id].values()]
        leaves = [leaf for each in ranges for leaf in below(each)]
        assert len(leaves) == len(set(leaves)) == 1 << DEPTH


DEPTH = 5


def below(range_id: int) -> range:
    steps = DEPTH + 1 - range_id.bit_length()
    return range(range_id << steps, (range_id + 1) << steps)


def test_halves_get_their_nodes_and_a_copy_that_of_copies() -> None:
    state, replacements = BuildState.of([PutTask(task("a"))]), Replacements()
    replacements.split(state, (), "t", 1)
    (group,) = replacements.abort_groups(state, ())
    apply(state, group)
    ids = iter(("b", "c"))
    ((gone, *made),) = replacements.successor_groups(state, lambda: next(ids), lambda each: f"n{each.range_id}", str)
    assert gone == DeleteTask("j-1", "a")
    assert made == [PutTask(task("b", range_id=2, node_id="n2")), PutTask(task("c", range_id=3, node_id="n3"))]
    ((_, copy),) = Replacements().successor_groups(state, lambda: "d", str, lambda _: "copy")
    assert copy == PutTask(task("d", node_id="copy"))


def test_what_was_requested_comes_before_moves_of_the_same_tasks() -> None:
    state, replacements = BuildState.of([PutTask(task("a"))]), Replacements()
    replacements.move(iter(state.live.values()))
    replacements.split(state, (), "t", 1)
    assert len(list(replacements.abort_groups(state, ()))) == 1
    assert replacements.begun["a"].range_ids == children(1)


def test_what_is_finished_is_neither_aborted_nor_cut_nor_moved() -> None:
    state, replacements = begun(), Replacements()
    finished = {"j-1-2", "j-2-2"}
    with pytest.raises(InvalidRequest, match="no task is waiting"):
        replacements.split(state, finished, "t", 2)
    with pytest.raises(InvalidRequest, match="no task is waiting"):
        replacements.merge(state, finished, "t", 1)
    moved = to_move(state, finished, lambda _: False, lambda _: "n-2")
    assert {each.task_id for each in moved} == {"j-1-3", "j-2-3"}
    replacements.merge(state, (), "t", 1)
    assert list(replacements.abort_groups(state, {"j-1-3", "j-2-2"})) == []
    assert list(to_move(state, (), lambda each: each.job_id == "j-1", lambda each: each.node_id)) == []
    stays = to_move(state, (), lambda each: each.job_id == "j-1", lambda _: "n-2")
    assert {each.task_id for each in stays} == {"j-2-2", "j-2-3"}


def test_halves_are_merged_only_for_jobs_that_have_both_and_still_have_them_then() -> None:
    state, replacements = begun(), Replacements()
    state.apply(DeleteTask("j-1", "j-1-3"))
    replacements.merge(state, (), "t", 1)
    assert [each.job_id for each in replacements.aborting] == ["j-2"]
    state.apply(DeleteTask("j-2", "j-2-2"))
    assert list(replacements.abort_groups(state, ())) == []


@pytest.mark.parametrize("range_id", [0, -1, 2 << DEPTH_MAX, 1 << DEPTH_MAX])
def test_what_cannot_be_cut_or_put_together_is_refused(range_id: int) -> None:
    for change in (Replacements().split, Replacements().merge):
        with pytest.raises(InvalidRequest) as refused:
            change(begun(), (), "t", range_id)
        assert refused.value.field == "range_id"
        assert "no task" not in str(refused.value)
