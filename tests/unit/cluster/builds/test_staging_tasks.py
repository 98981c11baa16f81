"""Which commits the owner has kept while a table is built, or as repairs, at which node, and when they are deleted.

Whatever is moved, split and merged, and whenever an owner ends, a job's tasks are its snapshot exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.builds.staging_tasks import (
    CALL_RETRY_S,
    CALLS_OF_NODE_MAX,
    COMMITS_OF_TASK_MAX,
    STAGING_CALLS_OF_NODE_MAX,
    WAITING_TABLES_MAX,
    Replacements,
    to_move,
)
from iscp.cluster.builds.table_turns import GATHER_S
from iscp.model.build.build_state import (
    BuildLimits,
    BuildOver,
    BuildState,
    BuildWanted,
    CallNode,
    CancelCall,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    JobsMoved,
    PutRetained,
    PutStaging,
    PutTask,
    RangeAnswered,
    RangeFailed,
    SplitRange,
    TableSeen,
)
from iscp.model.build.build_task import DEPTH_MAX, BuildTask, RetainedSpan, StagingTask, TaskType
from iscp.model.rows.key_ranges import children
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.progress import TableSize

from .test_builder import Owner, placed, plan

KEPT = TableSize(10, 500)
V = 7


def seen(newest: int, applied: int | None = None, table_id: str = "flights") -> TableSeen:
    return TableSeen(table_id, newest, applied)


def span(since: int, until: int, size: int = 0) -> RetainedSpan:
    return RetainedSpan("flights", "/lake/flights", since, until, size)


def building(*jobs: str, limits: BuildLimits | None = None, depth: int = 4) -> Owner:
    """With more ranges than a node is given at a time."""
    owner = Owner(*(plan(job, depth=depth) for job in jobs or ("j1",)), limits=limits or BuildLimits())
    owner.wait(GATHER_S)
    return owner


def staging(owner: Owner) -> list[CallNode]:
    return [call for call in owner.all(CallNode) if call.place.task_type is TaskType.PROCESS_STAGING]


def answer(owner: Owner, call: CallNode) -> None:
    owner.take(RangeAnswered(call.number, dict.fromkeys(call.task_ids, KEPT)))


def keep(owner: Owner, newest: int) -> None:
    owner.take(seen(newest))
    (call,) = staging(owner)
    answer(owner, call)


def tasks(owner: Owner) -> list[tuple[int, int]]:
    return [(task.after, task.until) for task in owner.state.staging.values()]


def test_a_commit_is_kept_beside_the_ranges_and_both_are_counted_apart() -> None:
    owner = building()
    owner.take(seen(V))
    assert not owner.state.retained
    assert len(owner.all(CallNode)) == CALLS_OF_NODE_MAX
    owner.take(seen(V + 2))
    begun: Sequence[object] = (PutRetained(span(V, V)), PutStaging(*owner.state.staging.values()))
    assert owner.writes[-1] == begun
    (call,) = staging(owner)
    assert (tasks(owner), call.place.node_id) == ([(V, V + 2)], "n1")
    answer(owner, call)
    assert owner.writes[-1] == (DeleteStaging("flights", call.task_ids[0]), PutRetained(span(V, V + 2, KEPT.bytes)))
    assert not owner.state.done


def test_what_lands_while_some_are_kept_is_for_the_next_task() -> None:
    owner = building()
    owner.take(seen(V + 1))
    owner.take(seen(V + 3))
    (call,) = staging(owner)
    answer(owner, call)
    assert tasks(owner) == [(V + 1, V + 3)]


def test_a_task_has_no_more_commits_than_it_may() -> None:
    owner = building()
    owner.take(seen(V + COMMITS_OF_TASK_MAX + 5))
    assert tasks(owner) == [(V, V + COMMITS_OF_TASK_MAX)]


def test_what_lands_while_a_build_waits_for_its_turn_is_kept_for_it() -> None:
    owner = building("j1")
    owner.take(BuildWanted(plan("j2", "planes")))
    owner.take(seen(V + 2, table_id="planes"))
    assert [(task.table_id, task.after, task.until) for task in owner.state.staging.values()] == [("planes", V, V + 2)]
    (call,) = staging(owner)
    answer(owner, call)
    assert owner.state.retained["planes"] == RetainedSpan("planes", "/lake/planes", V, V + 2, KEPT.bytes)
    owner.take(BuildOver("j2"))
    owner.take(seen(V + 2, table_id="planes"))
    assert [task.removes for task in owner.state.staging.values()] == [True], "nobody waits any more"


def test_of_a_long_queue_commits_are_kept_of_those_whose_turn_is_next() -> None:
    owner = building("j1")
    tables = [f"t{number:02}" for number in range(WAITING_TABLES_MAX + 1)]
    for table in tables:
        owner.wait(1)
        owner.take(BuildWanted(plan(table, table)))
    for table in tables:
        owner.take(seen(V + 1, table_id=table))
    assert {*owner.state.retained} == {*tables[:-1]}
    assert owner.builder.followed_tables() == ["flights", *tables[:-1]]


def test_when_all_are_published_commits_are_the_tails() -> None:
    owner = building(depth=1)
    owner.finish_all()
    owner.take(BuildOver("j1"))
    owner.take(seen(V + 9, applied=V))
    assert not owner.state.retained
    assert not owner.state.staging


def repaired(newest: int, applied: int | None, repair: int) -> TableSeen:
    return TableSeen("flights", newest, applied, repair, "/lake/flights")


def test_a_repair_is_kept_with_the_unread_commits_before_it_until_all_have_applied_it() -> None:
    owner = Owner()
    owner.take(repaired(V + 4, V, V + 3))
    (call,) = staging(owner)
    assert tasks(owner) == [(V, V + 3)]
    assert owner.builder.followed_tables() == ["flights"]
    answer(owner, call)
    assert owner.state.retained["flights"] == span(V, V + 3, KEPT.bytes)
    owner.take(repaired(V + 4, V + 2, V + 3))
    assert not owner.state.staging
    owner.take(repaired(V + 5, V + 3, 0))
    (call,) = staging(owner)
    assert tasks(owner) == [(V + 3, V + 3)]
    answer(owner, call)
    assert owner.state.empty
    assert owner.builder.followed_tables() == []


def test_a_repair_that_all_jobs_have_applied_or_none_waits_for_is_the_tails() -> None:
    owner = Owner()
    owner.take(repaired(V + 4, V + 3, V + 3))
    owner.take(repaired(V + 4, None, V + 3))
    assert not owner.writes
    assert owner.builder.followed_tables() == []


def test_a_repair_ends_what_keeps_it_once_nobody_waits_for_it() -> None:
    owner = Owner()
    owner.take(repaired(V + 1, V, V + 1))
    (call,) = staging(owner)
    owner.take(repaired(V + 1, V + 1, 0))
    assert owner.all(CancelCall) == [CancelCall(call.number)]
    assert tasks(owner) == [(V, V)], "whatever it has kept by then is deleted"


def test_a_further_repair_goes_on_where_the_first_one_ended() -> None:
    owner = Owner()
    owner.take(repaired(V + 1, V, V + 1))
    (call,) = staging(owner)
    answer(owner, call)
    owner.take(repaired(V + 4, V, V + 3))
    assert tasks(owner) == [(V + 1, V + 3)]


def test_far_behind_a_repair_so_much_is_kept_as_one_task_keeps() -> None:
    owner = Owner()
    owner.take(repaired(V + 1_000, V, V + 500))
    assert tasks(owner) == [(V + 500 - COMMITS_OF_TASK_MAX, V + 500)]


def test_a_repair_before_the_version_that_is_built_is_kept_for_those_that_tail() -> None:
    owner = building()
    owner.take(repaired(V + 2, V - 3, V - 1))
    assert tasks(owner) == [(V - 3, V + 2)]


def test_the_next_owner_keeps_what_is_there_of_a_repair_until_it_hears_of_the_table() -> None:
    owner = Owner()
    owner.take(repaired(V + 1, V, V + 1))
    (call,) = staging(owner)
    answer(owner, call)
    again = Owner(state=list(owner.state.changes()))
    assert again.builder.followed_tables() == ["flights"]
    assert not again.state.staging
    again.take(repaired(V + 1, V, 0))
    assert not again.state.staging, "the node that has the table has yet to say that it is a repair"
    again.take(repaired(V + 2, V + 2, 0))
    assert tasks(again) == [(V + 1, V + 1)]


def test_what_is_staged_and_not_published_is_being_built_yet() -> None:
    owner = building(depth=1)
    owner.finish_all()
    assert owner.state.built == {"j1": V}
    owner.take(seen(V + 1))
    assert tasks(owner) == [(V, V + 1)]


def test_no_more_is_kept_than_may_be() -> None:
    owner = building(limits=BuildLimits(retained_bytes_max=2 * KEPT.bytes))
    for newest in (V + 1, V + 2):
        keep(owner, newest)
    owner.take(seen(V + 3))
    assert owner.state.retained["flights"] == span(V, V + 2, 2 * KEPT.bytes)
    assert not owner.state.staging
    nothing = building(limits=BuildLimits(retained_bytes_max=0))
    nothing.take(seen(V + 1))
    assert not nothing.state.retained


def test_all_is_deleted_at_once_when_the_last_job_has_applied_it() -> None:
    owner = building(depth=1)
    keep(owner, V + 2)
    owner.finish_all()
    owner.take(BuildOver("j1"))
    assert not owner.state.staging, "nobody knows how far it has come"
    owner.take(seen(V + 2, applied=V + 1))
    assert not owner.state.staging
    owner.take(seen(V + 3, applied=V + 2))
    assert owner.state.retained["flights"] == span(V + 2, V + 2, KEPT.bytes), "of which nothing is certain any more"
    (call,) = staging(owner)
    answer(owner, call)
    assert owner.writes[-1] == (DeleteStaging("flights", call.task_ids[0]), DeleteRetained("flights"))


def test_a_job_that_waits_for_its_turn_at_an_earlier_version_needs_it_too() -> None:
    owner = building("j1", depth=1)
    keep(owner, V + 2)
    owner.finish_all()
    owner.silent = True
    owner.take(BuildWanted(plan("j2", version=V + 1)))
    owner.take(BuildOver("j1"))
    owner.take(seen(V + 2, applied=V + 2))
    assert not owner.state.staging


def test_a_build_that_begins_behind_what_is_kept_has_it_deleted_first() -> None:
    owner = building()
    keep(owner, V + 2)
    owner.take(BuildWanted(plan("j1", version=V + 4, depth=4)))
    (call,) = staging(owner)
    assert tasks(owner) == [(V + 2, V + 2)]
    owner.take(seen(V + 5))
    answer(owner, call)
    assert owner.state.retained["flights"] == span(V + 4, V + 4)
    assert tasks(owner) == [(V + 4, V + 5)]


def test_for_a_build_of_an_earlier_version_all_is_kept_from_there_on() -> None:
    owner = building()
    keep(owner, V + 2)
    owner.take(BuildWanted(plan("j0", version=V - 2, depth=4)))
    assert owner.state.retained["flights"] == span(V - 2, V - 2)
    assert tasks(owner) == [(V - 2, V + 2)]


def test_a_job_that_is_dropped_ends_the_task_that_keeps_for_it() -> None:
    owner = building()
    owner.take(seen(V + 1))
    (call,) = staging(owner)
    owner.take(BuildOver("j1"))
    assert tasks(owner) == [(V, V + 1)]
    owner.take(seen(V + 1))
    assert owner.all(CancelCall)[-1] == CancelCall(call.number)
    assert tasks(owner) == [(V, V)]
    answer(owner, call)
    assert tasks(owner) == [(V, V)], "a late answer is for a task that is gone"


def test_what_was_begun_for_a_build_is_kept_for_the_tail_that_follows_it() -> None:
    owner = building(depth=1)
    owner.take(seen(V + 1))
    (call,) = staging(owner)
    owner.finish_all()
    owner.take(BuildOver("j1"))
    owner.take(seen(V + 1, applied=V))
    answer(owner, call)
    assert owner.state.retained["flights"] == span(V, V + 1, KEPT.bytes)


def test_a_task_whose_node_has_left_goes_to_another_under_another_id() -> None:
    owner = building()
    owner.take(seen(V + 1))
    (task,) = owner.state.staging.values()
    owner.take(placed("n2"))
    (moved,) = owner.state.staging.values()
    assert moved == StagingTask(moved.task_id, "flights", "/lake/flights", V, V + 1, "n2")
    assert moved.task_id != task.task_id


def test_the_next_owner_goes_on_with_what_etcd_has() -> None:
    owner = building()
    owner.take(seen(V + 1))
    again = Owner(plan("j1", depth=4), state=list(owner.state.changes()))
    (call,) = staging(again)
    answer(again, call)
    assert again.state.retained["flights"] == span(V, V + 1, KEPT.bytes)


def test_a_place_that_fails_rests_and_its_ranges_go_on() -> None:
    owner = building()
    owner.all(CallNode)
    owner.take(seen(V + 1))
    (call,) = staging(owner)
    owner.take(RangeFailed(call.number, "the source cannot be read"))
    assert not staging(owner)
    owner.wait(CALL_RETRY_S)
    assert len(staging(owner)) == 1


def test_a_node_has_no_more_calls_to_keep_than_it_may() -> None:
    tables = [f"t{number}" for number in range(STAGING_CALLS_OF_NODE_MAX + 1)]
    plans = [plan(table, table) for table in tables]
    owner = Owner(*plans, limits=BuildLimits(tables_at_once=len(tables)))
    owner.wait(GATHER_S)
    for table in tables:
        owner.take(seen(V + 1, table_id=table))
    assert len(owner.state.staging) == len(tables)
    assert len(staging(owner)) == STAGING_CALLS_OF_NODE_MAX


def test_a_task_that_keeps_is_no_range_that_could_be_split() -> None:
    owner = building(depth=1)
    owner.take(seen(V + 1))
    with pytest.raises(InvalidRequest):
        owner.take(SplitRange("flights", 1))


def test_what_is_kept_stays_where_a_job_goes_on_before_the_table_is_seen_again() -> None:
    """It was paused when the table was seen; nothing could be written then, as no node was there."""
    owner = Owner()
    owner.take(repaired(V + 1, V, V + 1))
    (call,) = staging(owner)
    answer(owner, call)
    owner.take(placed())
    owner.take(repaired(V + 1, None, 0))
    owner.take(JobsMoved("flights"))
    owner.take(placed("n1"))
    owner.take(repaired(V + 1, V, V + 1))
    assert not owner.state.staging
    assert owner.state.retained["flights"] == span(V, V + 1, KEPT.bytes)
    owner.take(JobsMoved("flights"))
    owner.take(repaired(V + 1, None, 0))
    assert [task.removes for task in owner.state.staging.values()] == [True]


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
