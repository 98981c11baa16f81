"""A new owner takes in what former owners decided, from the nodes that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from iscp.core.api.api_views import EventView
from iscp.core.values.errors import Unavailable
from iscp.core.values.members import NodeRecord
from iscp.runtime.owner.event_collector import EventCollector
from iscp.runtime.owner.placement_events import Decisions
from tests.fakes.node_calls import FakeNodeCalls
from tests.fakes.waiting import until

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
