"""The table of a view moves to another node while the view refreshes: it is right, and one node at a time writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.evidence import sink_commits
from tests.e2e.harness import wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.test_view_kills import QUERIES, AllViews

SLOW = {"ISCP_FAILPOINTS": "commit.before=sleep:1,report.before=sleep:1"}
"""Nodes that are long at the places where it counts who is there."""

Away = Callable[[ManyNodes, str], None]
"""Has the node give its tables up."""


def moved(nodes: ManyNodes, victim: str) -> None:
    (other,) = set(nodes.members) - {victim}
    nodes.client.operator.move(str(nodes.lake / "orders"), other)


def drained(nodes: ManyNodes, victim: str) -> None:
    nodes.client.operator.drain(victim)


def stopped(nodes: ManyNodes, victim: str) -> None:
    assert nodes.members[victim].stop() == 0


def killed(nodes: ManyNodes, victim: str) -> None:
    nodes.members[victim].kill()


def assert_one_writer(views: AllViews) -> None:
    """Each seq is in its view's log once, and in the history by one node alone."""
    views.assert_committed_once()
    client = views.cluster.client
    for name in ("per_name", *views.targets):
        entries = client.history(views.orders, name, limit=10_000)
        done = {(entry.job_id, entry.seq, entry.node_id) for entry in entries if not entry.error_code}
        assert len({(job_id, seq) for job_id, seq, _ in done}) == len(done)


def goes_on_elsewhere(root: Path, ways: list[Away], queries: list[str]) -> None:
    """Each way once, in the middle of refreshes of all views."""
    nodes = ManyNodes(root, count=2)
    try:
        nodes.start(**SLOW)
        views = AllViews(nodes)
        views.create()
        for query in queries:
            views.add(query, query)
        views.assert_right()
        for number, away in enumerate(ways, start=1):
            loses_its_table(nodes, views, away, number)
        assert_one_writer(views)
    finally:
        nodes.stop()


def loses_its_table(nodes: ManyNodes, views: AllViews, away: Away, number: int) -> None:
    victim = nodes.holder(views.orders)
    begun = len(sink_commits(views.view))
    views.change(number)
    wait_for("a refresh has begun", lambda: len(sink_commits(views.view)) > begun)
    away(nodes, victim)
    wait_for("another runs the table", lambda: nodes.holder(views.orders) not in ("", victim))
    views.change(10 + number)
    views.assert_right()
    if nodes.members[victim].alive:
        nodes.client.operator.uncordon(victim)
    else:
        nodes.begin(victim, **SLOW)
        nodes.wait_ready(victim)
    views.assert_right()


@pytest.mark.further  # each time: test_cluster.py, and two nodes in tests/integration/pipeline/test_several_tables.py
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_moves_while_its_view_refreshes(tmp_path: Path) -> None:
    goes_on_elsewhere(tmp_path, [moved], ["best"])


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_views_are_right_however_their_node_loses_the_table(tmp_path: Path) -> None:
    goes_on_elsewhere(tmp_path, [moved, drained, stopped, killed, moved, killed], list(QUERIES))
