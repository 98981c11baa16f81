"""The owner's builder: whose turn it is, where tasks go, what nodes are called for, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from iscp.cluster.builds.builder import Builder
from iscp.cluster.builds.staging_tasks import CALL_RETRY_S, CALLS_OF_NODE_MAX, NODE_REST_S
from iscp.cluster.builds.table_turns import GATHER_S, REPEAT_S
from iscp.cluster.membership.assignments import ring_of
from iscp.model.build.build_state import (
    LOAD_RETRY_S,
    REMOVE_EVERY_S,
    WRITES_OF_BUILDS_MAX,
    BuilderEffect,
    BuilderEvent,
    BuildLimits,
    BuildOver,
    BuildsLoaded,
    BuildState,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWanted,
    CallNode,
    CancelCall,
    Change,
    CheckBuilds,
    CountDone,
    DeleteTask,
    LoadBuilds,
    MergeRange,
    NodesPlaced,
    NotifyBuilt,
    Prioritize,
    PutTask,
    RangeAnswered,
    RangeFailed,
    SplitRange,
    WriteBuilds,
    writes_of,
)
from iscp.model.build.build_task import DEPTH_MAX, BuildPlan
from iscp.model.values.errors import InvalidRequest, Unavailable
from iscp.model.values.progress import UNCOUNTED, TableSize, total_size
from iscp.model.values.ring import Placement

E = TypeVar("E")
USUAL = BuildLimits()
RANGE = TableSize(100, 4_000)


def plan(job_id: str, table_id: str = "flights", version: int = 7, depth: int = 2) -> BuildPlan:
    return BuildPlan(job_id, "default", table_id, job_id, f"/lake/{table_id}", version, "{}", 1 << 30, depth)


def placed(*node_ids: str) -> NodesPlaced:
    nodes = frozenset(node_ids)
    return NodesPlaced(Placement(nodes, ring=ring_of(nodes)), nodes)


def answer(call: CallNode) -> RangeAnswered:
    """All of it is finished."""
    return RangeAnswered(call.number, dict.fromkeys(call.task_ids, RANGE))


class Owner:
    """A builder with an etcd that answers at once. `writes`: each transaction; `effects`: all others. `checks`: when
    etcd was read for whether it has the last one.

    While `silent` is set, its etcd does not answer.
    """

    def __init__(self, *wanted: BuildPlan, limits: BuildLimits = USUAL, state: Sequence[Change] = ()) -> None:
        self.now_s = 0.0
        self.silent = False
        self.etcd = list(state)
        self.writes: list[tuple[Change, ...]] = []
        self.effects: list[BuilderEffect] = []
        self.checks: list[float] = []
        self.lost = False
        self.builder = Builder(3, limits, wanted, {each.job_id for each in wanted}, self.now_s)
        self.take(BuildTick())
        self.take(placed("n1"))

    def take(self, event: BuilderEvent) -> None:
        for effect in self.builder.step(event, self.now_s):
            match effect:
                case LoadBuilds(number):
                    self.lost = False
                    self.take(BuildsLoaded(number, BuildState.of(self.etcd)))
                case WriteBuilds(number, changes):
                    self.writes.append(changes)
                    self.etcd += changes
                    if not self.silent:
                        self.take(BuildsWritten(number))
                case CheckBuilds(number):
                    self.checks.append(self.now_s)
                    self.take(BuildsUnknown(number) if self.lost else BuildsWritten(number))
                case _:
                    self.effects.append(effect)

    def lose_etcd(self, has: Iterable[Change] = ()) -> None:
        """It is emptied, or has what it had once."""
        self.etcd, self.lost = [*has], True

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(BuildTick())

    def all(self, kind: type[E]) -> list[E]:
        found: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def finish_all(self) -> None:
        while calls := self.all(CallNode):
            for call in calls:
                self.take(answer(call))
        self.wait(REMOVE_EVERY_S)

    @property
    def state(self) -> BuildState:
        assert self.builder.state is not None
        return self.builder.state

    def ranges(self, job_id: str) -> list[int]:
        return sorted(task.range_id for task in self.state.jobs.get(job_id, {}).values())


def test_jobs_that_are_registered_together_are_read_together() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S / 2)
    owner.take(BuildWanted(plan("j2")))
    assert not owner.writes
    owner.wait(GATHER_S / 2)
    assert owner.ranges("j1") == owner.ranges("j2") == [4, 5, 6, 7]
    assert [len(call.task_ids) for call in owner.all(CallNode)] == [2, 2]


def test_a_node_has_no_more_calls_than_it_may() -> None:
    owner = Owner(plan("j1", depth=4))
    owner.wait(GATHER_S)
    calls = owner.all(CallNode)
    assert len(calls) == CALLS_OF_NODE_MAX
    owner.take(answer(calls[0]))
    (further,) = owner.all(CallNode)
    assert further.place not in {call.place for call in calls}


def test_finished_tasks_are_removed_together_and_the_job_is_built_when_none_is_left() -> None:
    owner = Owner(plan("j1", depth=1))
    owner.wait(GATHER_S)
    before = len(owner.writes)
    owner.finish_all()
    assert [len(changes) for changes in owner.writes[before:]] == [3, 1, 1]
    assert owner.all(NotifyBuilt) == [NotifyBuilt(plan("j1", depth=1))]
    assert owner.state.built == {"j1": 7}
    assert owner.state.done == {"j1": {"n1": TableSize(200, 8_000)}}, "until it has published"
    owner.take(BuildOver("j1"))
    assert list(owner.state.changes()) == []


def test_no_transaction_is_larger_than_etcd_takes() -> None:
    owner = Owner(plan("j1", depth=8), plan("j2", depth=8))
    owner.wait(GATHER_S)
    assert owner.ranges("j1") == list(range(256, 512))
    sizes = [sum(map(writes_of, changes)) for changes in owner.writes]
    assert max(sizes) <= WRITES_OF_BUILDS_MAX
    assert len(sizes) == 1 + 2 * 3


def test_what_is_removed_is_counted_in_the_same_transaction_however_much_it_is() -> None:
    """Also of two nodes and two jobs, and where it is more than a transaction takes: each count comes once in one."""
    owner = Owner(plan("j1", depth=6), plan("j2", depth=6), limits=BuildLimits(writes_max=12))
    owner.wait(GATHER_S)
    owner.take(placed("n1", "n2"))
    while calls := owner.all(CallNode):
        for call in calls:
            owner.take(answer(call))
    before, done = len(owner.writes), 0
    owner.wait(REMOVE_EVERY_S)
    state = BuildState.of(change for changes in owner.writes[:before] for change in changes)
    for changes in owner.writes[before:]:
        counts = [(each.job_id, each.node_id) for each in changes if isinstance(each, CountDone)]
        assert len(counts) == len(set(counts))
        assert sum(map(writes_of, changes)) <= 12
        for change in changes:
            state.apply(change)
        done += sum(isinstance(each, DeleteTask) for each in changes)
        assert sum(size.rows for nodes in state.done.values() for size in nodes.values()) == done * RANGE.rows
    assert done == 128
    assert {job_id: total_size(nodes.values()) for job_id, nodes in state.done.items()} == {
        job_id: TableSize(64 * RANGE.rows, 64 * RANGE.bytes) for job_id in ("j1", "j2")
    }
    assert {node_id for nodes in state.done.values() for node_id in nodes} == {"n1", "n2"}


def test_the_next_owner_counts_on_and_nothing_twice() -> None:
    """What was answered to the first one and not removed, is answered again."""
    first = Owner(plan("j1"))
    first.wait(GATHER_S)
    one, other = first.all(CallNode)
    first.take(answer(one))
    first.wait(REMOVE_EVERY_S)
    first.take(answer(other))
    owner = Owner(plan("j1"), state=list(first.state.changes()))
    assert owner.state.done == {"j1": {"n1": RANGE}}
    owner.finish_all()
    owner.wait(GATHER_S)
    assert owner.state.done == {"j1": {"n1": TableSize(400, 16_000)}}


def test_what_a_node_of_an_earlier_version_has_built_is_not_known_nor_is_the_sum() -> None:
    owner = Owner(plan("j1", depth=1))
    owner.wait(GATHER_S)
    one, other = owner.all(CallNode)
    owner.take(answer(one))
    owner.take(RangeAnswered(other.number, dict.fromkeys(other.task_ids, UNCOUNTED)))
    owner.wait(REMOVE_EVERY_S)
    assert owner.state.done == {"j1": {"n1": UNCOUNTED}}


def test_a_build_that_starts_over_is_counted_from_nothing() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    owner.finish_all()
    owner.take(BuildWanted(plan("j1", version=9)))
    assert owner.ranges("j1") == [4, 5, 6, 7]
    assert owner.state.done == {}


def test_one_table_is_built_at_a_time_the_more_urgent_first() -> None:
    owner = Owner(plan("a", "flights"), plan("b", "planes"), plan("c", "orders"))
    owner.take(Prioritize("orders", 1))
    owner.wait(GATHER_S)
    assert list(owner.state.tables) == ["orders"]
    owner.finish_all()
    assert list(owner.state.tables) == ["flights"]
    owner.take(Prioritize("orders", 0))
    assert owner.state.priorities == {}


def test_several_tables_are_built_at_a_time_where_they_may_be() -> None:
    owner = Owner(plan("a", "flights"), plan("b", "planes"), plan("c", "orders"), limits=BuildLimits(2))
    owner.wait(GATHER_S)
    assert list(owner.state.tables) == ["flights", "planes"]


def test_the_next_owner_goes_on_with_the_table_in_work() -> None:
    first = Owner(plan("a", "flights"))
    first.wait(GATHER_S)
    state = list(first.state.changes())
    owner = Owner(plan("b", "planes"), plan("a", "flights"), state=state)
    owner.wait(GATHER_S)
    assert list(owner.state.tables) == ["flights"]
    assert not owner.writes


@pytest.mark.parametrize("differs", [{"version": 8}, {"piece_bytes": 1 << 20}])
def test_what_has_other_rows_in_a_range_is_read_beside(differs: dict[str, int]) -> None:
    """A job that is added later may want a later version, or files cut in other ways, as its node is configured.

    It is built in the same turn, by batches of its own.
    """
    owner = Owner(plan("j1", depth=0), replace(plan("j2", depth=0), **differs))  # type: ignore[arg-type]
    owner.wait(GATHER_S)
    (call,) = owner.all(CallNode)
    assert len(call.task_ids) == 1
    owner.take(answer(call))
    (other,) = owner.all(CallNode)
    assert other.place == call.place
    assert set(other.task_ids).isdisjoint(call.task_ids)


def test_a_build_at_another_version_starts_over() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    former = set(owner.state.live)
    (call, *_) = owner.all(CallNode)
    owner.take(BuildWanted(plan("j1", version=9)))
    assert former.isdisjoint(owner.state.live)
    assert owner.state.plans["j1"].version == 9
    assert CancelCall(call.number) in owner.effects


def test_a_job_that_wants_its_build_again_long_after_it_is_built_gets_it() -> None:
    """Its node does not find all that was staged."""
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    owner.finish_all()
    owner.take(BuildWanted(plan("j1")))
    assert owner.state.built == {"j1": 7}
    owner.wait(REPEAT_S)
    owner.take(BuildWanted(plan("j1")))
    assert owner.ranges("j1") == [4, 5, 6, 7]


def test_a_build_that_reads_others_of_further_tables_begins_at_once() -> None:
    """Whatever was built before at the same version of its own."""
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    owner.finish_all()
    again = replace(plan("j1"), pin="other")
    owner.take(BuildWanted(again))
    owner.wait(GATHER_S)
    assert (owner.state.plans["j1"], owner.ranges("j1")) == (again, [4, 5, 6, 7])
    former = set(owner.state.live)
    owner.take(BuildWanted(replace(again, pin="another")))
    assert former.isdisjoint(owner.state.live), "nor is anything of it taken for the other one's"


def test_a_failed_range_is_tried_again_later_and_others_go_on() -> None:
    owner = Owner(plan("j1", depth=3))
    owner.wait(GATHER_S)
    call, other = owner.all(CallNode)
    owner.take(RangeFailed(call.number, "no space"))
    owner.take(answer(other))
    assert owner.all(CallNode) == []
    owner.wait(NODE_REST_S)
    again, _ = owner.all(CallNode)
    assert again.place == call.place
    owner.take(RangeFailed(again.number, "no space"))
    owner.wait(NODE_REST_S)
    (further,) = owner.all(CallNode)
    assert further.place not in (call.place, other.place)
    owner.take(answer(further))
    owner.wait(2 * CALL_RETRY_S - NODE_REST_S)
    assert owner.builder.calls.setbacks[call.place].fault == "no space"
    owner.finish_all()
    assert owner.builder.calls.setbacks == {}


def test_no_node_is_called_before_it_is_known_to_be_there() -> None:
    """A new owner knows of tasks before it knows of nodes."""
    first = Owner(plan("j1"))
    first.wait(GATHER_S)
    builder = Builder(4, BuildLimits(), [plan("j1")], ["j1"], 0.0)
    (load,) = builder.step(BuildTick(), 0.0)
    assert isinstance(load, LoadBuilds)
    assert builder.step(BuildsLoaded(load.number, first.state), 0.0) == []
    assert len(builder.step(placed("n1"), 0.0)) == CALLS_OF_NODE_MAX


def test_tasks_move_to_a_node_that_joins_but_for_those_in_work() -> None:
    owner = Owner(plan("j1", depth=5))
    owner.wait(GATHER_S)
    working = {task_id for call in owner.all(CallNode) for task_id in call.task_ids}
    before = set(owner.state.live)
    owner.take(placed("n1", "n2"))
    assert working <= set(owner.state.live)
    assert owner.ranges("j1") == list(range(32, 64))
    assert 8 <= sum(task.node_id == "n2" for task in owner.state.live.values()) <= 24
    moved = set(owner.state.live) - before
    assert {owner.state.live[each].node_id for each in moved} == {"n2"}
    assert not owner.state.aborted


def test_what_a_lost_node_had_in_work_moves_too() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    calls = owner.all(CallNode)
    owner.take(placed("n2"))
    assert {call.number for call in owner.all(CancelCall)} == {call.number for call in calls}
    assert {task.node_id for task in owner.state.live.values()} == {"n2"}
    late = calls[0]
    owner.take(answer(late))
    assert not owner.builder.finished


def test_a_task_that_is_to_move_twice_and_is_split_is_replaced_once() -> None:
    owner = Owner(plan("j1", depth=3))
    owner.wait(GATHER_S)
    owner.silent = True
    owner.take(Prioritize("flights", 1))
    owner.take(placed("n2"))
    owner.take(placed("n3"))
    owner.take(SplitRange("flights", 9))
    written = len(owner.writes)
    owner.silent = False
    owner.take(BuildsWritten(written + 1))  # after the one that loaded what etcd had
    for changes in owner.writes[written:]:
        puts = [each.task.task_id for each in changes if isinstance(each, PutTask)]
        ids = puts + [each.task_id for each in changes if isinstance(each, DeleteTask)]
        assert len(ids) == len({*ids}), "etcd refuses a transaction that writes a key twice"
    assert owner.ranges("j1") == [8, 10, 11, 12, 13, 14, 15, 18, 19]
    assert {task.node_id for task in owner.state.live.values()} == {"n3"}


def test_a_range_is_split_and_merged_for_all_jobs() -> None:
    owner = Owner(plan("j1"), plan("j2"))
    owner.wait(GATHER_S)
    owner.take(SplitRange("flights", 7))
    assert owner.ranges("j1") == owner.ranges("j2") == [4, 5, 6, 14, 15]
    owner.take(MergeRange("flights", 7))
    owner.take(MergeRange("flights", 2))
    assert owner.ranges("j1") == owner.ranges("j2") == [2, 6, 7]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (SplitRange("flights", 9), "no task is waiting"),
        (SplitRange("orders", 4), "no task is waiting"),
        (SplitRange("flights", 0), "0 is no range"),
        (SplitRange("flights", 1 << DEPTH_MAX), "times already"),
        (MergeRange("flights", 4), "no task is waiting"),
        (MergeRange("flights", 1), "no task is waiting"),
        (MergeRange("flights", 1 << DEPTH_MAX), "no halves"),
        (MergeRange("flights", -5), "-5 is no range"),
    ],
)
def test_what_cannot_be_split_or_merged_is_refused(event: SplitRange | MergeRange, why: str) -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    before = list(owner.etcd)
    with pytest.raises(InvalidRequest, match=why):
        owner.take(event)
    assert owner.etcd == before


def test_a_half_that_is_finished_is_not_merged() -> None:
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    call = owner.all(CallNode)[0]
    owner.take(answer(call))
    with pytest.raises(InvalidRequest):
        owner.take(MergeRange("flights", call.place.range_id // 2))


def test_nothing_is_split_before_etcd_was_read() -> None:
    builder = Builder(1, BuildLimits(), [plan("j1")], {"j1"}, 0.0)
    with pytest.raises(Unavailable):
        builder.step(SplitRange("flights", 1), 0.0)


def test_after_a_write_of_unknown_outcome_it_begins_again_with_what_etcd_has() -> None:
    builder = Builder(1, BuildLimits(), [plan("j1")], {"j1"}, 0.0)
    (load,) = builder.step(BuildTick(), 0.0)
    assert isinstance(load, LoadBuilds)
    builder.step(BuildsLoaded(load.number, BuildState()), 0.0)
    (write,) = builder.step(BuildTick(), GATHER_S)
    assert isinstance(write, WriteBuilds)
    assert builder.step(BuildsUnknown(write.number), GATHER_S) == []
    assert builder.step(BuildsWritten(write.number), GATHER_S) == []
    assert builder.next_due_s() == GATHER_S + LOAD_RETRY_S
    (again,) = builder.step(BuildTick(), GATHER_S + LOAD_RETRY_S)
    assert isinstance(again, LoadBuilds)
    assert again.number > write.number


def test_a_new_owner_drops_builds_that_nobody_wants_any_more_and_copies_what_was_aborted() -> None:
    first = Owner(plan("j1"), plan("j2"))
    first.wait(GATHER_S)
    state = first.state
    for job_id in ("j1", "j2"):
        task = next(iter(state.jobs[job_id].values()))
        state.apply(PutTask(task._replace(aborted=True)))
    owner = Owner(plan("j1"), state=list(state.changes()))
    assert owner.ranges("j1") == [4, 5, 6, 7]
    assert not owner.state.aborted
    assert owner.state.jobs.keys() == {"j1"}


def test_a_plan_says_the_job_as_it_was_registered() -> None:
    """A job whose spec is another one by now wants another build."""
    owner = Owner(plan("j1"))
    owner.wait(GATHER_S)
    former = set(owner.state.live)
    owner.take(BuildWanted(replace(plan("j1"), spec_json='{"a": 1}')))
    assert former.isdisjoint(owner.state.live)


def test_a_task_whose_node_leaves_while_it_is_written_goes_to_another() -> None:
    owner = Owner(plan("j1", depth=0))
    owner.take(BuildTick())
    builder, now_s = owner.builder, GATHER_S
    (begun,) = builder.step(BuildTick(), now_s)
    assert isinstance(begun, WriteBuilds)
    (written,) = builder.step(BuildsWritten(begun.number), now_s)
    assert isinstance(written, WriteBuilds)
    builder.step(placed("n2"), now_s)
    (aborted,) = builder.step(BuildsWritten(written.number), now_s)
    assert isinstance(aborted, WriteBuilds)
    (moved,) = builder.step(BuildsWritten(aborted.number), now_s)
    assert isinstance(moved, WriteBuilds)
    assert [change.task.node_id for change in moved.changes if isinstance(change, PutTask)] == ["n2"]
