"""Every shard that is wanted is assigned or waits to be; what nobody wants or has is forgotten, whatever comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.membership.assignments import Assignment, Assignments, Holder, ShardEvent, ShardState
from iscp.model.job.job_row import JobRow
from iscp.model.rows.key_ranges import WHOLE, hashes
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import JobKey, ShardId

TABLES = ("t1", "t2")
SHARDS = [ShardId("t1", WHOLE), ShardId("t1", 2), ShardId("t1", 4), ShardId("t2", 3)]
HOLDERS = [Holder("n1", 1), Holder("n1", 2), Holder("n2", 1)]
TAKING = (ShardEvent.DISPATCH, ShardEvent.FIND_STARTING, ShardEvent.FIND_RUNNING, ShardEvent.FIND_STOPPING)
TURNING = (ShardEvent.CONFIRM, ShardEvent.MISS, ShardEvent.DRAIN, ShardEvent.ABANDON)
JOBS = (JobRow(JobKey("acme", "t1", "copy"), "id", "{}", "t1", "/t1"),)


@dataclass
class Known:
    """What a shard is in the model."""

    wanted: bool
    holder: Holder | None = None
    blocked: bool = False


class Model:
    """The promises of `Assignments`, without its indexes; each step is done where it is allowed."""

    def __init__(self) -> None:
        self.real = Assignments()
        self.known: dict[ShardId, Known] = {}

    def step(self, shard: ShardId, deed: str, holder: Holder, event: int) -> None:
        known, assignment = self.known.get(shard), self.real.get(shard)
        if deed == "want":
            assert self.real.want(shard, JOBS) is self.real[shard]
            self.known.setdefault(shard, Known(True)).wanted = True
        elif deed == "stray" and known is None:
            self._take(self.real.stray(shard), holder, event)
        elif known is None or assignment is None:
            assert assignment is None
        elif deed == "unwant":
            self.real.unwant(assignment)
            known.wanted = False
            if known.holder is None:
                del self.known[shard]
        elif deed == "take" and known.holder is None:
            self._take(assignment, holder, event)
        elif deed == "free" and known.holder is not None:
            self.real.free(assignment)
            self._free(shard, known)
        elif deed == "block" and shard in self.real.unplaced:
            self.real.block(shard)
            known.blocked = True
        elif deed == "turn":
            self._turn(assignment, TURNING[event % len(TURNING)])

    def _take(self, assignment: Assignment, holder: Holder, event: int) -> None:
        self.real.take(assignment, holder, TAKING[event % len(TAKING)])
        self.known[assignment.shard] = Known(assignment.wanted, holder)

    def _free(self, shard: ShardId, known: Known) -> None:
        known.holder = None
        for other, each in self.known.items():
            each.blocked &= other.table_id != shard.table_id
        if not known.wanted:
            del self.known[shard]

    def _turn(self, assignment: Assignment, event: ShardEvent) -> None:
        before = assignment.state
        try:
            self.real.turn(assignment, event)
        except InvariantBroken:
            assert assignment.state is before

    def check(self) -> None:
        real, known = self.real, self.known
        assert {each.shard: (each.wanted, each.holder) for each in real} == {
            shard: (each.wanted, each.holder) for shard, each in known.items()
        }
        assert len(real) == len(known)
        waiting = {shard for shard, each in known.items() if each.holder is None}
        blocked = {shard for shard, each in known.items() if each.blocked}
        assert set(real.unplaced) == waiting - blocked
        assert [set(each) for each in real.blocked.values() if not each] == []
        assert {shard for each in real.blocked.values() for shard in each} == blocked
        assert {holder: set(real.assigned_to(holder)) for holder in real.holders()} == {
            holder: {shard for shard, each in known.items() if each.holder == holder}
            for holder in {each.holder for each in known.values() if each.holder}
        }
        states = Counter(each.state for each in real)
        assert real.counts == {state: states[state] for state in ShardState}
        assert all((each.holder is None) == (each.state is ShardState.ABSENT) for each in real)
        assert set(real.split_tables) == {shard.table_id for shard in known if shard.range_id != WHOLE}
        for table in TABLES:
            assert {each.shard for each in real.of_table(table)} == {
                shard for shard in known if shard.table_id == table
            }
        for shard in known:
            self._check_way(shard)

    def _check_way(self, shard: ShardId) -> None:
        low, high = hashes(shard.range_id)
        ways = {
            other
            for other, each in self.known.items()
            if each.holder and other != shard and other.table_id == shard.table_id
            if hashes(other.range_id)[0] <= high and low <= hashes(other.range_id)[1]
        }
        found = self.real.in_the_way(shard)
        assert found in ways if ways else found is None


STEPS = st.tuples(
    st.sampled_from(SHARDS),
    st.sampled_from(["want", "want", "stray", "unwant", "take", "take", "free", "free", "block", "block", "turn"]),
    st.sampled_from(HOLDERS),
    st.integers(0, 3),
)


@given(st.lists(STEPS, min_size=20, max_size=40))
def test_whatever_comes_each_shard_is_assigned_waits_or_is_forgotten(
    steps: list[tuple[ShardId, str, Holder, int]],
) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()


def test_what_is_wanted_again_keeps_its_holder_and_what_moved_it() -> None:
    real = Assignments()
    assignment = real.want(SHARDS[0], JOBS)
    real.take(assignment, HOLDERS[0], ShardEvent.DISPATCH)
    real.unwant(assignment)
    assert real.want(SHARDS[0], JOBS) is assignment
    assert (assignment.holder, assignment.state) == (HOLDERS[0], ShardState.DISPATCHING)


def test_what_would_break_the_table_is_refused_and_changes_nothing() -> None:
    real = Assignments()
    with pytest.raises(InvariantBroken, match="without a job"):
        real.want(SHARDS[0], ())
    assert len(real) == 0
    assignment = real.want(SHARDS[0], JOBS)
    with pytest.raises(InvariantBroken, match="is free already"):
        real.free(assignment)
    real.take(assignment, HOLDERS[0], ShardEvent.DISPATCH)
    with pytest.raises(InvariantBroken, match="not free for"):
        real.take(assignment, HOLDERS[2], ShardEvent.DISPATCH)
    assert (assignment.holder, list(real.holders())) == (HOLDERS[0], [HOLDERS[0]])
