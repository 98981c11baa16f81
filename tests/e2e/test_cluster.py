"""Nodes with Spark are killed, frozen and stopped under load: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.evidence import sink_commits
from tests.e2e.harness import wait_for
from tests.e2e.load import Load
from tests.e2e.many_nodes import ManyNodes

FROZEN_S = 6.0
"""Beyond the lease of three seconds."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path) as made:
        yield made


def assert_one_writer_at_a_time(load: Load) -> None:
    """Each seq of a job is in its sink once, and in the history by one node alone: no two have done the same."""
    for job in load.jobs:
        commits = [(commit.job_id, commit.seq) for commit in sink_commits(job.target)]
        assert len(commits) == len(set(commits))
        entries = load.cluster.client.history(job.source, job.name, limit=10_000)
        done = {(entry.job_id, entry.seq, entry.node_id) for entry in entries if not entry.error_code}
        assert len({(job_id, seq) for job_id, seq, _ in done}) == len(done)


def frozen(nodes: ManyNodes, source: str) -> None:
    """Whoever runs the table is frozen for longer than its lease; others take over, and it wakes as a zombie."""
    for node_id in nodes.members:
        nodes.wait_ready(node_id)
    victim = nodes.holder(source)
    nodes.members[victim].freeze()
    begin_s = time.monotonic()
    wait_for("another runs the table", lambda: nodes.holder(source) not in ("", victim))
    time.sleep(max(0.0, begin_s + FROZEN_S - time.monotonic()))
    nodes.members[victim].thaw()


def killed(nodes: ManyNodes, node_id: str) -> None:
    nodes.members[node_id].kill()
    nodes.begin(node_id)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_owner_dies_and_a_holder_freezes_under_load(tmp_path: Path) -> None:
    nodes = ManyNodes(tmp_path, count=2)
    try:
        nodes.start()
        load = Load.make(nodes)
        load.register()
        with load.writing(seed=11):
            nodes.settle(load.full)
            killed(nodes, nodes.owner())
            nodes.settle(load.full)
            frozen(nodes, load.full.source)
        load.assert_right()
        assert_one_writer_at_a_time(load)
    finally:
        nodes.stop()


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_rows_are_right_whatever_happens_to_the_nodes(nodes: ManyNodes) -> None:
    nodes.start()
    load = Load.make(nodes)
    load.register()
    with load.writing(seed=12):
        for _ in range(3):
            nodes.settle(load.full)
            killed(nodes, nodes.owner())
            nodes.settle(load.full)
            frozen(nodes, load.full.source)
            nodes.settle(load.appended)
            leaver = nodes.holder(load.full.source)
            assert nodes.members[leaver].stop() == 0
            wait_for("another runs the table", lambda leaver=leaver: nodes.holder(load.full.source) not in ("", leaver))  # type: ignore[misc]
            nodes.begin(leaver)
            nodes.etcd.kill()
            nodes.start_etcd()
            nodes.settle(load.filtered)
            nodes.client.operator.move(load.full.source, nodes.owner())
    load.assert_right()
    assert_one_writer_at_a_time(load)
