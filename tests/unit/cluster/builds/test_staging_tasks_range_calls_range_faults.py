"""Ranges that do not come to an end: another node gets them, their jobs are shown as failing, and others go on."""

from __future__ import annotations

from collections.abc import Callable

from iscp.cluster.builds.staging_tasks import CALL_RETRY_MAX_S, FAILURES_SHOWN, TURN_HELD_S
from iscp.cluster.builds.table_turns import GATHER_S
from iscp.model.build.build_state import (
    RANGE_TIMEOUT_S,
    BuildLimits,
    CallNode,
    CancelCall,
    RangeAnswered,
    RangeFailed,
    ShowFault,
)
from iscp.model.values.errors import ErrorCode
from tests.unit.cluster.builds.test_builder import Owner, answer, placed, plan

DAY_S = 86_400.0
WAIT_S = 30.0
"""How long a node lets an owner wait."""


class Played:
    """Calls are answered at once, but for those that `hang` says never are: of these nodes say so after a while."""

    def __init__(self, owner: Owner, hangs: Callable[[CallNode], bool]) -> None:
        self.owner, self.hangs = owner, hangs
        self.waiting: dict[int, tuple[CallNode, float]] = {}
        self.nodes: list[str] = []

    def play(self, for_s: float) -> None:
        until_s = self.owner.now_s + for_s
        while self.owner.now_s < until_s:
            self.owner.wait(WAIT_S)
            for cancel in self.owner.all(CancelCall):
                self.waiting.pop(cancel.number, None)
            for number, (_, since_s) in list(self.waiting.items()):
                if since_s + WAIT_S <= self.owner.now_s:
                    del self.waiting[number]
                    self.owner.take(RangeAnswered(number, {}))
            while calls := self.owner.all(CallNode):
                for call in calls:
                    if self.hangs(call):
                        self.waiting[call.number] = call, self.owner.now_s
                        if self.nodes[-1:] != [call.place.node_id]:
                            self.nodes.append(call.place.node_id)
                    else:
                        self.owner.take(answer(call))


def begun(*plans_of: str) -> Owner:
    owner = Owner(*(plan(f"j-{table_id}", table_id, depth=1) for table_id in plans_of))
    owner.take(placed("n1", "n2", "n3"))
    owner.wait(GATHER_S)
    return owner


def test_a_range_that_never_ends_goes_from_node_to_node_and_holds_up_no_other_table() -> None:
    owner = begun("bad", "good")
    played = Played(owner, lambda call: (call.place.table_id, call.place.range_id) == ("bad", 2))
    played.play(TURN_HELD_S + 3 * WAIT_S)
    assert set(owner.state.built) == {"j-good"}, "its turn comes soon"
    assert not owner.all(ShowFault)
    played.play(RANGE_TIMEOUT_S)
    (shown, *_) = owner.all(ShowFault)
    assert (shown.job_id, shown.code) == ("j-bad", ErrorCode.TIMEOUT)
    played.play(DAY_S)
    assert set(played.nodes) == {"n1", "n2", "n3"}
    assert len(played.nodes) >= DAY_S / (2 * RANGE_TIMEOUT_S)


def test_where_another_node_can_do_it_the_build_comes_to_its_end() -> None:
    owner = begun("bad")
    calls = owner.all(CallNode)
    hangs = calls[0].place
    for call in calls[1:]:
        owner.take(answer(call))
    played = Played(owner, lambda call: call.place.node_id == hangs.node_id and call.place.range_id == hangs.range_id)
    owner.take(RangeAnswered(calls[0].number, {}))
    played.play(RANGE_TIMEOUT_S + 10 * WAIT_S)
    assert played.nodes == [hangs.node_id]
    assert set(owner.state.built) == {"j-bad"}
    assert [shown.code for shown in owner.all(ShowFault)] == [ErrorCode.TIMEOUT, ErrorCode.OK]


def test_a_node_that_stands_alone_has_it_again() -> None:
    owner = Owner(plan("j", "bad", depth=1))
    owner.wait(GATHER_S)
    played = Played(owner, lambda call: call.place.range_id == 2)
    played.play(2 * RANGE_TIMEOUT_S)
    assert len(owner.all(ShowFault)) >= 1
    played.hangs = lambda call: False
    played.play(10 * WAIT_S)
    assert set(owner.state.built) == {"j"}


def test_it_is_called_again_however_short_its_time_is() -> None:
    owner = Owner(plan("j", "bad", depth=1), limits=BuildLimits(range_timeout_s=CALL_RETRY_MAX_S / 4))
    owner.wait(GATHER_S)
    played = Played(owner, lambda call: call.place.range_id == 2)
    played.play(10 * CALL_RETRY_MAX_S)
    played.hangs = lambda call: False
    played.play(4 * CALL_RETRY_MAX_S)
    assert set(owner.state.built) == {"j"}


def test_a_fault_that_lasts_is_shown_and_again_when_it_is_over() -> None:
    owner = Owner(plan("j", "bad", depth=1))
    owner.wait(GATHER_S)
    for _ in range(FAILURES_SHOWN):
        assert not owner.all(ShowFault)
        for call in owner.all(CallNode):
            owner.take(RangeFailed(call.number, "no permission", ErrorCode.STORAGE))
        owner.wait(70.0)
    assert owner.all(ShowFault)[-1] == ShowFault("j", ErrorCode.STORAGE, "no permission")
    first, second = owner.all(CallNode)
    owner.take(answer(first))
    assert not owner.all(ShowFault), "another of its ranges fails still"
    owner.take(answer(second))
    assert owner.all(ShowFault) == [ShowFault("j", ErrorCode.OK)]
