"""A state of builds is the same by every way to it, and finds each task where it is, whatever was written before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.model.build.build_state import (
    BeginTable,
    BuildPlace,
    BuildState,
    Change,
    CountDone,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    DropBuild,
    EndTable,
    ForgetBuilt,
    MarkBuilt,
    PutPlan,
    PutRetained,
    PutStaging,
    PutTask,
    SetPriority,
    place_of,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, RetainedSpan, StagingTask, TaskType
from iscp.model.values.progress import TableSize

NODES, TABLES, JOBS = ("n-1", "n-2"), ("t-1", "t-2"), ("j-1", "j-2", "j-3")
TABLE_OF = {"j-1": "t-1", "j-2": "t-1", "j-3": "t-2"}

TASKS = st.builds(
    lambda task_id, aborted, job_id, range_id, node_id: BuildTask(
        f"{job_id}-{task_id}", TaskType.BUILD_RANGE, aborted, TABLE_OF[job_id], job_id, range_id, node_id
    ),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from(JOBS),
    st.integers(1, 3),
    st.sampled_from(NODES),
)
STAGING = st.builds(
    lambda table_id, node_id: StagingTask(f"s-{table_id}", table_id, "/t", 1, 2, node_id),
    st.sampled_from(TABLES),
    st.sampled_from(NODES),
)
JOB_IDS, TABLE_IDS = st.sampled_from(JOBS), st.sampled_from(TABLES)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    *[TASKS.map(PutTask)] * 6,
    TASKS.map(lambda task: DeleteTask(task.job_id, task.task_id)),
    st.builds(CountDone, JOB_IDS, st.sampled_from(NODES), st.builds(TableSize, st.integers(0, 9), st.integers(0, 9))),
    JOB_IDS.map(lambda job_id: PutPlan(BuildPlan(job_id, "a", TABLE_OF[job_id], job_id, "/t", 7, "{}", 0, 1))),
    st.builds(DropBuild, JOB_IDS),
    st.builds(MarkBuilt, JOB_IDS, st.integers(0, 9)),
    st.builds(ForgetBuilt, JOB_IDS),
    st.builds(BeginTable, TABLE_IDS),
    st.builds(EndTable, TABLE_IDS),
    st.builds(SetPriority, TABLE_IDS, st.integers(-1, 1)),
    STAGING.map(PutStaging),
    STAGING.map(lambda task: DeleteStaging(task.table_id, task.task_id)),
    st.builds(PutRetained, st.builds(RetainedSpan, TABLE_IDS, st.just("/t"), st.just(1), st.integers(2, 9))),
    st.builds(DeleteRetained, TABLE_IDS),
)


@given(st.lists(CHANGES, min_size=10, max_size=30))
def test_a_state_is_that_of_its_changes_and_finds_each_task(changes: list[Change]) -> None:
    tasks: dict[str, BuildTask] = {}
    for change in changes:
        match change:
            case PutTask(task):
                tasks[task.task_id] = task
            case DeleteTask(_, task_id):
                tasks.pop(task_id, None)
            case DropBuild(job_id):
                tasks = {task_id: task for task_id, task in tasks.items() if task.job_id != job_id}
            case _:
                pass
    state = BuildState.of(changes)
    assert BuildState.of(state.changes()) == state
    assert state.empty == (state == BuildState())
    assert {task_id: task for each in state.jobs.values() for task_id, task in each.items()} == tasks
    assert state.live == {task_id: task for task_id, task in tasks.items() if not task.aborted}
    assert state.aborted == {task_id: task for task_id, task in tasks.items() if task.aborted}
    assert all(all(places.values()) for places in state.places.values())
    assert all(state.places.values())
    assert 0 not in state.priorities.values()
    check_places(state)


def check_places(state: BuildState) -> None:
    for node_id in NODES:
        for table_id in TABLES:
            for range_id in (1, 2, 3):
                place = BuildPlace(node_id, table_id, range_id)
                there = {task.task_id for task in state.live.values() if place_of(task) == place}
                assert set(state.places.get(node_id, {}).get(place, ())) == there
                assert state.is_at(place) == bool(there)
            staged = any(task.node_id == node_id and task.table_id == table_id for task in state.staging.values())
            assert state.is_at(BuildPlace(node_id, table_id, 1, TaskType.PROCESS_STAGING)) == staged
    for table_id in TABLES:
        for range_id in (1, 2, 3):
            assert {task.task_id for task in state.of_range(table_id, range_id)} == {
                task.task_id for task in state.live.values() if (task.table_id, task.range_id) == (table_id, range_id)
            }
    for task_id in (*state.live, *state.aborted, *state.staging):
        assert state.is_live(task_id) == (task_id not in state.aborted)


@given(st.lists(CHANGES, max_size=20), JOB_IDS)
def test_nothing_is_left_of_a_build_that_is_dropped_but_what_was_built(changes: list[Change], job_id: str) -> None:
    state = BuildState.of([*changes, DropBuild(job_id)])
    assert job_id not in state.plans.keys() | state.done.keys() | state.jobs.keys()
    assert job_id not in {task.job_id for task in (*state.live.values(), *state.aborted.values())}
    assert state.built == BuildState.of(changes).built
