"""What owners have decided is listed in order, from a number of a term on, for as long as it is kept.

A new owner takes in what former owners decided, from the nodes that answer.

The time up to which all that came in has been processed, whatever the order of processing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.owner.owner_events import PLACEMENT_EVENTS_MAX, Decisions, EventCollector, Unread
from iscp.model.api.api_requests import EventView
from iscp.model.protocol.events import Decided, Decision
from iscp.model.values.errors import Unavailable
from iscp.model.values.ids import NodeRecord, ShardId
from tests.fakes.clock import FakeClock
from tests.fakes.node_calls import FakeNodeCalls
from tests.fakes.waiting import until


def noted(count: int) -> Decisions:
    decisions = Decisions()
    decisions.begin(7)
    for number in range(1, count + 1):
        decisions.note(Decided(Decision.DISPATCH, f"n{number}", ShardId("t"), "new"), float(number))
    return decisions


def test_each_is_reported_with_its_number_and_what_it_was() -> None:
    (only,) = noted(3).after(7, 2)
    assert (only.owner_rev, only.number, only.at_s, only.what) == (7, 3, 3.0, "dispatch")
    assert (only.node_id, only.shard, only.why) == ("n3", "t", "new")


def test_what_is_known_already_is_not_reported_again() -> None:
    decisions = noted(3)
    assert [each.number for each in decisions.after(7, 1)] == [2, 3]
    assert decisions.after(7, 3) == []
    assert [each.number for each in decisions.after(6, 2)] == [1, 2, 3], "of that earlier term nothing is known"
    assert [each.number for each in decisions.after(8, 1)] == [1, 2, 3], "that term is not of this job log"


def test_the_oldest_are_forgotten_and_the_others_keep_their_numbers() -> None:
    told = noted(PLACEMENT_EVENTS_MAX + 5).after(7, 2)
    assert (len(told), told[0].number, told[0].node_id, told[-1].number) == (
        PLACEMENT_EVENTS_MAX,
        6,
        "n6",
        PLACEMENT_EVENTS_MAX + 5,
    )


def places(events: list[EventView]) -> list[tuple[int, int]]:
    return [(each.owner_rev, each.number) for each in events]


def test_a_term_counts_from_one_and_keeps_what_was_before() -> None:
    decisions = noted(3)
    decisions.begin(8)
    assert decisions.after(7, 3) == []
    decisions.note(Decided(Decision.TERM, "n1"), 1.0)
    assert places(decisions.after(7, 3)) == [(8, 1)]
    assert places(decisions.after(7, 2)) == [(7, 3), (8, 1)]
    assert places(decisions.after(0, 0)) == [(7, 1), (7, 2), (7, 3), (8, 1)]


def test_a_term_of_a_job_log_that_was_replaced_forgets_the_others_of_its_number_and_later_ones() -> None:
    decisions = noted(3)
    decisions.begin(7)
    assert decisions.after(0, 0) == []


def test_what_other_owners_decided_is_taken_in_in_order_and_once() -> None:
    former, decisions = noted(3), noted(0)
    decisions.begin(9)
    decisions.note(Decided(Decision.TERM, "n1"), 1.0)
    for _ in range(2):
        decisions.merge(former.of_other_terms(()))
    assert places(decisions.after(0, 0)) == [(7, 1), (7, 2), (7, 3), (9, 1)]
    assert decisions.terms() == {7, 9}
    assert decisions.of_other_terms({7}) == decisions.after(7, 3)


def test_events_of_a_term_that_is_not_over_are_not_taken_in() -> None:
    former, decisions = noted(3), Decisions()
    decisions.begin(7)
    decisions.merge(former.of_other_terms(()))
    assert decisions.after(0, 0) == []


def test_what_is_taken_in_crowds_out_nothing_newer() -> None:
    decisions = Decisions()
    decisions.begin(8)
    decisions.note(Decided(Decision.TERM, "n1"), 1.0)
    decisions.merge(noted(PLACEMENT_EVENTS_MAX).of_other_terms(()))
    kept = decisions.after(0, 0)
    assert (len(kept), places(kept)[0], places(kept)[-1]) == (PLACEMENT_EVENTS_MAX, (7, 2), (8, 1))


def test_who_leaves_can_wait_until_another_owner_has_taken_all() -> None:
    decisions = noted(0)
    assert decisions.wait_taken(0.0), "there is nothing to take"
    decisions.note(Decided(Decision.TERM, "n1"), 1.0)
    assert not decisions.wait_taken(0.0)
    decisions.of_other_terms([7])
    assert decisions.wait_taken(0.0)
    decisions.note(Decided(Decision.JOIN, "n1"), 1.0)
    assert not decisions.wait_taken(0.0), "that one it has not"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(decisions.wait_taken, 20.0)
        decisions.of_other_terms([])
        assert waiting.result(20.0)


def test_of_what_is_kept_only_what_is_wanted_is_given() -> None:
    assert [each.number for each in noted(3).after(7, 0, wanted=lambda event: event.node_id == "n2")] == [2]


FORMER = [EventView(owner_rev, 1, 1.0, "term", "n-2", "", "") for owner_rev in (3, 4)]


class Collected:
    """The owner of term 7, and nodes that it may query; `asked` are the terms that each query names as known."""

    def __init__(self) -> None:
        self.decisions, self.nodes = Decisions(), dict[str, FakeNodeCalls]()
        self.decisions.begin(7)
        self.collector = EventCollector(self.decisions, lambda record: self.nodes[record.node_id])

    def node(self, *kept: EventView, failure: Unavailable | None = None) -> NodeRecord:
        record = NodeRecord(f"n-{len(self.nodes)}", 1, "here:1")
        self.nodes[record.node_id] = FakeNodeCalls(failure=failure, kept=list(kept))
        return record

    def holds(self, *events: EventView) -> Callable[[], bool]:
        return lambda: self.decisions.after(0, 0) == list(events)


@pytest.fixture
def owner() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.collector.close()


def test_what_each_node_kept_is_merged(owner: Collected) -> None:
    for record in (owner.node(FORMER[1]), owner.node(), owner.node(*FORMER)):
        owner.collector.collect(record)
    until(owner.holds(*FORMER))


def test_a_node_that_does_not_answer_keeps_nobody_else_out(owner: Collected) -> None:
    owner.collector.collect(owner.node(failure=Unavailable("it is frozen")))
    owner.collector.collect(NodeRecord("unknown", 1, "there:1"))
    well = owner.node(*FORMER)
    owner.collector.collect(well)
    until(owner.holds(*FORMER))


def test_after_the_end_nothing_is_collected(owner: Collected) -> None:
    owner.collector.close()
    owner.collector.collect(owner.node(*FORMER))
    assert owner.holds()()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0.0, 2.0)), max_size=50))
def test_all_before_the_oldest_that_is_unread_has_been_read(steps: list[tuple[bool, int, float]]) -> None:
    clock = FakeClock()
    unread, model = Unread(clock), list[float]()
    for comes, which, later_s in steps:
        clock.advance(later_s)
        if comes:
            model.append(unread.note())
        elif model:
            unread.mark_read(model.pop(min(which, len(model) - 1)))
        assert unread.since_s() == min(model, default=clock.monotonic_s())
